"""`weirgate compact FILE`: a dry run on a saved conversation. Nothing is sent, nothing is stored.

Belongs here: reading the file in the forms that people have (a chat request, a list of messages, a line of JSONL) and
saying what `dry_run` found. Never: how a compaction is made.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from proxy import policies
from proxy.catalogue import Catalogue, ranks_folder
from proxy.commands.dry_run import Outcome, dry_run
from proxy.commands.notes import show_cut, show_notes
from proxy.commands.outcome import DONE, FAILED, WRONG, NotDone, say
from proxy.commands.saved import content, conversation
from proxy.commands.table import Column, bar, number, plain, show, write
from proxy.commands.where import configuration
from proxy.core.layout import noted
from proxy.core.policy import ModelCard
from proxy.core.shares import many
from proxy.core.steps import Call, Caller
from proxy.dialects.chat.messages import read_message
from proxy.dialects.chat.request import decode_call
from proxy.settings import load_part
from proxy.upstream.counter import Counter

_KEPT: Final = ("messages", "tools", "functions", "max_completion_tokens", "max_tokens", "n")
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
    value = conversation(content(asked.file), asked.line)
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


def _text(raw: msgspec.Raw | None) -> str:
    value = None if raw is None else msgspec.json.decode(raw)
    return value if isinstance(value, str) else ""


# -- what was found --------------------------------------------------------------------------------------------------


def _print(found: Outcome, asked: Asked) -> None:
    model = "" if found.model == _UNNAMED else f", model {plain(found.model)}"
    head = f"{many(found.messages, 'message')} in {many(found.turns, 'turn')}{model}"
    write(head + (f"; {found.repaired} repaired" if found.repaired else ""))
    write("")
    _sizes(found)
    write("")
    if not found.needed:
        write(f"No compaction is needed: it would begin at {number(found.trigger)} tokens.")
        write("")
    elif not found.compacted:
        write(_too_large(found))
        write("")
    _parts(found)
    if found.notes is not None:
        write("")
        show_notes(noted(found.notes))
        write("")
        show_cut(found.replaced_messages, found.replaced_tokens, found.clips)
    if found.lowered is not None:
        write(f"The output limit would be lowered to {number(found.lowered)} tokens.")
    if asked.text and found.text:
        write(f"\n{_lines(found.text)}")
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
            [name, number(size), f"{size / found.window:.0%}", bar(size, found.window) if drawn else ""]
            for name, size, drawn in rows
        ],
    )


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


def _too_large(found: Outcome) -> str:
    sizes = {part.name: part.tokens for part in found.parts}
    fixed = ", ".join(f"{name} {number(sizes[name])}" for name in ("system", "tools") if name in sizes)
    parts = (
        f"{fixed}, newest group {number(found.newest_group)}" if fixed else f"newest group {number(found.newest_group)}"
    )
    return f"Nothing can be gained: what must stay ({parts} tokens) leaves no room. It would be sent as it is."


def _lines(text: str) -> str:
    return "\n".join(plain(line) for line in text.split("\n"))
