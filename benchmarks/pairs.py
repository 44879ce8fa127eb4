"""What is compared with what: a call on one gateway against a call on another, or two calls on the same.

Pairs only; how they are measured stands in comparing.py (CPU) and instructions.py.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from benchmarks.cases import AGAINST, LAYERS, REMEMBERED
from benchmarks.gateways import AGENTS, COMMIT, TODAY

PLAIN, LAYERED, MEMORY = 1.03, 1.25, 1.3  # how much more a call may cost: the gates of issues 5 and 6


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """`body` names a series of bodies.py or agents.py."""

    gateway: str
    body: str


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of `mine` over that of `other`. `gate`: what it may be at most. `spread`: how wide the ratio's interval
    may be for a figure near the gate. `sends`: how much the upstream must get of mine, compared with the other's, or
    the pair does not show what it says."""

    probe: str
    what: str
    mine: Side
    other: Side
    in_flight: int = 1
    kind: Literal["json", "burst"] = "json"
    gate: float
    spread: float
    sends: Literal["anything", "layers", "less"] = "anything"


def _against(what: str, body: str, in_flight: int = 1, kind: Literal["json", "burst"] = "json") -> Pair:
    mine, other = Side(gateway=TODAY, body=body), Side(gateway=COMMIT, body=body)
    what = f"plain call, {what}, against the commit"
    return Pair(
        probe=AGAINST, what=what, mine=mine, other=other, in_flight=in_flight, kind=kind, gate=PLAIN, spread=0.02
    )


def _layers(what: str, body: str, layered: str, in_flight: int = 1, kind: Literal["json", "burst"] = "json") -> Pair:
    mine, other = Side(gateway=AGENTS, body=layered), Side(gateway=TODAY, body=body)
    what = f"four layers, {what}, against a plain call"
    return Pair(
        probe=LAYERS,
        what=what,
        mine=mine,
        other=other,
        in_flight=in_flight,
        kind=kind,
        gate=LAYERED,
        spread=0.1,
        sends="layers",
    )


def _memory(what: str, body: str) -> Pair:
    mine, other = (Side(gateway=AGENTS, body=f"{body} {agent}") for agent in ("remembering", "forgetting"))
    what = f"memory over 400 messages, {what}, against none"
    return Pair(probe=REMEMBERED, what=what, mine=mine, other=other, gate=MEMORY, spread=0.1, sends="less")


PAIRS = (
    _against("1 KB, 1 in flight", "1 KB", 1),
    _against("1 KB, 16 in flight", "1 KB", 16),
    _against("1 KB, 64 in flight", "1 KB", 64),
    _against("300 KB", "300 KB"),
    _against("burst of 200 chunks", "burst", kind="burst"),
    _layers("1 KB, 1 in flight", "1 KB", "1 KB layered", 1),
    _layers("1 KB, 16 in flight", "1 KB", "1 KB layered", 16),
    _layers("1 KB, each a new conversation", "1 KB new", "1 KB layered new", 16),
    _layers("300 KB", "300 KB", "300 KB layered"),
    _layers("burst of 200 chunks", "burst", "burst layered", kind="burst"),
    _memory("2 MB, known", "2 MB"),
    _memory("2 MB, grown by one", "2 MB grown"),
)
