"""One sample: the generator against one contender, and what the contender's processes used meanwhile. And medians."""

from __future__ import annotations

import contextlib
import statistics
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from benchmarks.bodies import Bodies
from benchmarks.cases import Case, Plan, sample_seconds, stream_seconds
from benchmarks.launch import CHAT, Running
from benchmarks.processes import Cores, cpu_ns, pinned, tree

DRAIN_SECONDS = 60.0  # what is in flight at the end of a sample is waited for


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
    beside: Load | None = None  # what the client beside it got


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
    beside_rps: float = 0.0


class Generator(msgspec.Struct, frozen=True, kw_only=True):
    """How load is made: the compiled generator, its bodies and its core."""

    program: Path
    bodies: Bodies
    cores: Cores

    def command(self, contender: Running, body: str, mode: str, in_flight: int, seconds: float) -> tuple[str, ...]:
        headers = [part for line in contender.headers for part in ("-H", line)]
        files = [str(file) for file in self.bodies.files[body]]
        address = ("127.0.0.1", str(contender.port), CHAT)
        return (str(self.program), *headers, *address, mode, str(in_flight), str(seconds), *files)

    @contextlib.contextmanager
    def running(
        self, contender: Running, body: str, mode: str, in_flight: int, seconds: float
    ) -> Iterator[subprocess.Popen[bytes]]:
        """A generator at work; it is gone when the block is left."""
        command = self.command(contender, body, mode, in_flight, seconds)
        with pinned(self.cores.rest):
            started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        with started as process:
            try:
                yield process
            finally:
                process.kill()

    def load(self, contender: Running, body: str, mode: str, in_flight: int, seconds: float) -> Load:
        """Raises RuntimeError where the generator itself fails (never because of what the contender answers)."""
        with self.running(contender, body, mode, in_flight, seconds) as process:
            return result(process, seconds)

    def sample(self, case: Case, contender: Running, plan: Plan, seconds: float | None = None) -> Sample:
        """Raises RuntimeError as `load` does. `seconds`: other than the plan's."""
        seconds = sample_seconds(case, plan) if seconds is None else seconds
        mode = "json" if case.kind == "json" else "sse"
        processes = tree(contender.pid)
        before = cpu_ns(processes)
        beside = None
        if case.beside:
            with self.running(contender, case.beside, "json", 1, seconds + stream_seconds(plan)) as process:
                load = self.load(contender, case.body, mode, case.in_flight, seconds)
                beside = result(process, seconds)
        else:
            load = self.load(contender, case.body, mode, case.in_flight, seconds)
        used = (cpu_ns(processes) - before) / 1e3
        return Sample(
            load=load,
            cpu_us=used / load.requests if load.requests else 0.0,
            chunk_cpu_us=used / load.chunks if load.chunks and not beside else 0.0,
            beside=beside,
        )


def result(process: subprocess.Popen[bytes], seconds: float) -> Load:
    """What a generator that was started for `seconds` found. Raises RuntimeError where it failed."""
    said, complained = process.communicate(timeout=seconds + DRAIN_SECONDS)
    if process.returncode != 0:
        raise RuntimeError(f"the generator failed: {complained.decode(errors='replace').strip()}")
    return msgspec.json.decode(said, type=Load)


def medians(contender: str, samples: Sequence[Sample]) -> Row:
    """Of each figure on its own. A sample without one whole answer has no figures, only errors."""
    whole = [sample for sample in samples if sample.load.requests]
    beside = [sample.beside for sample in samples if sample.beside is not None]
    every = [sample.load for sample in samples] + beside

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
        errors=sum(load.errors for load in every),
        first_error=next((load.first_error for load in every if load.first_error), ""),
        beside_rps=median([load.rps for load in beside]),
    )
