"""What a mutation is, and the page that the mutations rest on: docs/failure-modes.md, read row by row.

Only reading and values. The mutations themselves stand in the files beside this one, one per chapter of the page; `run`
plays them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from tests.data import ROOT

PAGE = ROOT / "docs" / "failure-modes.md"
KINDS = ("covered", "later", "not a gateway's")

_ROW = re.compile(r"^\| (?P<row>F\d+) \| (?P<wrong>.+) \| (?P<kind>[a-z' ]+): (?P<said>.+) \|$", re.MULTILINE)
_NODE = re.compile(r"`(tests/[\w/]+\.py::\w+(?:\[[^`]+\])?)`")


class Row(NamedTuple):
    """One row of the page. `said` is all that follows the kind; `tests` are the node ids in it, where it is covered."""

    name: str
    kind: str
    said: str
    tests: tuple[str, ...]


class Mutation(NamedTuple):
    """`old`, which occurs once in `file`, becomes `new`: the behaviour of row `row` is broken, and each of `tests` must
    fail (where none is named: each test of the row)."""

    row: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...] = ()

    def occurrences(self, tree: Path = ROOT) -> int:
        """How often `old` stands in the file; 0 where there is no such file."""
        path = tree / self.file
        return path.read_text(encoding="utf-8").count(self.old) if path.is_file() else 0


def rows(text: str | None = None) -> list[Row]:
    """The rows of the page, in its order."""
    text = PAGE.read_text(encoding="utf-8") if text is None else text
    return [
        Row(found["row"], found["kind"], found["said"], tuple(_NODE.findall(found["said"])))
        for found in _ROW.finditer(text)
    ]


def aimed(mutation: Mutation, known: dict[str, Row]) -> tuple[str, ...]:
    """The tests that must fail once `mutation` is made."""
    return mutation.tests or known[mutation.row].tests
