"""The benchmark can be trusted: all that the upstream did is counted, a wrong answer is an error, a ratio is what it
says, and a gate that was not measured is neither reached nor missed.

No figure of speed is looked at here. Without a C compiler the C tools cannot be tested, and the skip says so.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from benchmarks import bodies, build, gates, peers, ratios, report
from benchmarks.capacity import Capacity, climb, holds
from benchmarks.cases import CASES, PROBES, chosen
from benchmarks.contenders import Field
from benchmarks.findings import Findings, Outcome
from benchmarks.gates import Verdict
from benchmarks.launch import Place, Running
from benchmarks.measure import Load, Row, Sample, medians
from benchmarks.memory import Memory
from benchmarks.ratios import Results

ROOT = Path(__file__).resolve().parent.parent
CHAT = "/v1/chat/completions"
MB = 1 << 20


class Tools:
    """The compiled generator, and the upstream that runs for one test."""

    def __init__(self, load: str, port: int, folder: Path) -> None:
        self._load = load
        self._port = port
        self._folder = folder

    def run(
        self,
        mode: str,
        *sent: bytes,
        path: str = CHAT,
        connections: int = 4,
        headers: tuple[str, ...] = (),
        port: int | None = None,
    ) -> dict[str, float | str]:
        files = []
        for number, content in enumerate(sent):
            file = self._folder / f"{number}.json"
            file.write_bytes(content)
            files.append(str(file))
        more = [part for line in headers for part in ("-H", line)]
        command = [self._load, *more, "127.0.0.1", str(port or self._port), path, mode, str(connections), "0.2", *files]
        done = subprocess.run(command, capture_output=True, timeout=20, check=True)
        found: dict[str, float | str] = json.loads(done.stdout)
        return found


@pytest.fixture
def tools(tmp_path: Path) -> Iterator[Tools]:
    if not any(shutil.which(name) for name in ("cc", "gcc", "clang")):
        pytest.skip("no C compiler on this machine: the benchmark's tools cannot be built")
    build = [sys.executable, str(ROOT / "benchmarks" / "build.py")]
    upstream, load = subprocess.run(build, capture_output=True, text=True, timeout=60, check=True).stdout.split()
    with subprocess.Popen([upstream, "0"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Tools(load, int(process.stdout.readline().split()[1]), tmp_path)
        finally:
            process.terminate()


def body(model: str, content: str = "How high is the water?") -> bytes:
    message = {"role": "user", "content": content}
    fields = {"messages": [message], "model": model, "stream": True, "stream_options": {"include_usage": True}}
    return json.dumps(fields, separators=(",", ":")).encode()


def test_every_json_answer_is_counted_once(tools: Tools) -> None:
    found = tools.run("json", body("bench"), body("bench", "x" * 300_000), connections=8)
    assert found["errors"] == 0, found
    assert isinstance(found["requests"], int)
    assert found["requests"] >= 8
    assert found["chunks"] == 0


@pytest.mark.parametrize("pause", (0, 5))
def test_every_chunk_of_every_stream_is_counted(tools: Tools, pause: int) -> None:
    found = tools.run("sse", body(f"sse-23-{pause}"))
    assert found["errors"] == 0, found
    assert isinstance(found["requests"], int)
    assert found["requests"] >= 4
    assert found["chunks"] == found["requests"] * 23


def test_an_answer_with_a_wrong_status_is_an_error_and_never_a_request(tools: Tools) -> None:
    found = tools.run("json", body("bench"), path="/nowhere")
    assert found["requests"] == 0
    assert found["errors"] == found["bad_status"] != 0
    assert "no such path" in str(found["first_error"])


def test_a_stream_that_never_finishes_is_an_error(tools: Tools) -> None:
    found = tools.run("sse", body("bench"))  # JSON comes where a stream was asked for
    assert found["requests"] == 0
    assert found["errors"] == found["incomplete"] != 0


@pytest.mark.parametrize(("count", "size"), ((150, 300 * bodies.KB), (400, 2 * bodies.MB)))
def test_the_benchmark_asks_with_histories_of_the_stated_size_and_whole_tool_rounds(count: int, size: int) -> None:
    messages = bodies.agent_history(count, size)
    assert len(messages) == count
    assert abs(len(bodies.encoded(messages, tools=True)) - size) < 0.03 * size
    waiting: list[str] = []
    for message in messages:
        if message.role == "tool":
            waiting.remove(message.tool_call_id)
        else:
            assert not waiting
            waiting = [call.id for call in message.tool_calls]
    assert not waiting


def test_a_growing_series_adds_one_message_that_no_earlier_request_had() -> None:
    base = bodies.agent_history(20, 10 * bodies.KB)
    series = tuple(bodies.grown(base, 3))
    assert [len(history) for history in series] == [21, 22, 23]
    assert series[0] == series[1][:-1]
    assert all(bodies.SALT in str(history[-1].content) for history in series)


# -- what is made of the figures -------------------------------------------------------------------------------------


def row(contender: str, **figures: float) -> Row:
    blank = {
        name: 0.0 for name in Row.__struct_fields__ if name not in ("contender", "samples", "errors", "first_error")
    }
    errors = int(figures.pop("errors", 0))
    return Row(contender=contender, samples=0 if errors else 3, errors=errors, first_error="", **(blank | figures))


def running(name: str, **more: object) -> Running:
    fields: dict[str, object] = {"port": 1, "pid": 1, "startup_s": 1.0, "idle_rss": 50 * MB}
    return msgspec.convert({"name": name, **fields, **more}, Running)


def found(
    *names: str, missing: tuple[tuple[str, str], ...] = (), results: Results | None = None, **more: object
) -> Findings:
    """A run in which these ran, and those that are missing were asked too."""
    return Findings(
        asked=(*names, *(name for name, _ in missing)),
        field=Field(running=tuple(running(name) for name in names), missing=missing),
        cases=CASES,
        results=results or {},
        **more,  # type: ignore[arg-type]
    )


def verdict(findings: Findings, what: str) -> Verdict:
    (one,) = (one for one in gates.verdicts(findings) if one.gate.what.startswith(what))
    return one


SMALL = "requests/s, 1 KB"


def test_the_gates_are_those_that_were_promised() -> None:
    promised = (
        (35, 80), (18, 35), (18, 30), (1.6, 1.25), (1.5, 1.2), (1.2, 0.8), (4, 2), (2, 1.3), (0.75, 0.9), (2, 1.3),
        (40, 16), (10, 3), (1 / 8, 1 / 18), (110, 70),
    )  # fmt: skip
    assert tuple((gate.gate, gate.stretch) for gate in gates.GATES) == promised
    for gate in gates.GATES:
        assert (gate.stretch > gate.gate) is gate.more_is_better, gate.what


@pytest.mark.parametrize(("rps", "word"), ((3600.0, "stretch"), (1575.0, "gate"), (1570.0, "missed")))
def test_a_ratio_to_a_peer_reaches_the_stretch_the_gate_or_neither(rps: float, word: str) -> None:
    results = {"small-16": {"weirgate": row("weirgate", rps=rps), "litellm": row("litellm", rps=45.0)}}
    one = verdict(found("weirgate", "litellm", results=results), SMALL)
    assert (one.measured, one.word) == (rps / 45, word)


def test_without_peers_their_lines_say_how_to_measure_them() -> None:
    results = {"small-16": {"weirgate": row("weirgate", rps=1.0)}}
    words = [one.word for one in gates.verdicts(found("weirgate", results=results)) if "LiteLLM" in one.gate.what]
    assert words == ["not measured: PEERS=1"] * 4


def test_a_peer_that_did_not_start_gives_its_reason_in_one_line_and_the_others_are_measured() -> None:
    findings = found("weirgate", missing=(("litellm", "ended while starting\na long\nstory"),))
    assert verdict(findings, SMALL).word == "not measured: litellm ended while starting"
    assert verdict(findings, "idle RSS").word == "stretch"
    assert "NOT MEASURED: ended while starting" in str(report.peer_table(findings).rows)


def test_figures_beside_wrong_answers_give_no_verdict() -> None:
    rows = {"weirgate": row("weirgate", rps=9e9), "litellm": row("litellm", errors=3)}
    word = verdict(found("weirgate", "litellm", results={"small-16": rows}), SMALL).word
    assert word == "not measured: litellm gave wrong answers in small-16"


def test_a_compaction_that_was_not_applied_gives_no_verdict_and_fails_the_run() -> None:
    rows = {"weirgate": row("weirgate", cpu_us=1.0), "pass-through": row("pass-through", cpu_us=2.0)}
    findings = found("weirgate", "pass-through", results={"compacted-1": rows})
    assert verdict(findings, "CPU, the same").word == "stretch"
    findings = msgspec.structs.replace(findings, void={"compacted-1": "no compaction was applied"})
    assert verdict(findings, "CPU, the same").word == "not measured: no compaction was applied"
    assert report.problems(findings)


def test_what_a_contender_adds_is_its_median_without_the_upstreams_own() -> None:
    rows = {
        "direct": row("direct", p50_us=20.0),
        "nginx": row("nginx", p50_us=120.0),
        "weirgate": row("weirgate", p50_us=320.0),
    }
    findings = found("direct", "nginx", "weirgate", results={"small-1": rows})
    assert verdict(findings, "added p50").measured == 3.0
    assert ratios.over(rows, "weirgate", "pass-through", "p50_us") is None


def test_the_delay_beside_large_calls_is_the_worst_of_its_cases() -> None:
    results = {
        "beside-known": {"weirgate": row("weirgate", delay_p99_us=11_000.0)},
        "beside-grown": {"weirgate": row("weirgate", delay_p99_us=2_000.0)},
    }
    one = verdict(found("weirgate", results=results), "p99 delay")
    assert (one.measured, one.word) == (11.0, "missed")


def test_memory_and_start_are_read_from_the_processes() -> None:
    memory = Memory(contender="weirgate", idle=60 * MB, stream=20 * 1024.0, calls=((1, 70), (2, 75), (3, 76)))
    findings = found("weirgate", memory=(memory,))
    assert (verdict(findings, "memory per").measured, verdict(findings, "memory per").word) == (20.0, "gate")
    assert verdict(findings, "idle RSS").measured == 60.0
    assert memory.growth == 6
    field = Field(running=(running("weirgate", startup_s=0.5), running("litellm", startup_s=9.5)), missing=())
    one = verdict(msgspec.structs.replace(findings, field=field, asked=("weirgate", "litellm")), "start-up")
    assert one.word == "stretch"
    assert gates.shown(float(one.measured), "1/") == "1/19"


@pytest.mark.parametrize(("bounded", "word"), ((False, "stretch"), (True, "not measured: pass-through carries more")))
def test_streams_per_core_are_compared_only_where_the_yardstick_was_brought_to_its_limit(
    bounded: bool, word: str
) -> None:
    capacity = (
        Capacity(contender="pass-through", streams=400, bounded=bounded),
        Capacity(contender="weirgate", streams=380),
    )
    assert verdict(found("weirgate", "pass-through", capacity=capacity), "paced").word.startswith(word)


@pytest.mark.parametrize("limit", (0, 1, 37, 99, 100, 101, 640, 1599, 5000))
def test_the_search_for_a_cores_capacity_ends_near_it_and_believes_no_single_break(limit: int) -> None:
    climber = climb(100, 1600)
    asked = [next(climber)]
    with pytest.raises(StopIteration) as end:
        while len(asked) < 50:
            asked.append(climber.send(asked[-1] <= limit))
    best = end.value.value
    assert best <= limit
    assert min(limit, 1600) - best <= max(1, 0.05 * min(limit, 1600))
    assert len(asked) < 30
    assert all(asked.count(count) == 2 for count in asked if count > limit)


def test_a_stream_count_holds_only_if_every_chunk_came_in_time() -> None:
    load = msgspec.convert({name: 1 for name in Load.__struct_fields__} | {"errors": 0, "first_error": ""}, Load)
    assert holds(load)
    assert not holds(msgspec.structs.replace(load, errors=1))
    assert not holds(msgspec.structs.replace(load, delay_p99_us=25_001.0))


def test_medians_leave_out_samples_without_an_answer_and_keep_their_errors() -> None:
    load = msgspec.convert({name: 1 for name in Load.__struct_fields__} | {"errors": 0, "first_error": ""}, Load)
    good = Sample(load=load, cpu_us=5.0, chunk_cpu_us=0.0, beside=msgspec.structs.replace(load, rps=7.0))
    failed = msgspec.structs.replace(load, requests=0, errors=4, first_error="no")
    middle = medians("weirgate", [good, Sample(load=failed, cpu_us=900.0, chunk_cpu_us=0.0)])
    assert (middle.samples, middle.cpu_us, middle.errors, middle.first_error) == (1, 5.0, 4, "no")
    assert middle.beside_rps == 7.0


def test_the_tables_show_every_gate_last_and_survive_markdown(tmp_path: Path) -> None:
    rows = {"direct": row("direct", rps=9.0), "portkey": row("portkey", errors=1)}
    findings = found("direct", "portkey", missing=(("nginx", "a|b"),), results={"small-1": rows, "burst-1": rows})
    *_, last = report.grids(findings)
    assert last.title == "Gates"
    assert [cells[0] for cells in last.rows] == [gate.what for gate in gates.GATES]
    assert all(len(cells) == len(grid.head) for grid in report.grids(findings) for cells in grid.rows)
    outcome = Outcome(machine=("a machine",), command="make bench", rounds=1, findings=findings)
    report.write(outcome, tmp_path / "results.md")
    text = (tmp_path / "results.md").read_text()
    assert "| 1 KB, 3 messages | 1 | portkey | wrong answers |" in text
    assert "not measured: nginx: a|b" in text
    report.show(outcome, Console(file=StringIO(), width=200))


def test_a_peers_wrong_answers_are_shown_and_do_not_fail_the_run() -> None:
    findings = found("portkey", results={"burst-1": {"portkey": row("portkey", errors=1)}})
    assert report.problems(findings) == ()
    assert len(report.wrong_answers(findings, of_peers=True)) == 1
    findings = found("weirgate", results={"burst-1": {"weirgate": row("weirgate", errors=1)}})
    assert len(report.problems(findings)) == 1


def test_every_case_asks_for_a_body_that_is_there(tmp_path: Path) -> None:
    made = bodies.write_bodies(tmp_path, paced_chunks=10, held_chunks=5)
    assert {case.body for case in CASES} | {case.beside for case in CASES if case.beside} <= made.files.keys()
    asked = {json.loads(file.read_text())["model"] for files in made.files.values() for file in files}
    assert asked == set(made.models)
    assert made.files["2 MB cold"][0].read_bytes().count(bodies.SALT.encode()) == 400


def test_cases_are_chosen_by_their_beginnings() -> None:
    cases, probes = chosen("small, 2m-1,mem")
    assert [case.name for case in cases] == ["small-1", "small-16", "small-64", "small-256", "2m-1"]
    assert probes == {"memory"}
    assert chosen("") == (CASES, frozenset(PROBES))
    with pytest.raises(ValueError, match="no case begins with 'none'"):
        chosen("none")


# -- peers -----------------------------------------------------------------------------------------------------------

_PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;]+)", re.MULTILINE)


@pytest.mark.parametrize("peer", peers.PEERS, ids=lambda peer: peer.name)
def test_a_peer_is_locked_at_the_version_of_the_table_and_every_package_of_it_at_one(peer: peers.Peer) -> None:
    assert peer.licence
    if peers.is_node(peer):
        wanted, locked = (json.loads(file.read_text()) for file in peers.lock_files(peer))
        assert wanted["dependencies"] == {peer.package: peer.version}
        packages = {name: entry for name, entry in locked["packages"].items() if name}
        assert packages[f"node_modules/{peer.package}"]["version"] == peer.version
        assert all(entry["version"] and entry["integrity"] for entry in packages.values())
        assert not any("resolved" in entry for entry in packages.values())
        return
    (lock,) = peers.lock_files(peer)
    lines = [line for line in lock.read_text().splitlines() if line and not line.startswith("#")]
    assert all(_PIN.match(line) for line in lines)
    pins = {(pin["name"], pin["version"]) for pin in _PIN.finditer(lock.read_text())}
    assert (peer.package.partition("[")[0], peer.version) in pins
    assert not pins & {(name, version) for name, versions in peers.MALICIOUS.items() for version in versions}


@pytest.mark.parametrize("peer", peers.PEERS, ids=lambda peer: peer.name)
def test_a_peer_runs_on_loopback_with_a_home_of_its_own_and_nothing_of_our_environment(
    peer: peers.Peer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-somebodys-own")
    monkeypatch.setattr(peers, "install", lambda peer: tmp_path / "installed")
    place = Place(folder=tmp_path, upstream=11, port=22, models=("bench", "sse-200-0"))
    launch = peers.launch(peer.name, place)
    said = " ".join((*launch.line, *launch.headers, *launch.environment.values()))  # type: ignore[union-attr]
    said += " ".join(file.read_text() for file in tmp_path.glob("*.json"))
    assert launch.environment is not None
    assert launch.environment["HOME"] == str(tmp_path)
    assert "OPENAI_API_KEY" not in launch.environment
    assert "22" in said
    assert "http://127.0.0.1:11" in said


def test_a_peer_that_cannot_be_installed_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(build.Unavailable, match="python failed"):
        peers.install(peers.peer_named("cliffcompaction"))
    assert not peers.installed("cliffcompaction")


def test_a_request_carries_the_headers_that_a_contender_needs(tools: Tools) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as thread:
        listener.settimeout(20)
        port = listener.getsockname()[1]
        generator = thread.submit(
            tools.run, "json", body("bench"), connections=1, headers=("x-a: 1", "x-b: 2"), port=port
        )
        connection, _ = listener.accept()
        with connection:
            head = connection.recv(65536)
        listener.close()
        assert generator.result(20)["requests"] == 0
    assert b"\r\nx-a: 1\r\nx-b: 2\r\n" in head
