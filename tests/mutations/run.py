"""Break each behaviour that docs/failure-modes.md calls covered, and see its tests fail.

    make mutations                 every row            make mutations ARGS="F12 F40"    some of them

Works on two copies of the tree in a temporary folder, never on the checkout, and runs only the tests that are named. A
mutation is killed where each of its tests fails; a test that passes, was skipped or never ran lets it survive. Exit
status 1 where one survives, where a text to be changed does not occur exactly once any more, or where the named tests
fail without any mutation; 2 where a row is asked for that is not covered.
"""

from __future__ import annotations

import compileall
import os
import py_compile
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import NamedTuple
from xml.etree import ElementTree

from tests import data, house
from tests.mutations.every import MUTATIONS
from tests.mutations.listed import Mutation, Row, aimed, rows

PROCESSES = 2
LONGEST = 300
"""Seconds that the tests of one mutation may take together."""


class Played(NamedTuple):
    """How one mutation ended: `killed`, or why not."""

    mutation: Mutation
    end: str
    seconds: float

    @property
    def line(self) -> str:
        return f"{self.mutation.row:<5} {self.end:<9} {self.seconds:5.1f} s  {self.mutation.file}"


def copied(folder: Path) -> Path:
    """The tree as it stands, compiled so that a changed source is noticed by its content and not by its time."""
    for path in house.files():
        there = folder / house.short(path)
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, there)
    checked = py_compile.PycInvalidationMode.CHECKED_HASH
    for room in ("proxy", "tests", "benchmarks"):
        compileall.compile_dir(folder / room, quiet=1, invalidation_mode=checked)
    return folder


def outcomes(tree: Path, tests: Iterable[str]) -> dict[str, str]:
    """`failed` or `passed` for each test that ran in `tree`, all its parameters together."""
    report = tree / "outcomes.xml"
    report.unlink(missing_ok=True)
    quickly = ["-p", "tests.mutations.quickly", "--hypothesis-profile=quickly"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *quickly]
    told = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "WEIRGATE_DATA": str(data.folder())}
    try:
        subprocess.run(
            [*command, f"--junitxml={report}", *tests],
            cwd=tree,
            env=told,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=LONGEST,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {}
    return read(ElementTree.parse(report).getroot()) if report.is_file() else {}


def read(report: ElementTree.Element) -> dict[str, str]:
    """The outcomes in pytest's report, by node id, and by node id without its parameters."""
    found: dict[str, str] = {}
    for case in report.iter("testcase"):
        file = case.get("classname", "").replace(".", "/")
        inner = {child.tag for child in case}
        ended = "failed" if inner & {"failure", "error"} else "skipped" if "skipped" in inner else "passed"
        whole = f"{file}.py::{case.get('name', '')}"
        for node in {whole, whole.partition("[")[0]}:
            found[node] = "failed" if "failed" in (ended, found.get(node)) else ended
    return found


def play(mutation: Mutation, tests: tuple[str, ...], tree: Path) -> Played:
    """Make `mutation` in `tree`, run its tests, take it back."""
    path = tree / mutation.file
    before = path.read_text(encoding="utf-8")
    began = time.monotonic()
    path.write_text(before.replace(mutation.old, mutation.new), encoding="utf-8")
    try:
        ended = outcomes(tree, tests)
    finally:
        path.write_text(before, encoding="utf-8")
    counted = Counter(ended.get(test, "not run") for test in tests)
    survived = next((end for end in ("passed", "skipped", "not run") if counted[end]), None)
    end = "killed" if survived is None else "survived" if survived == "passed" else survived
    return Played(mutation, end, time.monotonic() - began)


def main(asked: list[str]) -> int:
    known = {row.name: row for row in rows()}
    strange = sorted(set(asked) - {mutation.row for mutation in MUTATIONS})
    if strange:
        print(f"nothing to break: {', '.join(strange)} (docs/failure-modes.md says what is covered)")
        return 2
    wanted = [mutation for mutation in MUTATIONS if not asked or mutation.row in asked]
    stale = [mutation for mutation in wanted if mutation.occurrences() != 1]
    for mutation in stale:
        print(f"{mutation.row:<5} stale: {mutation.occurrences()} times in {mutation.file}: {mutation.old!r}")
    ready = [mutation for mutation in wanted if mutation not in stale]
    with TemporaryDirectory(prefix="mutations-") as folder:
        trees = [copied(Path(folder) / str(number)) for number in range(PROCESSES)]
        ill = unwell(trees[0], {test for mutation in ready for test in aimed(mutation, known)})
        played = [] if ill else every(ready, known, trees)
    for test in ill:
        print(f"fails without any mutation: {test}")
    survivors = [each for each in played if each.end != "killed"]
    print(
        f"{len(played)} mutations of {len({each.mutation.row for each in played})} rows: "
        f"{len(played) - len(survivors)} killed, {len(survivors)} survived, {len(stale)} stale"
    )
    return 1 if survivors or stale or ill else 0


def unwell(tree: Path, tests: set[str]) -> list[str]:
    """Those of `tests` that do not pass as things stand."""
    ended = outcomes(tree, sorted(tests))
    return sorted(f"{test} ({ended.get(test, 'not run')})" for test in tests if ended.get(test) != "passed")


def every(mutations: list[Mutation], known: dict[str, Row], trees: list[Path]) -> list[Played]:
    """Play all of them, a tree for each process; the table grows as they end."""
    free: SimpleQueue[Path] = SimpleQueue()
    for tree in trees:
        free.put(tree)

    def one(mutation: Mutation) -> Played:
        tree = free.get()
        try:
            played = play(mutation, aimed(mutation, known), tree)
        finally:
            free.put(tree)
        print(played.line, flush=True)
        return played

    with ThreadPoolExecutor(len(trees)) as workers:
        return list(workers.map(one, mutations))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
