"""One explanation, laid out for people: the layers as they fill the window, then what was decided and why.

Belongs here: words and order. Never: a figure of its own. What colour says stands in words too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from proxy.commands.notes import show_cut, show_notes
from proxy.commands.table import Column, bar, number, plain, show, stretch, write
from proxy.core.explanation import Compacted, Explanation
from proxy.core.pacing import Window
from proxy.core.shares import Layer, many

NAMES: Final[Mapping[Layer, str]] = {
    "base": "base prompt",
    "conventions": "conventions",
    "instructions": "instructions",
    "client_system": "client's system",
    "skills": "selected skills",
    "catalogue": "skill catalogue",
    "notes": "notes",
    "open_request": "open request",
    "earlier": "earlier turns",
    "rounds": "own tool rounds",
    "newest": "newest turn",
    "client_tools": "client's tools",
    "own_tools": "own tools",
}
_STYLES: Final[Mapping[Layer, str]] = {
    "base": "cyan",
    "conventions": "cyan",
    "instructions": "cyan",
    "skills": "green",
    "catalogue": "green",
    "notes": "yellow",
    "rounds": "green",
    "newest": "bold",
    "client_tools": "magenta",
    "own_tools": "green",
}
_FIXES: Final[Mapping[str, str]] = {
    "unanswered_call": "tool call without a result, answered by a sentence",
    "empty_result": "empty tool result, said to be empty",
    "orphan_result": "tool result without its call, quoted as text",
    "dropped_or_moved": "message dropped, moved or renamed",
    "merged": "message merged with its neighbour of the same role",
}
_BASES: Final[Mapping[str, str]] = {
    "reported": "by what the provider reported for this conversation",
    "counted": "counted",
    "estimated": "estimated",
}


def show_account(told: Explanation) -> None:
    """On stdout."""
    write(_head(told))
    write(_talk(told))
    write("")
    if told.parts:
        _layers(told)
        write("")
    _window(told)
    write(plain(told.why))
    _facts(told)
    if told.compaction is not None:
        write("")
        _compaction(told.compaction)


def _head(told: Explanation) -> str:
    kind = "agent, " if told.agent else ""
    where = f"{kind}{told.upstream_model} at {told.upstream}"
    return plain(f"{told.model} ({where}), policy {told.policy}, mode {told.mode}")


def _talk(told: Explanation) -> str:
    known = told.conversation or "a conversation that is not known here"
    label = f", labelled {told.label}" if told.label is not None else ""
    return plain(f"{known}{label}: {many(told.messages, 'message')} to be sent of {many(told.turns, 'turn')}")


def _layers(told: Explanation) -> None:
    whole = told.held.window if told.held is not None else max(1, told.tokens)
    of = number(whole) if told.held is not None else "the prompt"
    columns = [Column(name="layer", right=False, whole=True), Column(name="messages"), Column(name="tokens")]
    columns += [Column(name=f"of {of}"), Column(name="", right=False, whole=True), Column(name="what", right=False)]
    rows: list[list[str]] = []
    before = 0
    for part in told.parts:
        count = number(part.messages) if part.messages else ""
        drawn = stretch(before, part.tokens, whole)
        rows.append([NAMES[part.layer], count, number(part.tokens), percent(part.tokens, whole), drawn, part.told])
        before += part.tokens
    total = ["prompt", number(told.messages), number(told.tokens), percent(told.tokens, whole)]
    styles = [_STYLES.get(part.layer, "") for part in told.parts]
    drawn = bar(told.tokens, whole, told.held.trigger) if told.held is not None else ""
    show(columns, rows, [*total, drawn, _BASES[told.basis]], styles)


def _window(told: Explanation) -> None:
    held = told.held
    if held is None:
        return
    reserve = f", {number(held.reserve)} held back for the answer" if held.reserve else ""
    source = {"asked": "as asked", "unknown": "unsure"}.get(held.source, f"from {held.source}")
    write(
        f"The window has {number(held.window)} tokens ({source}). A compaction is made at {number(held.trigger)} "
        f"({percent(held.trigger, held.window)}) and aims at {number(held.target)}{reserve}."
    )


def _facts(told: Explanation) -> None:
    if told.stopped and told.decision not in ("paused", "stuck"):
        write(f"Less than usual is done to compact this conversation: {told.stopped}.")
    if told.memory is not None:
        write(memory(told.memory))
    for fix in told.repaired:
        write(f"Repaired: {number(fix.count)} x {_FIXES[fix.what]}.")
    if told.effort is not None:
        write(plain(f"Effort {effort(told)}."))
    if told.lowered:
        write(f"The output limit would be lowered to {number(told.output or 0)} tokens.")
    if not told.tools.own and told.decision != "command" and told.agent:
        write(f"None of our own tools is offered. {told.tools.why}")
    if told.same_bytes:
        write("The messages go out byte for byte as they came.")


def memory(bounds: Window) -> str:
    """How much is told of the turns that are closed."""
    said = f"Memory tells {many(bounds.trimmed, 'closed turn')} shorter"
    said += f", {bounds.results} of them without results" if bounds.results else ""
    return said + (f"; {bounds.first} have slid out." if bounds.first else ".")


def effort(told: Explanation) -> str:
    """Which effort holds, by whose word, and how it is told."""
    if told.effort is None:
        return "none stated"
    members = bytes(told.effort.members).decode()
    way = f"told as {members}" if members != "{}" else "told as nothing: the model has none, or nobody knows how"
    source = {"request": "the request's", "turn": "this turn's", "agent": "the agent's"}[told.effort.source]
    return f"{told.effort.level} ({source} word), {way}"


def _compaction(made: Compacted) -> None:
    state = "known from before" if made.state == "known" else "new; it is not kept now"
    write(plain(f"Compaction {made.id} ({made.trigger}, {state}), written by {made.writer}: {made.notes.covers}"))
    if made.asks:
        write(plain(f"  A model would be asked for the account: {', else '.join(made.asks)}"))
    show_notes(made.notes)
    show_cut(made.messages, made.tokens, made.clips)


def percent(size: int, whole: int) -> str:
    """A share that is there is never told as nothing."""
    share = size / whole
    return f"{share:.1%}" if share >= 0.001 or not size else "<0.1%"
