"""What is asked of every contender. A case is a body, a number in flight and a time; a probe is no such case."""

from __future__ import annotations

from typing import Literal

import msgspec


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """`body` names a series of bodies.py; `beside` one that another client sends meanwhile, one after the other without
    a pause. `peers`: whether the peers are asked too. `notes`: it is about a gateway that has compacted the history."""

    name: str
    title: str
    body: str
    in_flight: int
    kind: Literal["json", "burst", "paced"] = "json"
    beside: str = ""
    peers: bool = True
    notes: bool = False


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How long a run may take: rounds per case, seconds per sample, discarded seconds before the first, and the length
    of a paced stream in chunks of 20 ms."""

    rounds: int
    seconds: float
    warm_up: float
    paced_chunks: int
    paced_start: float  # seconds over which paced streams start
    held_streams: int  # that are open at once while memory is read
    held_chunks: int  # of 100 ms
    block_calls: int  # calls between two looks at memory
    blocks: int
    most_streams: int  # where the search for a core's capacity ends
    pair_rounds: int  # of a comparison: at least, and, while its spread is too wide, at most
    most_pair_rounds: int


FULL = Plan(
    rounds=3,
    seconds=0.7,
    warm_up=0.15,
    paced_chunks=100,
    paced_start=0.8,
    held_streams=1000,
    held_chunks=40,
    block_calls=20_000,
    blocks=5,
    most_streams=1600,
    pair_rounds=5,
    most_pair_rounds=25,
)
QUICK = Plan(
    rounds=1,
    seconds=0.3,
    warm_up=0.05,
    paced_chunks=40,
    paced_start=0.4,
    held_streams=200,
    held_chunks=12,
    block_calls=1_000,
    blocks=3,
    most_streams=200,
    pair_rounds=2,
    most_pair_rounds=2,
)

SMALL = "1 KB, 3 messages"
PACED = "paced, 50 chunks/s"

CASES = (
    Case(name="small-1", title=SMALL, body="1 KB", in_flight=1),
    Case(name="small-16", title=SMALL, body="1 KB", in_flight=16),
    Case(name="small-64", title=SMALL, body="1 KB", in_flight=64),
    Case(name="small-256", title=SMALL, body="1 KB", in_flight=256),
    Case(name="300k-1", title="300 KB, 150 messages", body="300 KB", in_flight=1),
    Case(name="300k-16", title="300 KB, 150 messages", body="300 KB", in_flight=16, peers=False),
    Case(name="20-messages", title="1 MB, 20 messages", body="1 MB of 20", in_flight=1, peers=False),
    Case(name="2000-messages", title="1 MB, 2,000 messages", body="1 MB of 2000", in_flight=1, peers=False),
    Case(name="2m-1", title="2 MB, 400 messages", body="2 MB", in_flight=1),
    Case(name="2m-16", title="2 MB, 400 messages", body="2 MB", in_flight=16, peers=False),
    Case(name="grown-1", title="2 MB, grown by one", body="2 MB grown", in_flight=1),
    Case(name="cold-1", title="2 MB, all messages new", body="2 MB cold", in_flight=1, peers=False),
    Case(name="compacted-1", title="2 MB, compacted", body="2 MB tight", in_flight=1, peers=False, notes=True),
    Case(name="burst-1", title="burst of 200 chunks", body="burst", in_flight=1, kind="burst"),
    Case(name="burst-8", title="burst of 200 chunks", body="burst", in_flight=8, kind="burst", peers=False),
    Case(name="paced-100", title=PACED, body="paced", in_flight=100, kind="paced"),
    Case(
        name="beside-known",
        title=f"{PACED}, beside 2 MB",
        body="paced",
        in_flight=50,
        kind="paced",
        beside="2 MB",
        peers=False,
    ),
    Case(
        name="beside-grown",
        title=f"{PACED}, beside 2 MB grown",
        body="paced",
        in_flight=50,
        kind="paced",
        beside="2 MB grown",
        peers=False,
    ),
)

CAPACITY, MEMORY = "capacity", "memory"
AGAINST, LAYERS, REMEMBERED = "against", "layers", "remembered"
PROBES = {
    CAPACITY: "how many paced streams one core carries",
    MEMORY: "memory of fresh processes: idle, per open stream, after many calls",
    AGAINST: "a plain call's CPU against the same call on the gateway of AGAINST=<commit>",
    LAYERS: "a call's CPU with four layers against a plain one",
    REMEMBERED: "a call's CPU with memory over 400 messages against one without",
}


def chosen(wanted: str) -> tuple[tuple[Case, ...], frozenset[str]]:
    """The cases and probes that the comma-separated words name, each whole or by its beginning; all for an empty
    string. Raises ValueError on a word that names none."""
    there = (*(case.name for case in CASES), *PROBES)
    picked: set[str] = set()
    for word in filter(None, (part.strip() for part in wanted.split(","))):
        names = [name for name in there if name.startswith(word)]
        if not names:
            raise ValueError(f"no case begins with {word!r}; there are: {', '.join(there)}")
        picked.update([word] if word in names else names)
    picked = picked or set(there)
    return tuple(case for case in CASES if case.name in picked), frozenset(picked & PROBES.keys())


def sample_seconds(case: Case, plan: Plan) -> float:
    """How long the generator starts new requests for."""
    return plan.paced_start if case.kind == "paced" else plan.seconds


def stream_seconds(plan: Plan) -> float:
    """How long a paced stream lasts."""
    return plan.paced_chunks * 0.02


def expected_seconds(case: Case, plan: Plan, contenders: int) -> float:
    """About how long the case takes in all."""
    sample = sample_seconds(case, plan) + (stream_seconds(plan) if case.kind == "paced" else 0.0)
    return contenders * (plan.rounds * (sample + 0.05) + (0.0 if case.kind == "paced" else plan.warm_up))
