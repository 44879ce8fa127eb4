"""Programs that the demo starts and stops: each in its own session, stopped by its own process id, never by a name.

Nothing here knows what the programs are. Every wait is bounded.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

STOP_SECONDS = 10.0


class ChildFailed(Exception):
    """A program ended or stayed silent while it was expected to serve; the message ends with its last words."""


def free_port() -> int:
    """A port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def last_words(log: Path, lines: int = 6) -> str:
    """The end of a log file, for an error message."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return "\n".join("    " + line for line in text.splitlines()[-lines:])


@contextlib.contextmanager
def running(
    command: Sequence[str], log: Path, *, cwd: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """The program while the block runs; its output goes to `log`."""
    with log.open("wb") as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env=None if environment is None else dict(environment),
            start_new_session=True,  # Ctrl-C reaches us alone; we stop the child in order
        )
    try:
        yield child
    finally:
        stop(child)


def stop(child: subprocess.Popen[bytes]) -> None:
    """End a program kindly, and after ten seconds firmly."""
    if child.poll() is not None:
        return
    child.terminate()
    try:
        child.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait(STOP_SECONDS)


def wait_until_ready(
    child: subprocess.Popen[bytes], url: str, log: Path, *, seconds: float, tick: Callable[[], None] = lambda: None
) -> None:
    """Return when `url` answers 200. Raises ChildFailed if the program ends first or `seconds` pass."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        code = child.poll()
        if code is not None:
            raise ChildFailed(f"it ended with code {code} before it served {url}\n{last_words(log)}")
        try:
            with urllib.request.urlopen(url, timeout=2.0) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pass
        tick()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(0.1)  # also ends early when the program does
    raise ChildFailed(f"{url} did not answer within {seconds:.0f} seconds\n{last_words(log)}")
