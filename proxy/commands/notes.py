"""What notes hold and what was cut, in a few lines for people: the same wherever a compaction is shown."""

from __future__ import annotations

from collections.abc import Sequence

from proxy.commands.table import number, plain, write
from proxy.core.layout import Clip, Noted
from proxy.core.shares import many


def show_notes(notes: Noted) -> None:
    """On stdout."""
    write("The notes hold")
    write(f"  requests  {notes.whole} word for word, {notes.cut} as head and tail, {notes.dropped} only counted")
    if notes.rules:
        write(f"  rules     {many(notes.rules, 'sentence')} of the user, word for word")
    listed = ", ".join(f"{count} {kind}" for kind, count in notes.ledger)
    entries = sum(count for _, count in notes.ledger)
    write(
        f"  ledger    {entries} identifiers"
        + (f" ({listed})" if listed else "")
        + f", {notes.unlisted} more not listed"
    )
    if notes.narrated:
        write("  account   in a model's words")
    if notes.calls:
        write("  calls     " + ", ".join(f"{plain(name)} {count}x" for name, count in notes.calls))
    if notes.kept:
        write(f"  kept      {many(notes.kept, 'reference')} to whole results and requests")


def show_cut(messages: int, tokens: int, clips: Sequence[Clip]) -> None:
    """What the notes stand for, and what stays but not whole."""
    write("What was cut")
    write(f"  {many(messages, 'message')} ({number(tokens)} tokens): the notes stand for them")
    for clip in clips:
        sizes = f"{number(clip.before)} -> {number(clip.after)} tokens"
        write(f"  message {clip.message} ({clip.role}): {sizes}, head and tail")
