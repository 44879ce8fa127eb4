"""The client programs: where they are, whether they are there, and one run of one of them.

They are made by `make clients`. What is absent is skipped aloud, except in CI, where it is a failure.

A reader gets tasks and reads one answer for each. A task: `base_url`, `model`; and, each with a default, `messages` (as
on the wire), `stream` (true), `usage` (asked for in a stream), `tools` (definitions as on the wire; the client executes
none), `extra` (further members of the request), `key`, and `results` (a text for each tool's name: the client answers
the calls with them in its own way and asks again, at most three times).

An answer: `text`, `calls` (each `id`, `name`, `arguments` parsed, None where it is no JSON), `finish` (every finish
reason, as the server said it), `usage` (in the client's own terms), `tokens` ([input, output] or None), `messages` (how
many the client believes it was given), `ids` (the distinct ids of the response), `error` (None, or its `kind`, `status`
and `code`), and `next` (the answer after `results`). Some clients add what only they know.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.data import ROOT

HERE = ROOT / "tests" / "clients"
NODE_FOLDER = HERE / "node"
CLIENTS_BIN = ROOT / ".venv-clients" / "bin"
SECONDS = 100

READERS: Mapping[str, Sequence[str]] = {
    "openai-python": (sys.executable, str(HERE / "python" / "openai_reader.py")),
    "langchain": (str(CLIENTS_BIN / "python"), str(HERE / "python" / "langchain_reader.py")),
    "openai-node": ("node", str(NODE_FOLDER / "openai_reader.mjs")),
    "vercel": ("node", str(NODE_FOLDER / "vercel_reader.mjs"), "compatible"),
    "vercel-openai": ("node", str(NODE_FOLDER / "vercel_reader.mjs"), "openai"),
}

TALKERS: Mapping[str, Sequence[str]] = {
    "openai-python": (sys.executable, str(HERE / "python" / "openai_talker.py")),
    "openai-node": ("node", str(NODE_FOLDER / "openai_talker.mjs")),
}

NODE_PACKAGES: Mapping[str, str] = {"openai-node": "openai", "vercel": "ai", "vercel-openai": "ai"}
"""The package that each JavaScript client is."""


class Ask(NamedTuple):
    """One answer to read: of which model, whether usage is asked for, as a stream or as one JSON body."""

    model: str
    usage: bool = True
    stream: bool = True


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() not in ("", "0", "false", "no")


def missing(client: str) -> str:
    """What this client needs and does not find here, or nothing."""
    if client in ("langchain", "llm"):
        return "" if (CLIENTS_BIN / "llm").exists() else ".venv-clients is absent: run `make clients`"
    if client == "curl":
        return "" if shutil.which("curl") else "there is no curl here (Debian: apt-get install curl)"
    if package := NODE_PACKAGES.get(client):
        if shutil.which("node") is None:
            return "there is no node here (Debian: apt-get install nodejs npm)"
        there = (NODE_FOLDER / "node_modules" / package).is_dir()
        return "" if there else f"{package} is absent from node_modules: run `make clients`"
    return ""


def need(client: str) -> None:
    """Skip the test where the client is absent; fail it in CI."""
    if lack := missing(client):
        if in_ci():
            pytest.fail(f"{client}: {lack}; in CI that is an error")
        pytest.skip(f"{client}: {lack}")


def run(
    command: Sequence[str],
    folder: Path,
    *,
    said: str = "",
    environment: Mapping[str, str] | None = None,
    seconds: float = SECONDS,
) -> str:
    """Standard output of a program that must succeed within `seconds`."""
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "LLM_", "LANGSMITH_"))
    }
    done = subprocess.run(
        command,
        input=said,
        cwd=folder,
        env={**clean, **_quiet(folder), **(environment or {})},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, f"{command[0]} ended with {done.returncode}\n{done.stderr[-3000:]}"
    return done.stdout


def _quiet(folder: Path) -> dict[str, str]:
    """An environment in which a program writes nothing outside `folder` and finds the clients' commands."""
    path = f"{CLIENTS_BIN}{os.pathsep}{os.environ.get('PATH', '')}"
    return {"NO_PROXY": "127.0.0.1", "HOME": str(folder), "LLM_USER_PATH": str(folder), "PATH": path}


def ask(
    client: str, tasks: Sequence[Mapping[str, Any]], folder: Path, *, seconds: float = SECONDS
) -> list[dict[str, Any]]:
    """One answer for each task, as this client reads it, all in one process."""
    said = run(READERS[client], folder, said=json.dumps(tasks), seconds=seconds)
    answers: list[dict[str, Any]] = json.loads(said)
    assert len(answers) == len(tasks)
    return answers


def read(client: str, base_urls: Sequence[str], asks: Sequence[Ask], folder: Path) -> list[dict[Ask, Any]]:
    """What a client reads of each ask at each base URL, all in one process."""
    answers = ask(client, [{"base_url": url, **one._asdict()} for url in base_urls for one in asks], folder)
    size = len(asks)
    return [dict(zip(asks, answers[at : at + size], strict=True)) for at in range(0, len(answers), size)]


def talk(client: str, tasks: Sequence[Mapping[str, Any]], folder: Path) -> list[list[dict[str, Any]]]:
    """The answers that a client is given in each of several conversations, all in one process."""
    told: list[list[dict[str, Any]]] = json.loads(run(TALKERS[client], folder, said=json.dumps(tasks)))
    assert [len(answers) for answers in told] == [len(task["says"]) for task in tasks]
    return told
