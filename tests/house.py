"""Readers that the law in `test_house.py` and `test_readme.py` rests on: which files are ours, and what is in them.

No rule stands here, only reading.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.data import ROOT

BIN = Path(sys.executable).parent
"""Where the tools of this environment lie."""

_NOT_OURS = {".git", ".venv", "__pycache__", "node_modules", "dist", "build"}
_CODE = {".py", ".sh", ".c", ".js", ".mjs", ".ts", ".css", ".html"}


def files() -> list[Path]:
    """Every file that is, or could be, committed; sorted. Without git: all but environments and caches."""
    listing = subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    names = listing.stdout.split("\0") if listing.returncode == 0 else _walk()
    return sorted(path for name in names if name and (path := ROOT / name).is_file())


def _walk() -> Iterator[str]:
    for folder, inner, names in os.walk(ROOT):
        inner[:] = [name for name in inner if name not in _NOT_OURS and not name.startswith((".venv-", "."))]
        yield from (str(Path(folder, name).relative_to(ROOT)) for name in names)


def sources(*rooms: str) -> list[Path]:
    """Python files under the named folders of the checkout; all of them without a name."""
    return [path for path in files() if path.suffix == ".py" and (not rooms or short(path).startswith(rooms))]


def code() -> list[Path]:
    return [path for path in files() if path.suffix in _CODE]


def short(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def text(path: Path) -> str:
    """The file's text, or nothing where it is binary."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


def imported(module: ast.Module) -> Iterator[tuple[str, int]]:
    """Every module name that is imported anywhere in it, with the line."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "", node.lineno)


def run(*command: str, timeout: float = 120) -> tuple[int, str]:
    """Exit status and output of a tool of this environment, run at the top of the checkout."""
    done = subprocess.run(
        [str(BIN / command[0]), *command[1:]],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
    return done.returncode, done.stdout
