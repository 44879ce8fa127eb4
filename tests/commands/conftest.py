"""A provider in a thread, a gateway as a process, and the command line in this process: what the commands meet."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from proxy.__main__ import app
from tests.replies import chat_reply, usage

BOUND = 40.0
_LISTENING = re.compile(r"listening on (http://\S+)")

Cli = Callable[..., Result]


class _Provider(BaseHTTPRequestHandler):
    def _answer(self, status: int, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if self.path == "/refusing/v1/models":
            self._answer(401, {"error": {"message": "no key"}})
        elif self.path == "/listless/v1/models":
            self._answer(404, {})
        else:
            self._answer(200, {"object": "list", "data": [{"id": "gpt-4o"}]})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self._answer(200, chat_reply("Hello.", usage=usage(1000, 200, cached=400)))

    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.fixture(scope="session")
def provider() -> Iterator[str]:
    """The root of a provider's address; its API is under /v1."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Provider)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join(BOUND)


@contextmanager
def gateway(*options: str, cwd: Path, env: dict[str, str] | None = None) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`weirgate serve` with these options: where it listens, and the process."""
    child = subprocess.Popen(
        [sys.executable, "-m", "proxy", "serve", *options],
        cwd=cwd,
        env=clean(env or {}),
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stderr is not None
    watchdog = threading.Timer(BOUND, child.kill)
    watchdog.start()
    try:
        said: list[str] = []
        while (line := child.stderr.readline()) and not _LISTENING.search(line):
            said.append(line)
        found = _LISTENING.search(line)
        assert found, "".join(said)
        yield found[1], child
    finally:
        child.terminate()
        child.communicate(timeout=BOUND)
        watchdog.cancel()


def clean(more: dict[str, str]) -> dict[str, str]:
    """An environment without Weirgate's own variables."""
    import os

    kept = {name: value for name, value in os.environ.items() if not name.upper().startswith("WEIRGATE_")}
    root = str(Path(__file__).parents[2])
    return {**kept, "PYTHONPATH": root, **more}


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command line in an empty folder, without Weirgate's variables; keyword arguments are the environment."""
    import os

    for name in list(os.environ):
        if name.upper().startswith("WEIRGATE_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")

    def run(*arguments: str, input: bytes | None = None, **env: str) -> Result:
        return CliRunner().invoke(app, list(arguments), input=input, env=env, catch_exceptions=False)

    return run


def here(result: Result) -> str:
    """Output and notes together, for messages of failed assertions."""
    return f"exit {result.exit_code}\n{result.stdout}\n{result.stderr}"
