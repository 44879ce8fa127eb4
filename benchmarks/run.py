"""`make bench`: the gateway beside the upstream itself, nginx and a bare pass-through, in interleaved rounds.

The order of a run is written here: build, start all, per case rounds A B C D A B C D, report, stop all. Whatever
happens, Ctrl-C and SIGTERM included, every child is stopped by its own pid and the temporary folder removed.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # started as a file: the repository is not on the path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import build, report
from benchmarks.bodies import write_bodies
from benchmarks.cases import CASES, FULL, QUICK, Case, Plan, chosen, expected_seconds, sample_seconds
from benchmarks.contenders import NAMES, Field, Running, start_all
from benchmarks.machine import description
from benchmarks.measure import Generator, Row, Sample, medians
from benchmarks.processes import cores, pinned, rss_bytes, tree

RESULTS = Path(__file__).resolve().parent / "results.md"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench ARGS=...", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one short round, about 40 s: a look, not a result")
    parser.add_argument(
        "--cases", default="", metavar="A,B", help="cases that begin with these: small, 300k, 2m-1, ..."
    )
    parser.add_argument("--contenders", default=",".join(NAMES), metavar="A,B", help="among " + ", ".join(NAMES))
    parser.add_argument("--rounds", type=int, help=f"rounds per case (default {FULL.rounds})")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.parent.name}/{RESULTS.name}")
    parser.add_argument("--list", action="store_true", help="list the cases and stop")
    return parser.parse_args()


def measured(
    case: Case, plan: Plan, field: Field, generator: Generator, tick: Progress, cores_rest: int | None
) -> dict[str, Row]:
    """The rounds of one case. A contender that gave no right answer at all is not asked again in this case."""
    seconds = sample_seconds(case, plan)
    samples: dict[str, list[Sample]] = {running.name: [] for running in field.running}
    with pinned(cores_rest):
        for number in range(plan.rounds):
            for running in field.running:
                tick.update(tick.task_ids[0], description=f"{case.name} {number + 1}/{plan.rounds} {running.name}")
                if number == 0 and case.kind != "paced":
                    generator.sample(case, running, plan.warm_up)
                if not samples[running.name] or samples[running.name][-1].load.requests:
                    samples[running.name].append(generator.sample(case, running, seconds))
                tick.advance(tick.task_ids[0])
    return {name: medians(name, taken) for name, taken in samples.items()}


def compare(plan: Plan, wanted: tuple[Case, ...], names: tuple[str, ...], console: Console) -> report.Outcome:
    """Raises build.Unavailable where there is no compiler or the fake upstream does not start."""
    places = cores()
    tools = build.tools()
    machine = description(places)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weirgate-bench-")))
        bodies = write_bodies(folder, paced_chunks=plan.paced_chunks)
        field = start_all(names, tools.upstream, stack, folder, places)
        for name, reason in field.missing:
            console.print(f"left out: {name}: {reason}", markup=False, style="yellow")
        about = sum(expected_seconds(case, plan, len(field.running)) for case in wanted)
        console.print(f"{len(wanted)} cases, {len(field.running)} contenders, about {about:.0f} s")
        generator = Generator(program=tools.load, bodies=bodies, cores=places)
        results: dict[str, dict[str, Row]] = {}
        columns = (TextColumn("{task.description:<32}"), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True) as tick:
            tick.add_task("", total=len(wanted) * len(field.running) * plan.rounds)
            for case in wanted:
                results[case.name] = measured(case, plan, field, generator, tick, places.rest)
        return report.Outcome(
            machine=machine,
            command=shown_command(),
            rounds=plan.rounds,
            field=field,
            cases=wanted,
            results=results,
            loaded_rss={running.name: weight(running) for running in field.running},
        )


def weight(running: Running) -> int:
    return rss_bytes(tree(running.pid))


def shown_command() -> str:
    arguments = " ".join(sys.argv[1:])
    return f'make bench ARGS="{arguments}"' if arguments else "make bench"


def stop_on_signals() -> None:
    """SIGTERM and SIGHUP unwind the stack as Ctrl-C does."""

    def stop(number: int, _frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)


def main() -> int:
    chosen_arguments = parse()
    if chosen_arguments.list:
        print("\n".join(f"{case.name:<10} {case.title}; {case.in_flight} in flight" for case in CASES))
        return 0
    plan = QUICK if chosen_arguments.quick else FULL
    if chosen_arguments.rounds:
        plan = msgspec.structs.replace(plan, rounds=max(1, chosen_arguments.rounds))
    console = Console(stderr=False, width=None if sys.stdout.isatty() else 132)
    names = tuple(name for name in NAMES if name in chosen_arguments.contenders.split(","))
    stop_on_signals()
    try:
        outcome = compare(plan, chosen(chosen_arguments.cases), names, console)
    except (build.Unavailable, ValueError) as problem:
        console.print(str(problem), markup=False)
        return 2
    except KeyboardInterrupt:
        console.print("stopped; nothing was written")
        return 130
    report.show(outcome, console)
    if chosen_arguments.write:
        report.write(outcome, RESULTS)
        console.print(f"written: {RESULTS.parent.name}/{RESULTS.name}")
    return 1 if report.problems(outcome) else 0


if __name__ == "__main__":
    sys.exit(main())
