"""`make bench`: the gateway beside the upstream itself, nginx, a bare pass-through and, with PEERS=1, its peers.

The order of a run is written here: build, start all, per case rounds A B C D A B C D, what is no case, report, stop
all. Whatever happens, Ctrl-C and SIGTERM included, every child is stopped by its own pid and the temporary folder
removed.
"""

from __future__ import annotations

import argparse
import http.client
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # started as a file: the repository is not on the path

import msgspec
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from benchmarks import build, gateways, memory, peers, report
from benchmarks.agents import with_agent_bodies
from benchmarks.bodies import write_bodies
from benchmarks.capacity import Capacity, climbers, measure_capacity
from benchmarks.cases import (
    AGAINST,
    CAPACITY,
    CASES,
    FULL,
    LAYERS,
    MEMORY,
    PROBES,
    QUICK,
    REMEMBERED,
    Case,
    Plan,
    chosen,
    expected_seconds,
)
from benchmarks.comparing import Comparison, compare_pairs
from benchmarks.contenders import NAMES, OWN_NAMES, Field, Site, start_all, start_upstream
from benchmarks.findings import Findings, Outcome
from benchmarks.instructions import count_pairs, countable
from benchmarks.launch import Running, asked
from benchmarks.machine import description
from benchmarks.measure import Generator, Row, Sample, medians
from benchmarks.pairs import PAIRS
from benchmarks.processes import allow_many_files, cores, pinned

RESULTS = Path(__file__).resolve().parent / "results.md"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench ARGS=...", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one short round, under two minutes: a look, not a result")
    parser.add_argument(
        "--cases", default="", metavar="A,B", help="cases that begin with these: small, 300k, 2m-1, capacity, ..."
    )
    parser.add_argument("--contenders", default=",".join(OWN_NAMES), metavar="A,B", help="among " + ", ".join(NAMES))
    parser.add_argument("--peers", action="store_true", help="the peers too, installed where they are not yet")
    parser.add_argument(
        "--rounds",
        type=int,
        help=f"rounds per case (default {FULL.rounds}); of a comparison five times as many at most",
    )
    parser.add_argument("--against", default="", metavar="COMMIT", help="compare the gateway with that of a commit")
    parser.add_argument("--instructions", action="store_true", help="count what compared calls take, under valgrind")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.parent.name}/{RESULTS.name}")
    parser.add_argument("--list", action="store_true", help="list the cases and stop")
    return parser.parse_args()


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for on the command line. `against`: a commit, or ''."""

    plan: Plan
    cases: tuple[Case, ...]
    probes: frozenset[str]
    names: tuple[str, ...]
    against: str
    instructions: bool


def ordered(arguments: argparse.Namespace) -> Order:
    """Raises ValueError on a case that is none."""
    plan = QUICK if arguments.quick else FULL
    if arguments.rounds:
        rounds = max(1, arguments.rounds)
        fewest, most = max(rounds, FULL.pair_rounds), rounds * FULL.pair_rounds
        plan = msgspec.structs.replace(plan, rounds=rounds, pair_rounds=fewest, most_pair_rounds=most)
    wanted = {*arguments.contenders.split(","), *(peers.NAMES if arguments.peers else ())}
    cases, probes = chosen(arguments.cases)
    return Order(
        plan=plan,
        cases=cases,
        probes=probes | ({AGAINST} if arguments.against else set()),
        names=tuple(name for name in NAMES if name in wanted),
        against=arguments.against,
        instructions=arguments.instructions,
    )


def measured(
    case: Case, plan: Plan, running: tuple[Running, ...], generator: Generator, say: Callable[[str], None]
) -> dict[str, Row]:
    """The rounds of one case. A contender that gave no right answer at all is not asked again in this case."""
    samples: dict[str, list[Sample]] = {one.name: [] for one in running}
    for number in range(plan.rounds):
        for one in running:
            say(f"{case.name} {number + 1}/{plan.rounds} {one.name}")
            if number == 0 and case.kind != "paced":
                generator.sample(case, one, plan, plan.warm_up)
            if not samples[one.name] or samples[one.name][-1].load.requests:
                samples[one.name].append(generator.sample(case, one, plan))
    return {name: medians(name, taken) for name, taken in samples.items()}


def without_notes(case: Case, gateway: Running, generator: Generator) -> str:
    """Compacts the case's history by asking twice; why the gateway does not answer from notes, or '' if it does."""
    body = generator.bodies.files[case.body][0].read_bytes()
    try:
        asked(gateway.port, body, timeout=60)
        said = asked(gateway.port, body, timeout=60)[1].get("x-weirgate-context", "")
    except (OSError, http.client.HTTPException) as problem:
        return f"the history could not be compacted: {problem}"
    applied = "compaction=" in said and "compaction=none" not in said
    return "" if applied else f"no compaction was applied ({said or 'no x-weirgate-context'})"


def measure_cases(
    plan: Plan, wanted: tuple[Case, ...], running: tuple[Running, ...], generator: Generator, say: Callable[[str], None]
) -> tuple[dict[str, dict[str, Row]], dict[str, str]]:
    """Case -> contender -> row, and case -> why the gateway's row does not count."""
    results: dict[str, dict[str, Row]] = {}
    void: dict[str, str] = {}
    gateway = next((one for one in running if one.name == "weirgate"), None)
    for case in wanted:
        if case.notes and gateway is not None:
            reason = without_notes(case, gateway, generator)
            void |= {case.name: reason} if reason else {}
        results[case.name] = measured(case, plan, asked_in(case, running), generator, say)
    return results, void


def asked_in(case: Case, running: tuple[Running, ...]) -> tuple[Running, ...]:
    return tuple(one for one in running if case.peers or one.name in OWN_NAMES)


def compare(order: Order, console: Console) -> Outcome:
    """Raises build.Unavailable where there is no compiler, no such commit, or the fake upstream does not start."""
    places = cores()
    commit, title = gateways.resolved(order.against) if order.against else ("", "")
    tools = build.tools()
    machine = description(places)
    plan = order.plan
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weirgate-bench-")))
        bodies = write_bodies(folder, paced_chunks=plan.paced_chunks, held_chunks=plan.held_chunks)
        direct = start_upstream(tools.upstream, stack, folder, places)
        site = Site(folder=folder, upstream=direct.port, models=bodies.models, cores=places)
        field = start_all(order.names, direct, stack, site, lambda text: console.print(text, markup=False, style="dim"))
        for name, reason in field.missing:
            console.print(f"left out: {name}: {reason}", markup=False, style="yellow")
        about = sum(expected_seconds(case, plan, len(asked_in(case, field.running))) for case in order.cases)
        console.print(
            f"{len(order.cases)} cases, {len(field.running)} contenders, about {about:.0f} s; "
            f"then {probes_text(order.probes)}"
        )
        generator = Generator(program=tools.load, bodies=bodies, cores=places)
        with Progress(
            TextColumn("{task.description:<40}"), TimeElapsedColumn(), console=console, transient=True
        ) as tick:
            task = tick.add_task("")

            def say(text: str) -> None:
                tick.update(task, description=text)

            stack.enter_context(pinned(places.rest))
            findings = measured_field(order, field, direct, site, generator, say)
            findings = measured_pairs(order, findings, commit, site, generator, say)
    findings = msgspec.structs.replace(findings, commit=title)
    return Outcome(machine=machine, command=shown_command(), rounds=plan.rounds, findings=findings)


def measured_field(
    order: Order, field: Field, direct: Running, site: Site, generator: Generator, say: Callable[[str], None]
) -> Findings:
    """The cases of all contenders, and the probes that ask them."""
    plan = order.plan
    results, void = measure_cases(plan, order.cases, field.running, generator, say)
    loaded = {running.name: running.rss for running in field.running}
    capacity: tuple[Capacity, ...] = ()
    if CAPACITY in order.probes:
        capacity = measure_capacity(climbers(field.running, OWN_NAMES), direct, generator, plan, say)
    weights: tuple[memory.Memory, ...] = ()
    if MEMORY in order.probes:
        fresh = [name for name in memory.CONTENDERS if name in order.names]
        weights = memory.measure_memory(fresh, site, generator, plan, say)
    return Findings(
        asked=order.names,
        field=field,
        cases=order.cases,
        results=results,
        capacity=capacity,
        memory=weights,
        loaded_rss=loaded,
        void=void,
    )


def measured_pairs(
    order: Order, findings: Findings, commit: str, site: Site, generator: Generator, say: Callable[[str], None]
) -> Findings:
    """The findings and what the gateway's own calls cost, one against another."""
    pairs = tuple(pair for pair in PAIRS if pair.probe in order.probes)
    if not pairs:
        return findings
    if "weirgate" not in order.names:
        absent = tuple(Comparison(pair=pair, why="weirgate was not asked") for pair in pairs)
        return msgspec.structs.replace(findings, comparisons=absent)
    if any(pair.probe in (LAYERS, REMEMBERED) for pair in pairs):
        bodies = with_agent_bodies(generator.bodies, site.folder)
        generator = msgspec.structs.replace(generator, bodies=bodies)
    with ExitStack() as stack:
        say("copying sources")
        own = gateways.gateways(site, commit, stack)
        counted = count_pairs(countable(pairs), own, generator, say) if order.instructions else ()
        comparisons = compare_pairs(pairs, own.start, generator, order.plan, say)
        return msgspec.structs.replace(findings, comparisons=comparisons, counted=counted)


def probes_text(probes: frozenset[str]) -> str:
    return " and ".join(sorted(probes)) or "nothing else"


def shown_command() -> str:
    given = sys.argv[1:]
    words = ["make bench"]
    if "--peers" in given:
        given.remove("--peers")
        words.append("PEERS=1")
    if "--against" in given[:-1]:
        place = given.index("--against")
        words.append(f"AGAINST={given[place + 1]}")
        del given[place : place + 2]
    arguments = " ".join(given)
    return " ".join([*words, *([f'ARGS="{arguments}"'] if arguments else [])])


def stop_on_signals() -> None:
    """SIGTERM and SIGHUP unwind the stack as Ctrl-C does; more of them do not cut the unwinding short (`timeout` sends
    two at once)."""

    def stop(number: int, _frame: FrameType | None) -> NoReturn:
        for more in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(more, signal.SIG_IGN)
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)


def listing() -> str:
    cases = [f"{case.name:<14} {case.title}; {case.in_flight} in flight" for case in CASES]
    return "\n".join([*cases, *(f"{name:<14} {about}" for name, about in PROBES.items())])


def main() -> int:
    arguments = parse()
    if arguments.list:
        print(listing())
        return 0
    console = Console(stderr=False, width=None if sys.stdout.isatty() else 140)
    stop_on_signals()
    allow_many_files()
    try:
        outcome = compare(ordered(arguments), console)
    except (build.Unavailable, ValueError) as problem:
        console.print(str(problem), markup=False)
        return 2
    except KeyboardInterrupt:
        console.print("stopped; nothing was written")
        return 130
    report.show(outcome, console)
    if arguments.write:
        report.write(outcome, RESULTS)
        console.print(f"written: {RESULTS.parent.name}/{RESULTS.name}")
    return 1 if report.problems(outcome.findings) else 0


if __name__ == "__main__":
    sys.exit(main())
