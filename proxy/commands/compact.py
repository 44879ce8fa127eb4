"""`weirgate compact FILE`: a dry run on a saved conversation. Nothing is sent, nothing is stored.

Belongs here: reading the file in the forms that people have (a chat request, a list of messages, a line of JSONL) and
saying what `dry_run` found. Never: how a compaction is made.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter as Tally
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from proxy import policies
from proxy.catalogue import Catalogue, ranks_folder
from proxy.commands.dry_run import Outcome, dry_run
from proxy.commands.outcome import DONE, FAILED, WRONG, NotDone, say
from proxy.commands.table import Column, number, plain, show
from proxy.commands.where import configuration
from proxy.core.notes import Notes
from proxy.core.policy import ModelCard
from proxy.core.steps import Call, Caller
from proxy.dialects.chat.messages import read_message
from proxy.dialects.chat.request import decode_call
from proxy.settings import load_part
from proxy.upstream.counter import Counter

_MOST: Final = 256 * 1024 * 1024
_KEPT: Final = ("messages", "tools", "functions", "max_completion_tokens", "max_tokens", "n")
_BAR: Final = 30
_UNNAMED: Final = "unnamed"


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The command line. `window` and `model` None: what the policy, the catalogue and the file say."""

    file: str
    window: int | None = None
    model: str | None = None
    max_tokens: int | None = None
    line: int | None = None
    as_json: bool = False
    text: bool = False


def run(asked: Asked, config: Path | None, environ: Mapping[str, str]) -> int:
    """0; 1 where the conversation would still not fit."""
    call = read_call(asked)
    path = configuration(config)
    folder = load_part(path, environ, ("policies",)).policies or policies.shipped()
    policy = policies.load(folder).for_model(call.model)
    card = Catalogue().card(call.model) or ModelCard(name=call.model)
    window = asked.window or policy.window or card.window
    if window is None:
        raise NotDone(f"the window of {call.model} is not known: give --window N (tokens)", WRONG)
    counter = Counter(ranks_folder())
    try:
        found = asyncio.run(dry_run(call, policy, card, window, counter))
    finally:
        counter.close()
    if asked.as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n")
    else:
        _print(found, asked)
    return FAILED if found.needed and not found.compacted and found.after > found.window else DONE


# -- the file --------------------------------------------------------------------------------------------------------


def read_call(asked: Asked) -> Call:
    """The conversation as the request that would carry it. Raises NotDone, Malformed."""
    value = _conversation(_bytes(asked.file), asked.line)
    stated = {name: raw for name in _KEPT if (raw := value.get(name)) is not None and bytes(raw) != b"null"}
    if "messages" not in stated:
        raise NotDone(f"{asked.file} holds no messages: a chat request, a list of messages, or JSONL of either", WRONG)
    if asked.max_tokens is not None:
        stated.pop("max_completion_tokens", None)
        stated["max_tokens"] = msgspec.Raw(str(asked.max_tokens).encode())
    named = value.get("model")
    stated["model"] = msgspec.Raw(msgspec.json.encode(asked.model or _text(named) or _UNNAMED))
    body = msgspec.json.encode(stated)
    return decode_call(body, Caller(tenant="local", key="dry-run"), read_message, {})


def _bytes(name: str) -> bytes:
    try:
        data = sys.stdin.buffer.read(_MOST + 1) if name == "-" else Path(name).read_bytes()
    except OSError as failure:
        raise NotDone(f"{name} cannot be read: {failure.strerror}", WRONG) from None
    if len(data) > _MOST:
        raise NotDone(f"{name} is larger than {_MOST >> 20} MiB", WRONG)
    return data.removeprefix(b"\xef\xbb\xbf").strip()


def _conversation(data: bytes, line: int | None) -> dict[str, msgspec.Raw]:
    """One JSON value, or the chosen line of several."""
    whole = _members(data) if line is None else None
    if whole is not None:
        return whole
    lines = [each for each in data.split(b"\n") if each.strip()]
    if not lines:
        raise NotDone("the file is empty", WRONG)
    chosen = line or 1
    if chosen > len(lines):
        raise NotDone(f"there is no line {chosen}: the file has {len(lines)}", WRONG)
    found = _members(lines[chosen - 1])
    if found is None:
        where = f"line {chosen}" if len(lines) > 1 else "the file"
        raise NotDone(f"{where} is not valid JSON, or neither a chat request nor a list of messages", WRONG)
    if len(lines) > 1:
        say(f"conversation {chosen} of {len(lines)}" + ("" if line else "; --line N takes another"))
    return found


def _members(data: bytes) -> dict[str, msgspec.Raw] | None:
    try:
        if data[:1] == b"[":
            msgspec.json.decode(data, type=list[msgspec.Raw])
            return {"messages": msgspec.Raw(data)}
        return msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        return None


def _text(raw: msgspec.Raw | None) -> str:
    value = None if raw is None else msgspec.json.decode(raw)
    return value if isinstance(value, str) else ""


# -- what was found --------------------------------------------------------------------------------------------------


def _print(found: Outcome, asked: Asked) -> None:
    model = "" if found.model == _UNNAMED else f", model {plain(found.model)}"
    head = f"{_many(found.messages, 'message')} in {_many(found.turns, 'turn')}{model}"
    _write(head + (f"; {found.repaired} repaired" if found.repaired else ""))
    _write("")
    _sizes(found)
    _write("")
    if not found.needed:
        _write(f"No compaction is needed: it would begin at {number(found.trigger)} tokens.")
        _write("")
    elif not found.compacted:
        _write(_too_large(found))
        _write("")
    _parts(found)
    if found.notes is not None:
        _write("")
        _noted(found.notes)
        _write("")
        _cut(found)
    if found.lowered is not None:
        _write(f"The output limit would be lowered to {number(found.lowered)} tokens.")
    if asked.text and found.text:
        _write(f"\n{_lines(found.text)}")
    elif asked.text:
        say("there are no notes to show")


def _sizes(found: Outcome) -> None:
    rows = [("before", found.before, True), ("compacts at", found.trigger, False)]
    rows += [("after", found.after, True)] if found.compacted else []
    columns = [Column(name="", right=False), Column(name="tokens"), Column(name=f"of {number(found.window)}")]
    columns.append(Column(name="", right=False))
    show(
        columns,
        [
            [name, number(size), f"{size / found.window:.0%}", _bar(size, found.window) if bar else ""]
            for name, size, bar in rows
        ],
    )


def _bar(size: int, window: int) -> str:
    filled = round(_BAR * min(1.0, size / window))
    return "█" * filled + "░" * (_BAR - filled) + (" over" if size > window else "")


def _parts(found: Outcome) -> None:
    columns = [Column(name="what is sent", right=False), Column(name="messages"), Column(name="tokens")]
    columns.append(Column(name="how", right=False))
    show(
        columns,
        [
            [part.name, number(part.messages) if part.messages else "", number(part.tokens), part.told]
            for part in found.parts
        ],
    )


def _noted(notes: Notes) -> None:
    whole = sum(not pin.cut for pin in notes.pins)
    cut = len(notes.pins) - whole
    kinds = Tally(entry.kind for entry in notes.ledger)
    listed = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    _write("The notes hold")
    _write(f"  requests  {whole} word for word, {cut} as head and tail, {notes.dropped} only counted")
    _write(
        f"  ledger    {len(notes.ledger)} identifiers"
        + (f" ({listed})" if listed else "")
        + f", {notes.unlisted} more not listed"
    )
    if notes.calls:
        _write("  calls     " + ", ".join(f"{plain(name)} {count}x" for name, count in notes.calls))


def _cut(found: Outcome) -> None:
    gone = f"{_many(found.replaced_messages, 'message')} ({number(found.replaced_tokens)} tokens)"
    _write("What was cut")
    _write(f"  {gone}: the notes stand for them")
    for clip in found.clips:
        sizes = f"{number(clip.before)} -> {number(clip.after)} tokens"
        _write(f"  message {clip.message} ({clip.role}): {sizes}, head and tail")


def _too_large(found: Outcome) -> str:
    sizes = {part.name: part.tokens for part in found.parts}
    fixed = ", ".join(f"{name} {number(sizes[name])}" for name in ("system", "tools") if name in sizes)
    parts = (
        f"{fixed}, newest group {number(found.newest_group)}" if fixed else f"newest group {number(found.newest_group)}"
    )
    return f"Nothing can be gained: what must stay ({parts} tokens) leaves no room. It would be sent as it is."


def _lines(text: str) -> str:
    return "\n".join(plain(line) for line in text.split("\n"))


def _many(count: int, name: str) -> str:
    return f"1 {name}" if count == 1 else f"{number(count)} {name}s"


def _write(text: str) -> None:
    sys.stdout.write(text + "\n")
