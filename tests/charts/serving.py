"""The installed gateway as a pod runs it: from a folder as the kubelet lays it, with its environment and nothing else.

The address alone is another one: the loopback, and a free port.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from demo.children import last_words, running
from tests.clients.weir import COMMAND

READY_SECONDS = 40.0
_BOUND = re.compile(r"listening on (http://127\.0\.0\.1:\d+)")
_HERE = {"WEIRGATE_SERVER__HOST": "127.0.0.1", "WEIRGATE_SERVER__PORT": "0"}


class Answer(NamedTuple):
    status: int
    body: bytes


class Serving(NamedTuple):
    child: subprocess.Popen[bytes]
    root: str
    log: Path

    def ask(self, path: str, body: object = None, key: str = "") -> Answer:
        request = urllib.request.Request(f"{self.root}{path}", headers={"content-type": "application/json"})
        if body is not None:
            request.data = json.dumps(body).encode()
        if key:
            request.add_header("authorization", f"Bearer {key}")
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return Answer(answer.status, answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.read())

    def until(self, text: str, seconds: float = 20.0) -> None:
        """Return when the log says it."""
        deadline = time.monotonic() + seconds
        while text not in self.log.read_text() and time.monotonic() < deadline:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.child.wait(0.05)
        assert text in self.log.read_text(), f"not said within {seconds} s: {text}\n{last_words(self.log)}"


@contextlib.contextmanager
def serving(
    arguments: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    *,
    before: Sequence[str] = (),
    command: Path = COMMAND,
) -> Iterator[Serving]:
    """The gateway while the block runs, once it listens. `before`: a program that starts it."""
    log = folder / "weirgate.log"
    told = {"PATH": os.environ["PATH"], **environment, **_HERE}
    with running([*before, str(command), *arguments], log, cwd=folder, environment=told) as child:
        deadline = time.monotonic() + READY_SECONDS
        while not (bound := _BOUND.search(log.read_text())) and child.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(0.05)
        assert bound, f"the gateway does not listen (exit {child.poll()})\n{last_words(log)}"
        yield Serving(child, bound[1], log)
