"""One sample: the generator against one contender, and what the contender's processes used meanwhile. And medians."""

from __future__ import annotations

import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.bodies import Bodies
from benchmarks.cases import Case
from benchmarks.contenders import CHAT, Running
from benchmarks.processes import Cores, cpu_ns, pinned, tree


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What load.c prints; times in microseconds. `requests` counts whole, right answers only."""

    requests: int
    seconds: float
    rps: float
    p50_us: float
    p90_us: float
    p99_us: float
    chunks: int
    chunks_per_s: float
    ttfb_p50_us: float
    delay_p50_us: float
    delay_p99_us: float
    errors: int
    reconnects: int
    first_error: str


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    load: Load
    cpu_us: float  # of the contender's processes, per whole answer
    chunk_cpu_us: float  # the same per chunk; 0 without chunks


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """The medians of a contender's samples in one case. Times in microseconds; errors are the sum of all samples."""

    contender: str
    samples: int
    rps: float
    p50_us: float
    p99_us: float
    cpu_us: float
    chunk_cpu_us: float
    chunks_per_s: float
    ttfb_p50_us: float
    delay_p50_us: float
    delay_p99_us: float
    errors: int
    first_error: str


class Generator(msgspec.Struct, frozen=True, kw_only=True):
    """How load is made: the compiled generator, its bodies and its core."""

    program: Path
    bodies: Bodies
    cores: Cores

    def sample(self, case: Case, contender: Running, seconds: float) -> Sample:
        """Raises RuntimeError where the generator itself fails (never because of what the contender answers)."""
        mode = "json" if case.kind == "json" else "sse"
        files = [str(file) for file in self.bodies.files[case.body]]
        command = [str(self.program), "127.0.0.1", str(contender.port), CHAT, mode, str(case.in_flight), str(seconds)]
        processes = tree(contender.pid)
        before = cpu_ns(processes)
        with pinned(self.cores.rest):
            done = subprocess.run(command + files, capture_output=True, timeout=seconds + 60)
        used = (cpu_ns(processes) - before) / 1e3
        if done.returncode != 0:
            raise RuntimeError(f"the generator failed: {done.stderr.decode(errors='replace').strip()}")
        load = msgspec.json.decode(done.stdout, type=Load)
        return Sample(
            load=load,
            cpu_us=used / load.requests if load.requests else 0.0,
            chunk_cpu_us=used / load.chunks if load.chunks else 0.0,
        )


def medians(contender: str, samples: Sequence[Sample]) -> Row:
    """Of each figure on its own. A sample without one whole answer has no figures, only errors."""
    whole = [sample for sample in samples if sample.load.requests]

    def median(values: list[float]) -> float:
        return statistics.median(values) if values else 0.0

    return Row(
        contender=contender,
        samples=len(whole),
        rps=median([sample.load.rps for sample in whole]),
        p50_us=median([sample.load.p50_us for sample in whole]),
        p99_us=median([sample.load.p99_us for sample in whole]),
        cpu_us=median([sample.cpu_us for sample in whole]),
        chunk_cpu_us=median([sample.chunk_cpu_us for sample in whole]),
        chunks_per_s=median([sample.load.chunks_per_s for sample in whole]),
        ttfb_p50_us=median([sample.load.ttfb_p50_us for sample in whole]),
        delay_p50_us=median([sample.load.delay_p50_us for sample in whole]),
        delay_p99_us=median([sample.load.delay_p99_us for sample in whole]),
        errors=sum(sample.load.errors for sample in samples),
        first_error=next((sample.load.first_error for sample in samples if sample.load.first_error), ""),
    )
