"""All that a run found, as values: who ran, what was measured, and why the rest was not."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from benchmarks.capacity import Capacity
from benchmarks.cases import Case
from benchmarks.comparing import Comparison
from benchmarks.contenders import Field
from benchmarks.instructions import Counted
from benchmarks.memory import Memory
from benchmarks.ratios import Results


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """`asked`: the contenders that were wanted. `void`: case -> why the gateway's figures in it do not count.
    `commit`: short id and subject of the one that was compared with, '' where none was."""

    asked: tuple[str, ...]
    field: Field
    cases: tuple[Case, ...]
    results: Results
    capacity: tuple[Capacity, ...] = ()
    memory: tuple[Memory, ...] = ()
    loaded_rss: Mapping[str, int] = {}
    void: Mapping[str, str] = {}
    commit: str = ""
    comparisons: tuple[Comparison, ...] = ()
    counted: tuple[Counted, ...] = ()


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The findings, how they were made and on what."""

    machine: tuple[str, ...]
    command: str
    rounds: int
    findings: Findings
