"""What is asked of every contender. A case is a body, a number in flight and a time."""

from __future__ import annotations

from typing import Literal

import msgspec


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """`body` names a series of bodies.py."""

    name: str
    title: str
    body: str
    in_flight: int
    kind: Literal["json", "burst", "paced"] = "json"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How long a run may take: rounds per case, seconds per sample, discarded seconds before the first, and the length
    of a paced stream in chunks of 20 ms."""

    rounds: int
    seconds: float
    warm_up: float
    paced_chunks: int
    paced_start: float  # seconds over which paced streams start


FULL = Plan(rounds=3, seconds=0.9, warm_up=0.2, paced_chunks=150, paced_start=1.0)
QUICK = Plan(rounds=1, seconds=0.5, warm_up=0.1, paced_chunks=50, paced_start=0.5)

CASES = (
    Case(name="small-1", title="1 KB, 3 messages", body="1 KB", in_flight=1),
    Case(name="small-16", title="1 KB, 3 messages", body="1 KB", in_flight=16),
    Case(name="small-64", title="1 KB, 3 messages", body="1 KB", in_flight=64),
    Case(name="300k-1", title="300 KB, 150 messages", body="300 KB", in_flight=1),
    Case(name="300k-16", title="300 KB, 150 messages", body="300 KB", in_flight=16),
    Case(name="2m-1", title="2 MB, 400 messages", body="2 MB", in_flight=1),
    Case(name="2m-16", title="2 MB, 400 messages", body="2 MB", in_flight=16),
    Case(name="grown-1", title="2 MB, grown by one", body="2 MB grown", in_flight=1),
    Case(name="burst-1", title="burst of 200 chunks", body="burst", in_flight=1, kind="burst"),
    Case(name="burst-8", title="burst of 200 chunks", body="burst", in_flight=8, kind="burst"),
    Case(name="paced-100", title="paced, 50 chunks/s", body="paced", in_flight=100, kind="paced"),
)


def chosen(wanted: str) -> tuple[Case, ...]:
    """The cases that the comma-separated words name, each whole or by its beginning; all for an empty string. Raises
    ValueError on a word that names none."""
    picked: set[str] = set()
    for word in filter(None, (part.strip() for part in wanted.split(","))):
        names = [case.name for case in CASES if case.name.startswith(word)]
        if not names:
            raise ValueError(f"no case begins with {word!r}; there are: {', '.join(case.name for case in CASES)}")
        picked.update([word] if word in names else names)
    return tuple(case for case in CASES if not picked or case.name in picked)


def sample_seconds(case: Case, plan: Plan) -> float:
    """How long the generator starts new requests for."""
    return plan.paced_start if case.kind == "paced" else plan.seconds


def expected_seconds(case: Case, plan: Plan, contenders: int) -> float:
    """About how long the case takes in all."""
    sample = sample_seconds(case, plan) + (plan.paced_chunks * 0.02 if case.kind == "paced" else 0.0)
    return contenders * (plan.rounds * (sample + 0.05) + (0.0 if case.kind == "paced" else plan.warm_up))
