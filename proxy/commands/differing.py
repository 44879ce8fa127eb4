"""Two explanations held against each other: what is larger, what is decided otherwise, and how far the prompts agree.

Belongs here: the comparison and its layout. As far as two bodies are the same from the start of their messages, the
second finds the provider's prompt cache warm after the first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import takewhile
from typing import Final

import msgspec

from proxy.commands.accounting import NAMES, effort, memory
from proxy.commands.table import Column, number, plain, show, write
from proxy.core.explanation import Explanation
from proxy.core.shares import Layer


class Changed(msgspec.Struct, frozen=True, kw_only=True):
    """A fact that differs, in words."""

    what: str
    first: str
    second: str


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """`layers` are the tokens of each in the first and the second; `same` messages of the two bodies are equal from the
    first one on, of `messages` in the first and the second."""

    tokens: tuple[int, int]
    layers: Mapping[str, tuple[int, int]]
    changed: tuple[Changed, ...]
    same: int
    messages: tuple[int, int]
    equal: bool


class _Body(msgspec.Struct):
    messages: list[msgspec.Raw] = []


_FACTS: Final[Mapping[str, Callable[[Explanation], str]]] = {
    "model": lambda told: told.model,
    "sent to": lambda told: f"{told.upstream_model} at {told.upstream}",
    "policy": lambda told: told.policy,
    "mode": lambda told: str(told.mode),
    "conversation": lambda told: told.conversation or "not known",
    "window": lambda told: number(told.held.window) if told.held is not None else "unknown",
    "compacts at": lambda told: number(told.held.trigger) if told.held is not None else "",
    "aims at": lambda told: number(told.held.target) if told.held is not None else "",
    "held back": lambda told: number(told.held.reserve) if told.held is not None else "",
    "decision": lambda told: told.decision,
    "notes cover": lambda told: told.compaction.notes.covers if told.compaction is not None else "nothing",
    "model asked": lambda told: ", else ".join(told.compaction.asks) if told.compaction is not None else "",
    "memory": lambda told: memory(told.memory) if told.memory is not None else "as it was",
    "repairs": lambda told: number(sum(fix.count for fix in told.repaired)),
    "skills": lambda told: ", ".join(told.skills) or "none",
    "effort": effort,
    "own tools": lambda told: ", ".join(told.tools.own) or "none",
    "output limit": lambda told: number(told.output) if told.output is not None else "none",
}


def difference(first: Explanation, second: Explanation, bodies: tuple[bytes, bytes]) -> Difference:
    """What is different."""
    sizes: list[dict[Layer, int]] = [{}, {}]
    for found, told in zip(sizes, (first, second), strict=True):
        for part in told.parts:
            found[part.layer] = found.get(part.layer, 0) + part.tokens
    pairs = {layer: (sizes[0].get(layer, 0), sizes[1].get(layer, 0)) for layer in NAMES}
    facts = ((what, tell(first), tell(second)) for what, tell in _FACTS.items())
    before, after = (_messages(body) for body in bodies)
    alike = takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False))
    return Difference(
        tokens=(first.tokens, second.tokens),
        layers={layer: pair for layer, pair in pairs.items() if pair != (0, 0)},
        changed=tuple(Changed(what=what, first=one, second=other) for what, one, other in facts if one != other),
        same=sum(1 for _ in alike),
        messages=(len(before), len(after)),
        equal=bodies[0] == bodies[1],
    )


def show_difference(first: Explanation, second: Explanation, found: Difference, names: tuple[str, str]) -> None:
    """On stdout."""
    write(plain(f"1: {names[0]}"))
    write(plain(f"2: {names[1]}"))
    write("")
    columns = [Column(name="layer", right=False, whole=True), Column(name="1"), Column(name="2"), Column(name="change")]
    rows = [[NAMES[layer], *_cells(found.layers[layer])] for layer in NAMES if layer in found.layers]
    show(columns, rows, ["prompt", *_cells(found.tokens)])
    if first.basis != second.basis:
        write(f"1 is {first.basis} and 2 {second.basis}: the same layer may weigh a little more in one of them.")
    if found.changed:
        write("")
        texts = [Column(name=name, right=False) for name in ("what differs", "1", "2")]
        show(texts, [[each.what, each.first, each.second] for each in found.changed])
    write("")
    write(_alike(found))


def _alike(found: Difference) -> str:
    if found.equal:
        return "What would be sent is the same, byte for byte."
    first, second = found.messages
    if not found.same:
        return f"The prompts differ from their first message on ({first} and {second} messages)."
    if found.same == 1:
        return f"The first message is the same, byte for byte, of {first} and {second}."
    return f"The first {found.same} messages are the same, byte for byte, of {first} and {second}."


def _cells(pair: tuple[int, int]) -> list[str]:
    change = pair[1] - pair[0]
    return [number(pair[0]), number(pair[1]), f"{change:+,}" if change else ""]


def _messages(body: bytes) -> list[bytes]:
    return [bytes(raw) for raw in msgspec.json.decode(body, type=_Body).messages] if body else []
