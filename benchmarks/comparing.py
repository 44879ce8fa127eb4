"""The CPU of two calls, one against the other: rounds of fresh processes until the ratio's interval is narrow.

The two sides of a pair are asked one after the other, in turn first and second, and only their ratio of one round is
kept: a machine that is slower for a minute is slower for both. Both gateways are started anew for every round, because
two processes of the very same code differ by a percent or two for as long as they live.
"""

from __future__ import annotations

import http.client
import math
import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Protocol

import msgspec

from benchmarks.agents import LAYERS_TOKENS, prompt_tokens
from benchmarks.build import Unavailable
from benchmarks.cases import Case, Plan
from benchmarks.launch import Running, answer
from benchmarks.measure import Generator
from benchmarks.pairs import Pair, Side

FEWEST = 5  # rounds: of fewer, no interval can be told
CONFIDENCE = 0.93  # that the interval holds the true median: what five rounds give with their extremes
FIRST_ANSWER_SECONDS = 120.0


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """`ratios` of the rounds, in their order. `why` it was not measured. `problem`: answers were wrong."""

    pair: Pair
    ratios: tuple[float, ...] = ()
    why: str = ""
    problem: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.ratios) if self.ratios else 0.0

    @property
    def word(self) -> str:
        """gate, missed, or what keeps it from being told."""
        if self.problem or self.why:
            return f"not measured: {self.problem or self.why}"
        return verdict(self.ratios, self.pair.gate, self.pair.spread)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """From the k-th smallest to the k-th largest, with the largest k for which the median of what they were drawn from
    lies between them with CONFIDENCE, whatever its distribution; their extremes where even those say less."""
    ordered = sorted(values)
    number, k, outside = len(ordered), 0, 0.0
    while k < (number - 1) // 2:
        outside += 2 * math.comb(number, k) / 2**number
        if k and 1 - outside < CONFIDENCE:
            break
        k += 1
    k = max(k, 1)
    return ordered[k - 1], ordered[-k]


def verdict(ratios: Sequence[float], gate: float, spread: float) -> str:
    """`gate` or `missed` where the whole interval says so, or it is narrow and the median does."""
    if len(ratios) < FEWEST:
        return f"too few rounds: {len(ratios)} of {FEWEST}"
    low, high = interval(ratios)
    if low <= gate < high and high - low > spread:
        return "hidden by noise"
    return "gate" if statistics.median(ratios) <= gate else "missed"


def settled(ratios: Sequence[float], plan: Plan, spread: float) -> bool:
    """Whether no more rounds are wanted. It looks at the spread, never at the gate: who stops at a liked figure is
    fooled by it."""
    if len(ratios) >= plan.most_pair_rounds:
        return True
    if len(ratios) < plan.pair_rounds:
        return False
    low, high = interval(ratios)
    return high - low <= spread


class Start(Protocol):
    def __call__(self, kind: str, serial: int, stack: ExitStack) -> Running: ...


def proven(pair: Pair, running: dict[str, Running], generator: Generator) -> str:
    """'' where the upstream gets of both what the pair says; else why the pair means nothing. Asks each side once."""
    sent: list[int] = []
    for side in (pair.mine, pair.other):
        body = generator.bodies.files[side.body][0].read_bytes()
        gateway = running[side.gateway]
        try:
            came = answer(gateway.port, body, gateway.headers, FIRST_ANSWER_SECONDS)
        except (OSError, http.client.HTTPException) as problem:
            return f"{side.gateway}, {side.body}: {problem}"
        if came.status != 200:
            return f"{side.gateway}, {side.body}: {came.status} {came.content[:200].decode(errors='replace')}"
        sent.append(prompt_tokens(came.content))
    mine, other = sent
    if {"anything": True, "layers": mine > other + LAYERS_TOKENS, "less": mine < other}[pair.sends]:
        return ""
    wanted = {"layers": f"{LAYERS_TOKENS} tokens more", "less": "less"}.get(pair.sends, "anything")
    return f"the upstream was to get {wanted} of {pair.mine.body}, and got {mine} tokens against {other}"


def _cost(pair: Pair, side: Side, running: dict[str, Running], generator: Generator, plan: Plan) -> tuple[float, str]:
    """CPU per right answer, and what was wrong."""
    case = Case(name=pair.what, title="", body=side.body, in_flight=pair.in_flight, kind=pair.kind)
    sample = generator.sample(case, running[side.gateway], plan)
    wrong = sample.load.errors or not sample.load.requests
    return sample.cpu_us, f"{side.gateway}, {side.body}: {sample.load.first_error or 'no answer'}" if wrong else ""


def _round(found: Comparison, number: int, running: dict[str, Running], generator: Generator, plan: Plan) -> Comparison:
    """One ratio more, or why there is none."""
    pair = found.pair
    if problem := proven(pair, running, generator):
        return msgspec.structs.replace(found, problem=problem)
    costs: dict[Side, float] = {}
    for side in (pair.mine, pair.other):
        case = Case(name=pair.what, title="", body=side.body, in_flight=pair.in_flight, kind=pair.kind)
        generator.sample(case, running[side.gateway], plan, plan.warm_up)
    for side in (pair.mine, pair.other) if number % 2 else (pair.other, pair.mine):
        costs[side], problem = _cost(pair, side, running, generator, plan)
        if problem:
            return msgspec.structs.replace(found, problem=problem)
    return msgspec.structs.replace(found, ratios=(*found.ratios, costs[pair.mine] / costs[pair.other]))


def compare_pairs(
    pairs: Sequence[Pair], start: Start, generator: Generator, plan: Plan, say: Callable[[str], None]
) -> tuple[Comparison, ...]:
    """Rounds over all pairs that are not settled, until all are."""
    found = {pair: Comparison(pair=pair) for pair in pairs}
    for number in range(plan.most_pair_rounds):
        wanted = [one for one in found.values() if not _ended(one, plan)]
        if not wanted:
            break
        with ExitStack() as stack:
            running: dict[str, Running] = {}
            missing: dict[str, str] = {}
            for kind in dict.fromkeys(side.gateway for one in wanted for side in (one.pair.mine, one.pair.other)):
                say(f"comparing, round {number + 1}: {kind} starts")
                try:
                    running[kind] = start(kind, number, stack)
                except (Unavailable, OSError) as problem:
                    missing[kind] = f"{kind}: {problem}".replace("\n", " ")
            for one in wanted:
                say(f"comparing, round {number + 1}: {one.pair.what}")
                why = next(
                    (missing[side.gateway] for side in (one.pair.mine, one.pair.other) if side.gateway in missing), ""
                )
                found[one.pair] = (
                    msgspec.structs.replace(one, why=why) if why else _round(one, number, running, generator, plan)
                )
    return tuple(found.values())


def _ended(one: Comparison, plan: Plan) -> bool:
    return bool(one.why or one.problem) or settled(one.ratios, plan, one.pair.spread)
