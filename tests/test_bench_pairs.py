"""The comparison of two calls can be trusted: what noise hides is called hidden, what was not asked is not measured,
and the commit's source is gone when a run ends.

No figure of speed is looked at here. Without a C compiler nothing can be asked, and the skip says so.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from benchmarks import agents, bodies, build, gateways, report
from benchmarks.cases import FULL, PROBES, QUICK
from benchmarks.comparing import Comparison, compare_pairs, interval, settled, verdict
from benchmarks.contenders import Field, Site, start_upstream
from benchmarks.findings import Findings
from benchmarks.gateways import AGENTS, COMMIT, TODAY
from benchmarks.instructions import Count, Counted, countable, total
from benchmarks.launch import Running, answer
from benchmarks.measure import Generator
from benchmarks.pairs import PAIRS, Pair
from benchmarks.processes import Cores

NOWHERE = Cores(tested=None, rest=None)
PAIR = PAIRS[0]

# -- what is made of ratios ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rounds", "places"), ((1, (0, 0)), (5, (0, 4)), (8, (0, 7)), (9, (1, 7)), (15, (3, 11)), (25, (7, 17)))
)
def test_the_interval_is_the_narrowest_that_holds_the_median_often_enough(rounds: int, places: tuple[int, int]) -> None:
    assert interval([float(number) for number in reversed(range(rounds))]) == places


@pytest.mark.parametrize(
    ("ratios", "word"),
    (
        ((1.0, 1.01, 1.02, 1.01), "too few rounds: 4 of 5"),
        ((0.9, 0.95, 1.0, 1.02, 1.03), "gate"),
        ((1.04, 1.2, 1.3, 1.05, 1.06), "missed"),
        ((0.9, 1.0, 1.01, 1.02, 1.2), "hidden by noise"),
        ((1.021, 1.025, 1.029, 1.031, 1.035), "gate"),
        ((1.025, 1.029, 1.031, 1.033, 1.035), "missed"),
    ),
)
def test_a_ratio_is_at_its_gate_beyond_it_or_hidden_by_noise(ratios: tuple[float, ...], word: str) -> None:
    assert verdict(ratios, 1.03, 0.02) == word


def test_rounds_end_by_their_spread_or_their_number_and_never_by_their_verdict() -> None:
    wide = (0.1, 0.2, 0.3, 0.4, 0.5)  # all far below the gate, and far apart
    assert verdict(wide, 1.03, 0.02) == "gate"
    assert not settled(wide, FULL, 0.02)
    assert settled(wide * 5, FULL, 0.02)
    assert settled((1.0, 1.0, 1.01, 1.01, 1.015), FULL, 0.02)
    assert not settled((1.0,) * 4, FULL, 0.02)
    assert settled(wide[:2], QUICK, 0.02)


def test_instructions_near_the_gate_are_told_only_as_far_as_their_spread_allows() -> None:
    steady, shaky = Count(blocks=(100.0,) * 5), Count(blocks=(90.0, 96.0, 102.0, 104.0, 120.0))
    assert shaky.spread == 8 / 102
    assert Counted(pair=PAIR, mine=steady, other=steady).word == "gate"
    assert Counted(pair=PAIR, mine=shaky, other=steady).word == "hidden by noise"
    assert Counted(pair=PAIR, mine=Count(blocks=(104.0,) * 5), other=steady).word == "missed"
    assert Counted(pair=PAIR, why="there is no valgrind").word == "not measured: there is no valgrind"


def test_a_dump_of_callgrind_has_a_total_or_counts_nothing() -> None:
    assert total("events: Ir\nfn=(1)\n3 4\n\ntotals: 12345\n") == 12345
    with pytest.raises(build.Unavailable):
        total("events: Ir\n")


# -- what is asked ---------------------------------------------------------------------------------------------------


def test_the_gates_of_pairs_are_those_that_were_promised() -> None:
    promised = {"against": 1.03, "layers": 1.25, "remembered": 1.3}
    assert {pair.probe: pair.gate for pair in PAIRS} == promised
    assert all(pair.gate == promised[pair.probe] for pair in PAIRS)
    assert promised.keys() <= PROBES.keys()


def test_pairs_that_differ_only_in_calls_in_flight_are_counted_once() -> None:
    counted = countable(PAIRS)
    sides = [(pair.mine, pair.other) for pair in counted]
    assert len(set(sides)) == len(sides) < len(PAIRS)
    assert {*sides} == {(pair.mine, pair.other) for pair in PAIRS}
    assert counted[0] == PAIRS[0]


def test_every_pair_asks_for_bodies_that_are_there_and_differs_only_where_it_says(tmp_path: Path) -> None:
    made = agents.with_agent_bodies(bodies.write_bodies(tmp_path, paced_chunks=10, held_chunks=5), tmp_path)
    for pair in PAIRS:
        mine, other = (made.files[side.body][0].read_bytes() for side in (pair.mine, pair.other))
        if pair.mine.gateway == TODAY:
            assert mine == other
            assert pair.other.gateway == COMMIT
            continue
        assert pair.mine.gateway == AGENTS
        mine = mine.replace(f"/{agents.SLUG} ".encode(), b"")
        plain = [b'"model":"%s"' % name.encode() for name in (agents.LAYERED, agents.REMEMBERING)]
        named = [b'"model":"bench"', b'"model":"forgetting"']
        for name, instead in zip(plain, named, strict=True):
            mine = mine.replace(name, instead)
        assert mine == other


@pytest.mark.parametrize("memory", (False, True))
def test_the_gateway_of_today_takes_the_configuration_with_agents(tmp_path: Path, memory: bool) -> None:
    source = gateways.Source(tree=gateways.ROOT, memory=memory)
    place = Site(folder=tmp_path, upstream=9, models=(), cores=NOWHERE).place("agents")
    launch = gateways.gateway(AGENTS, source, place)
    line = [sys.executable, "-m", "proxy", "check", *launch.line[-2:]]
    done = subprocess.run(line, cwd=place.folder, env=launch.environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


# -- how it is asked -------------------------------------------------------------------------------------------------


class Bench:
    """The compiled generator, and the upstream in the place of every gateway."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        tools = build.tools()
        made = bodies.write_bodies(folder, paced_chunks=10, held_chunks=5)
        self.upstream = start_upstream(tools.upstream, stack, folder, NOWHERE)
        self.generator = Generator(program=tools.load, bodies=made, cores=NOWHERE)
        self.started: list[tuple[str, int]] = []

    def start(self, kind: str, serial: int, stack: ExitStack) -> Running:
        if kind == "broken":
            raise build.Unavailable("ended while starting\na long story")
        self.started.append((kind, serial))
        return self.upstream

    def compare(self, *pairs: Pair) -> tuple[Comparison, ...]:
        plan = msgspec.structs.replace(QUICK, seconds=0.05, warm_up=0.01, pair_rounds=3, most_pair_rounds=3)
        return compare_pairs(pairs, self.start, self.generator, plan, lambda text: None)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    if not any(shutil.which(name) for name in ("cc", "gcc", "clang")):
        pytest.skip("no C compiler on this machine: the benchmark's tools cannot be built")
    with ExitStack() as stack:
        yield Bench(tmp_path, stack)


def pair(body: str, over: str, **more: object) -> Pair:
    sides = {"mine": {"gateway": "left", "body": body}, "other": {"gateway": "right", "body": over}}
    fields = {"probe": "against", "what": f"{body} over {over}", "gate": 1.03, "spread": 0.02}
    return msgspec.convert({**fields, **sides, **more}, Pair)


def test_each_round_starts_both_gateways_anew_and_gives_one_ratio(bench: Bench) -> None:
    (found,) = bench.compare(pair("300 KB", "1 KB", sends="layers"))
    assert bench.started == [(kind, number) for number in range(3) for kind in ("left", "right")]
    assert (len(found.ratios), found.problem, found.word) == (3, "", "too few rounds: 3 of 5")
    assert found.median > 1


def test_a_pair_that_does_not_send_what_it_says_is_not_measured_and_fails_the_run(bench: Bench) -> None:
    (found,) = bench.compare(pair("1 KB", "1 KB", sends="layers"))
    assert "was to get 1550 tokens more of 1 KB" in found.problem
    assert found.word.startswith("not measured: ")
    assert bench.started == [("left", 0), ("right", 0)]
    assert report.problems(findings(found)) == (f"1 KB over 1 KB: {found.problem}",)


@pytest.mark.parametrize(("over", "fits"), (("300 KB", True), ("1 KB", False)))
def test_a_call_with_memory_must_send_less(bench: Bench, over: str, fits: bool) -> None:
    (found,) = bench.compare(pair("1 KB", over, sends="less"))
    assert (not found.problem) is fits


def test_a_gateway_that_does_not_start_leaves_out_its_pairs_and_no_others(bench: Bench) -> None:
    broken = pair("1 KB", "1 KB", other={"gateway": "broken", "body": "1 KB"})
    left_out, measured = bench.compare(broken, pair("1 KB", "burst"))
    assert left_out.word == "not measured: broken: ended while starting a long story"
    assert report.problems(findings(left_out)) == ()
    assert len(measured.ratios) == 0
    assert "burst" in measured.problem  # a stream where JSON was asked for


def test_the_upstream_says_of_json_and_streams_how_much_it_was_sent(bench: Bench) -> None:
    for name in ("1 KB", "burst"):
        body = bench.generator.bodies.files[name][0].read_bytes()
        assert agents.prompt_tokens(answer(bench.upstream.port, body).content) in (len(body) // 4, len(body) // 4 + 1)
    assert agents.prompt_tokens(b"{}") == 0


def findings(*comparisons: Comparison, counted: tuple[Counted, ...] = ()) -> Findings:
    field = Field(running=(), missing=())
    return Findings(asked=(), field=field, cases=(), results={}, comparisons=comparisons, counted=counted)


def test_the_tables_show_the_ratio_its_interval_and_the_verdict_of_each_pair() -> None:
    steady = Count(blocks=(2000.0,) * 5)
    shown = findings(
        Comparison(pair=PAIR, ratios=(1.0, 1.01, 1.01, 1.02, 1.02)),
        Comparison(pair=PAIRS[1], why="AGAINST=<commit>"),
        counted=(Counted(pair=PAIR, mine=steady, other=steady),),
    )
    assert report.comparisons(shown).rows == (
        (PAIR.what, "1.010", "1.000 to 1.020", "5", "<= 1.03", "gate"),
        (PAIRS[1].what, "", "", "0", "<= 1.03", "not measured: AGAINST=<commit>"),
    )
    assert report.instructions(shown).rows == ((PAIR.what, "2", "0.0", "2", "0.0", "1.000", "<= 1.03", "gate"),)
    assert all(len(row) == len(grid.head) for grid in report.grids(shown) for row in grid.rows)


# -- the commit ------------------------------------------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "repository"
    root.mkdir()
    (root / "proxy").mkdir()
    (root / "proxy" / "__init__.py").write_text("")
    for words in (
        ("init", "-q"),
        ("add", "."),
        ("-c", "user.name=A", "-c", "user.email=a@example.com", "commit", "-qm", "A line"),
    ):
        subprocess.run(("git", "-C", str(root), *words), check=True, timeout=60, capture_output=True)
    monkeypatch.setattr(gateways, "ROOT", root)
    return root


def records(root: Path) -> int:
    line = ("git", "-C", str(root), "worktree", "list", "--porcelain")
    return subprocess.run(line, check=True, timeout=60, capture_output=True, text=True).stdout.count("worktree ")


@pytest.mark.parametrize("locked", (False, True), ids=("whole", "stopped while it was made"))
def test_a_commits_source_runs_from_its_own_folder_and_leaves_nothing(
    repository: Path, tmp_path: Path, locked: bool
) -> None:
    commit, title = gateways.resolved("HEAD")
    assert title == f"{commit[:7]} A line"
    with ExitStack() as stack:
        tree = gateways.worktree(commit, tmp_path, stack)
        assert gateways.source(tree).memory is False  # its agents have no such key: it has no agents
        assert records(repository) == 2
        if locked:
            subprocess.run(("git", "-C", str(repository), "worktree", "lock", str(tree)), check=True, timeout=60)
    assert not tree.exists()
    assert records(repository) == 1


@pytest.mark.parametrize("name", ("no-such-commit", "--all", "HEAD:proxy"))
def test_a_commit_that_is_none_stops_the_run_before_it_starts(repository: Path, name: str) -> None:
    with pytest.raises(build.Unavailable, match="there is no commit"):
        gateways.resolved(name)


def test_source_that_would_run_other_code_is_refused(tmp_path: Path) -> None:
    assert (tmp_path / "proxy").exists() is False
    with pytest.raises(build.Unavailable, match="its source does not run here"):
        gateways.source(tmp_path)


def test_the_source_of_today_is_compared_as_it_lay_when_the_run_began(tmp_path: Path) -> None:
    tree = gateways.copied(tmp_path)
    assert gateways.source(tree).tree == tree
    assert (tree / "policies" / "default.yaml").read_bytes() == (
        gateways.ROOT / "policies" / "default.yaml"
    ).read_bytes()
    assert not list((tree / "proxy" / "core").rglob("*.pyc"))  # what was compiled elsewhere may be older


def test_a_second_sigterm_does_not_cut_the_cleaning_short() -> None:
    program = """
import os, signal
from benchmarks.run import stop_on_signals

stop_on_signals()
try:
    os.kill(os.getpid(), signal.SIGTERM)
finally:
    os.kill(os.getpid(), signal.SIGTERM)
    print("cleaned")
"""
    line = (sys.executable, "-c", program)
    done = subprocess.run(line, cwd=gateways.ROOT, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("cleaned\n", 128 + 15), done.stderr
