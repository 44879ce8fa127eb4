"""The recorded data that tests read: where it lies, and one iterator per set.

Nothing is copied into the repository and nothing is cached. Every reader yields nothing where the folder is absent;
a test that rests on it carries `@pytest.mark.data`, so `conftest` can skip it aloud, or fail it in CI.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent


def folder() -> Path:
    """`WEIRGATE_DATA`, else `../shared/data` beside the checkout. It need not exist."""
    stated = os.environ.get("WEIRGATE_DATA")
    return Path(stated) if stated else ROOT.parent / "shared" / "data"


def is_there() -> bool:
    return (folder() / "conversations").is_dir()


class Conversation(NamedTuple):
    """One recorded conversation. `row` is the whole line: tags, `broken`, source, licence."""

    id: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    row: dict[str, Any]


class Answer(NamedTuple):
    """One recorded provider answer. `name` is the file's path under the package, without its ending."""

    package: str
    name: str
    path: Path

    @property
    def is_stream(self) -> bool:
        return self.path.name.endswith(".chunks.txt")

    def payloads(self) -> list[bytes]:
        """A stream's event payloads, without `data: ` and without the closing `[DONE]`, as recorded."""
        return [line for line in self.path.read_bytes().split(b"\n") if line.strip()]

    def body(self) -> bytes:
        return self.path.read_bytes()


def conversations(*files: str) -> Iterator[Conversation]:
    """Every recorded conversation in a fixed order, or those of the named files (`"aider"`)."""
    for path in sorted((folder() / "conversations").glob("*.jsonl")):
        if files and path.stem not in files:
            continue
        for row in _lines(path):
            yield Conversation(row["id"], row["messages"], row["tools"], row)


def overflow_errors() -> Iterator[dict[str, Any]]:
    """Every row of `overflow_errors.jsonl`: `http_status`, `where`, `body`, `is_overflow`, `limit`, `requested` ..."""
    path = folder() / "overflow_errors.jsonl"
    if path.exists():
        yield from _lines(path)


def provider_streams(*packages: str) -> Iterator[Answer]:
    """Every recorded answer (JSON bodies and streams) in a fixed order, or those of the named packages."""
    root = folder() / "provider-streams"
    for path in sorted([*root.rglob("*.json"), *root.rglob("*.chunks.txt")]):
        package, *rest = path.relative_to(root).parts
        if not packages or package in packages:
            name = "/".join(rest).removesuffix(".json").removesuffix(".chunks.txt")
            yield Answer(package, name, path)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)
