"""The gateway as a process of its own, started by its command line, for clients that are processes too."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

COMMAND = Path(sys.executable).with_name("weirgate")
READY_SECONDS = 40.0
STOP_SECONDS = 15.0

_BOUND = re.compile(r"listening on (http://127\.0\.0\.1:\d+)")


@contextmanager
def serving(upstream: str, folder: Path, *options: str) -> Iterator[str]:
    """The gateway's base URL (with `/v1`) while the block runs. It binds a free port and says which. `options`: more
    of its command line, with paths relative to `folder`."""
    log = folder / "weirgate.log"
    with log.open("wb") as output:
        child = subprocess.Popen(
            [str(COMMAND), "serve", "--upstream", upstream, "--port", "0", *options],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            start_new_session=True,
        )
    try:
        yield f"{_ready(child, log)}/v1"
    finally:
        child.terminate()
        try:
            child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait(STOP_SECONDS)


def _ready(child: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline and child.poll() is None:
        bound = _BOUND.search(log.read_text(encoding="utf-8", errors="replace"))
        if bound and _answers(f"{bound[1]}/readyz"):
            return bound[1]
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(0.05)  # ends at once if the gateway does
    raise AssertionError(f"the gateway did not become ready (exit {child.poll()}):\n{log.read_text()[-3000:]}")


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
