"""Where a call's CPU goes: the budget of each stage beside what was measured, and the heaviest functions.

    python benchmarks/stages.py [--cases small-16,2m-1,paced-100] [--seconds 6] [--write] [--keep FOLDER]

For each case two gateways with the defaults of `run.py` are asked in turn, four times each: one as it is shipped, whose
threads' CPU is read from the kernel, and one that samples itself (`sampling.py`), whose stacks say in which shares. The
sampler's own cost so falls out. `--write` writes stages.md and a flame graph of each case, `--keep` keeps the folded
stacks.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # started as a file: the repository is not on the path

import msgspec

from benchmarks.bodies import write_bodies
from benchmarks.budget import STAGES, heaviest, read_stacks, staged
from benchmarks.build import Unavailable, tools
from benchmarks.cases import CASES, FULL, Case
from benchmarks.contenders import OWN, Site, start_upstream
from benchmarks.flames import flame_graph
from benchmarks.launch import Launch, Place, Running, launched
from benchmarks.machine import description
from benchmarks.measure import Generator
from benchmarks.processes import allow_many_files, cores, pinned
from benchmarks.sampling import OUTPUT

HERE = Path(__file__).resolve().parent
TURNS = 4
HEAVIEST = 14


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Of one case: microseconds per call, or per chunk of a paced stream."""

    case: Case
    loop: float
    writer: float
    stages: dict[str, float]
    functions: tuple[tuple[str, float, float], ...]

    @property
    def unit(self) -> str:
        return "chunk" if self.case.kind != "json" else "call"


def thread_us(pid: int) -> tuple[float, float]:
    """CPU microseconds of the main thread so far, and of all others."""
    spent = {
        int(task.name): int((task / "schedstat").read_text().split()[0]) / 1e3
        for task in Path(f"/proc/{pid}/task").iterdir()
    }
    main = spent.pop(pid)
    return main, sum(spent.values())


def sampled(place: Place) -> Launch:
    """The same gateway, which samples itself into its folder."""
    line = OWN["weirgate"](place).line
    script = (sys.executable, str(HERE / "sampling.py"), str(place.folder))
    return Launch(line=(*script, *line[1:]), environment={**os.environ, "PYTHONPATH": str(HERE.parent)})


def measure(case: Case, seconds: float, site: Site, generator: Generator) -> tuple[Found, str]:
    """What was found, and the folded stacks. Raises Unavailable where an answer was wrong."""
    with ExitStack() as stack:
        plain_place, own_place = site.place(f"{case.name}-plain"), site.place(f"{case.name}-sampled")
        plain = launched("plain", OWN["weirgate"](plain_place), plain_place, stack, site.cores)
        own = launched("sampled", sampled(own_place), own_place, stack, site.cores)
        loop = writer = count = 0.0
        for turn in range(TURNS + 1):
            if turn == 1:
                os.kill(own.pid, signal.SIGUSR1)  # the first turn warms both
            before = thread_us(plain.pid)
            answers = _asked(case, plain, generator, seconds / TURNS / 2)
            after = thread_us(plain.pid)
            _asked(case, own, generator, seconds / TURNS / 2)
            if turn:
                loop, writer, count = loop + after[0] - before[0], writer + after[1] - before[1], count + answers
    folded = (own_place.folder / OUTPUT).read_text()  # it is written when the gateway has stopped
    stacks = read_stacks(folded.splitlines())
    if not stacks:
        raise Unavailable(f"{case.name}: nothing was sampled")
    stages = staged(stacks, loop / count, writer / count)
    functions = tuple(heaviest(stacks, HEAVIEST))
    return Found(case=case, loop=loop / count, writer=writer / count, stages=stages, functions=functions), folded


def _asked(case: Case, running: Running, generator: Generator, seconds: float) -> float:
    """How many right answers, or chunks, came."""
    mode = "json" if case.kind == "json" else "sse"
    load = generator.load(running, case.body, mode, case.in_flight, seconds)
    if load.errors or not load.requests:
        raise Unavailable(f"{case.name}: {load.first_error or 'no answer'}")
    return float(load.chunks if load.chunks else load.requests)


def report(found: Sequence[Found], machine: Sequence[str]) -> str:
    """In Markdown."""
    heads = [f"{one.case.name}, us/{one.unit}" for one in found]
    lines = [
        "# Where a call's CPU goes",
        "",
        "Made by `python benchmarks/stages.py --write`. CPU microseconds, kernel time included.",
        "The budget is the design's for a call of 1 KB with 16 in flight, made elsewhere: compare shares, not sums.",
        "",
        *(f"- {line}" for line in machine),
        "",
        f"| stage | budget, 1 KB | {' | '.join(heads)} |",
        f"| --- | ---: | {' | '.join('---:' for _ in heads)} |",
    ]
    for stage in STAGES:
        budget = f"{stage.small:g}" if stage.small is not None else ""
        lines.append(f"| {stage.name} | {budget} | {' | '.join(f'{one.stages[stage.name]:.1f}' for one in found)} |")
    whole = sum(stage.small or 0.0 for stage in STAGES)
    lines.append(f"| sum | {whole:g} | {' | '.join(f'{one.loop + one.writer:.1f}' for one in found)} |")
    for one in found:
        lines += [
            "",
            f"## {one.case.name}: {one.case.title}",
            "",
            f"![Flame graph](flames/{_picture(one.case).name})",
            "",
            "| function | own share | with what it calls |",
            "| --- | ---: | ---: |",
            *(f"| `{name}` | {own:.1%} | {within:.1%} |" for name, own, within in one.functions),
        ]
    return "\n".join([*lines, ""])


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--cases", default="small-16,2m-1,paced-100", metavar="A,B", help="cases of run.py")
    parser.add_argument("--seconds", type=float, default=6.0, help="of load per case, for both gateways together")
    parser.add_argument("--write", action="store_true", help="write benchmarks/stages.md and its pictures")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the folded stacks, a file for each case")
    return parser.parse_args()


def main() -> int:
    arguments = parse()
    allow_many_files()
    places = cores()
    cases = [case for case in CASES if case.name in arguments.cases.split(",")]
    machine = description(places)
    found: list[tuple[Found, str]] = []
    try:
        built = tools()
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weirgate-stages-")))
            bodies = write_bodies(folder, paced_chunks=FULL.paced_chunks, held_chunks=FULL.held_chunks)
            direct = start_upstream(built.upstream, stack, folder, places)
            site = Site(folder=folder, upstream=direct.port, models=bodies.models, cores=places)
            generator = Generator(program=built.load, bodies=bodies, cores=places)
            stack.enter_context(pinned(places.rest))
            for case in cases:
                found.append(measure(case, arguments.seconds, site, generator))
    except (Unavailable, OSError, RuntimeError) as problem:
        print(problem)
        return 2
    text = report([one for one, _ in found], machine)
    print(text)
    for one, folded in found:
        if arguments.keep:
            arguments.keep.mkdir(parents=True, exist_ok=True)
            (arguments.keep / f"{one.case.name}.txt").write_text(folded)
        if arguments.write:
            title = f"{one.case.title}, {one.case.in_flight} in flight: the event loop's thread"
            _picture(one.case).write_text(flame_graph(title, read_stacks(folded.splitlines())))
    if arguments.write:
        (HERE / "stages.md").write_text(text)
    return 0


def _picture(case: Case) -> Path:
    return HERE / "flames" / f"{case.name}.svg"


if __name__ == "__main__":
    sys.exit(main())
