"""docs/failure-modes.md cannot lie: it names every row once, and its tests and mutations are there.

That the tests fail when the behaviour breaks is proven by `make mutations`, which takes minutes; here is only what a
change elsewhere would silently undo.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests import house
from tests.data import ROOT
from tests.mutations.every import MUTATIONS
from tests.mutations.listed import KINDS, Mutation, aimed, rows
from tests.mutations.run import play, read

ROWS = [f"F{number}" for number in range(1, 107)]
KNOWN = {row.name: row for row in rows()}


def functions(file: str) -> set[str]:
    """The test functions of a file of this tree; none where there is no such file."""
    path = ROOT / file
    if not path.is_file():
        return set()
    return {
        node.name for node in ast.walk(house.tree(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def missing(tests: set[str]) -> Iterator[str]:
    for test in sorted(tests):
        file, _, name = test.partition("::")
        if name.partition("[")[0] not in functions(file):
            yield test


def test_the_page_names_every_row_once_and_in_order() -> None:
    assert [row.name for row in rows()] == ROWS


def test_each_row_is_of_a_known_kind_and_says_enough() -> None:
    for row in rows():
        assert row.kind in KINDS, row
        assert bool(row.tests) is (row.kind == "covered"), f"{row.name}: tests are named where a row is covered"
        assert row.kind != "later" or "issue" in row.said, f"{row.name}: later, but with which issue?"
        assert len(row.said) > 20, f"{row.name} gives no reason"


def test_each_test_that_the_page_or_a_mutation_names_is_there() -> None:
    named = {test for row in rows() for test in row.tests} | {test for each in MUTATIONS for test in each.tests}
    assert [*missing(named)] == []
    assert [*missing({"tests/test_failure_modes.py::test_that_is_not_there", "tests/gone.py::test_x"})] != []


def test_each_covered_row_has_mutations_for_every_test_that_it_names() -> None:
    covered = {row.name: set(row.tests) for row in rows() if row.kind == "covered"}
    broken: dict[str, set[str]] = {}
    for mutation in MUTATIONS:
        assert mutation.row in covered, f"{mutation.row} has a mutation and is not covered"
        broken.setdefault(mutation.row, set()).update(aimed(mutation, KNOWN))
    assert broken == covered


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.row)
def test_what_a_mutation_changes_occurs_once(mutation: Mutation) -> None:
    assert mutation.occurrences() == 1, f"{mutation.old!r} in {mutation.file}"
    assert mutation.new != mutation.old


def test_a_changed_source_is_still_python() -> None:
    for mutation in MUTATIONS:
        source = (ROOT / mutation.file).read_text(encoding="utf-8")
        ast.parse(source.replace(mutation.old, mutation.new))


# -- the reader and the player ---------------------------------------------------------------------------------------


def test_a_row_is_read_with_its_kind_and_its_tests() -> None:
    page = (
        "| F1 | It | goes. | covered: `tests/a.py::test_b[x y]`, `tests/c/d.py::test_e` |\n"
        "| F2 | So. | later: issue 6. |"
    )
    first, second = rows(page)
    assert (first.name, first.kind, first.tests) == (
        "F1",
        "covered",
        ("tests/a.py::test_b[x y]", "tests/c/d.py::test_e"),
    )
    assert (second.kind, second.said, second.tests) == ("later", "issue 6.", ())


def test_one_failing_parameter_is_a_failure_and_a_skipped_test_is_none() -> None:
    report = ElementTree.fromstring(
        "<testsuite>"
        '<testcase classname="tests.a" name="test_x[1]"><failure/></testcase>'
        '<testcase classname="tests.a" name="test_x[2]"/>'
        '<testcase classname="tests.a" name="test_y"><skipped/></testcase>'
        "</testsuite>"
    )
    assert read(report) == {
        "tests/a.py::test_x[1]": "failed",
        "tests/a.py::test_x[2]": "passed",
        "tests/a.py::test_x": "failed",
        "tests/a.py::test_y": "skipped",
    }


@pytest.mark.parametrize(("new", "end"), [("1", "killed"), ("2 * 1", "survived")])
def test_a_mutation_is_killed_by_a_test_that_fails_and_taken_back(tmp_path: Path, new: str, end: str) -> None:
    (tmp_path / "conftest.py").write_text("")
    (tmp_path / "thing.py").write_text("VALUE = 2\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_thing.py").write_text(
        "def test_it():\n    from pathlib import Path\n    assert '= 2' in Path('thing.py').read_text()\n"
    )
    mutation = Mutation("F1", "thing.py", "VALUE = 2", f"VALUE = {new}")
    played = play(mutation, ("tests/test_thing.py::test_it",), tmp_path)
    assert played.end == end
    assert (tmp_path / "thing.py").read_text() == "VALUE = 2\n"
    assert play(mutation, ("tests/test_thing.py::test_gone",), tmp_path).end == "not run"
