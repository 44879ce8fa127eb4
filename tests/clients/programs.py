"""The client programs: where they are, whether they are there, and one run of one of them.

They are made by `make clients`. What is absent is skipped aloud, except in CI, where it is a failure.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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
}

TALKERS: Mapping[str, Sequence[str]] = {
    "openai-python": (sys.executable, str(HERE / "python" / "openai_talker.py")),
    "openai-node": ("node", str(NODE_FOLDER / "openai_talker.mjs")),
}


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() not in ("", "0", "false", "no")


def missing(client: str) -> str:
    """What this client needs and does not find here, or nothing."""
    if client in ("langchain", "llm"):
        return "" if (CLIENTS_BIN / "llm").exists() else ".venv-clients is absent: run `make clients`"
    if client == "openai-node":
        if shutil.which("node") is None:
            return "there is no node here (Debian: apt-get install nodejs npm)"
        return (
            "" if (NODE_FOLDER / "node_modules" / "openai").is_dir() else "node_modules is absent: run `make clients`"
        )
    return ""


def need(client: str) -> None:
    """Skip the test where the client is absent; fail it in CI."""
    if lack := missing(client):
        if in_ci():
            pytest.fail(f"{client}: {lack}; in CI that is an error")
        pytest.skip(f"{client}: {lack}")


def run(command: Sequence[str], folder: Path, *, said: str = "", environment: Mapping[str, str] | None = None) -> str:
    """Standard output of a program that must succeed."""
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
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{command[0]} ended with {done.returncode}\n{done.stderr[-3000:]}"
    return done.stdout


def _quiet(folder: Path) -> dict[str, str]:
    """An environment in which a program writes nothing outside `folder` and finds the clients' commands."""
    path = f"{CLIENTS_BIN}{os.pathsep}{os.environ.get('PATH', '')}"
    return {"NO_PROXY": "127.0.0.1", "HOME": str(folder), "LLM_USER_PATH": str(folder), "PATH": path}


def read(
    client: str, base_urls: Sequence[str], reads: Sequence[tuple[str, bool]], folder: Path
) -> list[dict[tuple[str, bool], Any]]:
    """What a client reads of each (model, include usage) at each base URL, all in one process."""
    tasks = [{"base_url": url, "model": model, "usage": usage} for url in base_urls for model, usage in reads]
    results = json.loads(run(READERS[client], folder, said=json.dumps(tasks)))
    assert len(results) == len(tasks)
    size = len(reads)
    return [dict(zip(reads, results[at : at + size], strict=True)) for at in range(0, len(results), size)]


def talk(client: str, tasks: Sequence[Mapping[str, Any]], folder: Path) -> list[list[dict[str, Any]]]:
    """The answers that a client is given in each of several conversations, all in one process."""
    told: list[list[dict[str, Any]]] = json.loads(run(TALKERS[client], folder, said=json.dumps(tasks)))
    assert [len(answers) for answers in told] == [len(task["says"]) for task in tasks]
    return told
