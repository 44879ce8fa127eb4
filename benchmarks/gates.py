"""The gates: what the gateway must reach, what it aims at, and what this run says of each.

A gate is a promise and is never changed to fit a run; one that a machine's noise hides is repeated. What was not
measured says why, and is neither reached nor missed. None of this fails a test.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from benchmarks.findings import Findings
from benchmarks.measure import Row
from benchmarks.memory import Memory
from benchmarks.peers import NAMES as PEER_NAMES
from benchmarks.ratios import Figure, over

GATEWAY, YARDSTICK, LITELLM = "weirgate", "pass-through", "litellm"

Unit = Literal["x", "1/", "KB", "MB", "ms"]
Measured = float | str  # a figure in the gate's unit, or why there is none


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """`measure` gives the figure, or the reason why this run has none. Unit '1/': a ratio below 1, shown as a part."""

    what: str
    unit: Unit
    gate: float
    stretch: float
    measure: Callable[[Findings], Measured]
    more_is_better: bool = False


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    gate: Gate
    measured: Measured

    @property
    def word(self) -> str:
        """stretch, gate, missed; or 'not measured' and the reason."""
        if isinstance(self.measured, str):
            return f"not measured: {self.measured}"
        if self._reaches(self.measured, self.gate.stretch):
            return "stretch"
        return "gate" if self._reaches(self.measured, self.gate.gate) else "missed"

    def _reaches(self, figure: float, bound: float) -> bool:
        return figure >= bound if self.gate.more_is_better else figure <= bound


# -- what a run has, or why not --------------------------------------------------------------------------------------


def _absent(findings: Findings, contender: str) -> str:
    """Why a contender is not there; '' if it is."""
    if findings.field.named(contender) is not None:
        return ""
    if contender not in findings.asked:
        return "PEERS=1" if contender in PEER_NAMES else f"{contender} was not asked"
    return f"{contender} {findings.field.why_missing(contender) or 'does not run'}"


def _row(findings: Findings, case: str, contender: str) -> Row | str:
    absent = _absent(findings, contender)
    row = findings.results.get(case, {}).get(contender)
    if absent or row is None:
        return absent or f"case {case} was not asked"
    if contender == GATEWAY and case in findings.void:
        return findings.void[case]
    if row.errors or not row.samples:
        return f"{contender} gave wrong answers in {case}"
    return row


def _ratio(case: str, figure: Figure, against: str) -> Callable[[Findings], Measured]:
    """The gateway's figure over another contender's in one case."""

    def measure(findings: Findings) -> Measured:
        needed = (GATEWAY, against, "direct") if figure == "added_p50" else (GATEWAY, against)
        for contender in needed:  # who is not there at all is the better reason
            if absent := _absent(findings, contender):
                return absent
        for contender in needed:
            row = _row(findings, case, contender)
            if isinstance(row, str):
                return row
        ratio = over(findings.results[case], GATEWAY, against, figure)
        return "lost in the noise" if ratio is None else ratio

    return measure


def _flat_cpu(many: str, few: str) -> Callable[[Findings], Measured]:
    """The gateway's CPU per call in one case over that in another."""

    def measure(findings: Findings) -> Measured:
        first, second = _row(findings, many, GATEWAY), _row(findings, few, GATEWAY)
        if isinstance(first, str):
            return first
        return second if isinstance(second, str) else first.cpu_us / second.cpu_us

    return measure


def _worst_delay(*cases: str) -> Callable[[Findings], Measured]:
    """The longest of the 99th percentiles, in ms."""

    def measure(findings: Findings) -> Measured:
        worst = 0.0
        for case in cases:
            row = _row(findings, case, GATEWAY)
            if isinstance(row, str):
                return row
            worst = max(worst, row.delay_p99_us / 1e3)
        return worst

    return measure


def _capacity(findings: Findings) -> Measured:
    by_name = {one.contender: one for one in findings.capacity}
    for name in (GATEWAY, YARDSTICK):
        if name not in by_name:
            return _absent(findings, name) or "capacity was not asked"
        if not by_name[name].streams:
            return f"{name} carried none"
    if by_name[YARDSTICK].bounded:
        return f"{YARDSTICK} carries more than was tried or than the tools can make"
    return by_name[GATEWAY].streams / by_name[YARDSTICK].streams


def _memory(findings: Findings) -> Memory | str:
    found = next((one for one in findings.memory if one.contender == GATEWAY), None)
    return found if found is not None else _absent(findings, GATEWAY) or "memory was not asked"


def _stream_kb(findings: Findings) -> Measured:
    memory = _memory(findings)
    if isinstance(memory, str):
        return memory
    return memory.stream / 1024 if memory.stream else memory.problem or "lost in the noise"


def _idle_mb(findings: Findings) -> Measured:
    """Of the fresh process, else of the one that then ran the cases: the same moment of its life."""
    memory, running = _memory(findings), findings.field.named(GATEWAY)
    if isinstance(memory, Memory) and memory.idle:
        return memory.idle / 2**20
    return running.idle_rss / 2**20 if running is not None else _absent(findings, GATEWAY)


def _start_up(findings: Findings) -> Measured:
    mine, other = findings.field.named(GATEWAY), findings.field.named(LITELLM)
    if mine is None or other is None:
        return _absent(findings, GATEWAY) or _absent(findings, LITELLM)
    return mine.startup_s / other.startup_s


# -- the gates -------------------------------------------------------------------------------------------------------


def _faster(what: str, case: str, gate: float, stretch: float) -> Gate:
    what = f"requests/s, {what}, against LiteLLM"
    measure = _ratio(case, "rps", LITELLM)
    return Gate(what=what, unit="x", gate=gate, stretch=stretch, measure=measure, more_is_better=True)


def _cpu(what: str, case: str, gate: float, stretch: float) -> Gate:
    measure = _ratio(case, "cpu_us", YARDSTICK)
    return Gate(what=f"CPU, {what}, against the pass-through", unit="x", gate=gate, stretch=stretch, measure=measure)


GATES = (
    _faster("1 KB, 16 in flight, rows durable", "small-16", 35, 80),
    _faster("300 KB", "300k-1", 18, 35),
    _faster("2 MB grown by one message", "grown-1", 18, 30),
    _cpu("1 KB, 16 in flight", "small-16", 1.6, 1.25),
    _cpu("known 2 MB history", "2m-1", 1.5, 1.2),
    _cpu("the same with a compaction applied", "compacted-1", 1.2, 0.8),
    Gate(
        what="added p50, 1 KB, one in flight, against nginx's",
        unit="x",
        gate=4,
        stretch=2,
        measure=_ratio("small-1", "added_p50", "nginx"),
    ),
    Gate(
        what="SSE burst of 200 chunks, time against nginx",
        unit="x",
        gate=2,
        stretch=1.3,
        measure=_ratio("burst-1", "p50_us", "nginx"),
    ),
    Gate(
        what="paced streams per core, p99 delay <= 25 ms, against the pass-through",
        unit="x",
        gate=0.75,
        stretch=0.9,
        measure=_capacity,
        more_is_better=True,
    ),
    Gate(
        what="CPU per call at 256 in flight against 16",
        unit="x",
        gate=2,
        stretch=1.3,
        measure=_flat_cpu("small-256", "small-16"),
    ),
    Gate(what="memory per open stream", unit="KB", gate=40, stretch=16, measure=_stream_kb),
    Gate(
        what="p99 delay of 50 streams beside non-stop 2 MB requests",
        unit="ms",
        gate=10,
        stretch=3,
        measure=_worst_delay("beside-known", "beside-grown"),
    ),
    Gate(what="start-up against LiteLLM", unit="1/", gate=1 / 8, stretch=1 / 18, measure=_start_up),
    Gate(what="idle RSS, no token ranks loaded", unit="MB", gate=110, stretch=70, measure=_idle_mb),
)


def verdicts(findings: Findings) -> tuple[Verdict, ...]:
    """One per gate, in their order, whatever was measured."""
    return tuple(Verdict(gate=gate, measured=gate.measure(findings)) for gate in GATES)


def shown(figure: float, unit: Unit) -> str:
    """A figure as a person reads it: 41x, 1/19, 12 KB."""
    if unit == "1/":
        return f"1/{1 / figure:.3g}" if figure > 0 else "0"
    number = f"{figure:.0f}" if figure >= 100 else f"{figure:.3g}"
    return f"{number}x" if unit == "x" else f"{number} {unit}"
