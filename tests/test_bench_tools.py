"""The benchmark's C tools can be trusted: all that the upstream did is counted, and a wrong answer is an error.

No figure of speed is looked at here. Without a C compiler there is nothing to test, and the skip says so.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import bodies

ROOT = Path(__file__).resolve().parent.parent
CHAT = "/v1/chat/completions"


class Tools:
    """The compiled generator, and the upstream that runs for one test."""

    def __init__(self, load: str, port: int, folder: Path) -> None:
        self._load = load
        self._port = port
        self._folder = folder

    def run(self, mode: str, *sent: bytes, path: str = CHAT, connections: int = 4) -> dict[str, float | str]:
        files = []
        for number, content in enumerate(sent):
            file = self._folder / f"{number}.json"
            file.write_bytes(content)
            files.append(str(file))
        command = [self._load, "127.0.0.1", str(self._port), path, mode, str(connections), "0.2", *files]
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
