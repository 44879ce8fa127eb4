"""No statement on a caller's rows forgets whose they are, and each finds them by an index."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator

import msgspec
import pytest

from proxy.store import composing, migrations, schema, statements
from proxy.store.sqlite_file import connect

CALLERS = {table.name for table in schema.metadata.sorted_tables} - {"calibration", "secret", "instance", "revision"}
# Read whole by those who run the installation: all keys at start, and the operator's reports.
FOR_ALL = {"keys", "standing.standings", "standing.spent"}


def every_statement() -> Iterator[tuple[str, str]]:
    said = statements.compiled().statements
    for name in said.__struct_fields__:
        value = getattr(said, name)
        if isinstance(value, dict):
            yield from ((f"{name}.{key}", text) for key, text in value.items())
        else:
            yield from ((name, text) for text in ((value,) if isinstance(value, str) else value))


def test_every_statement_on_a_callers_rows_names_the_tenant() -> None:
    for name, text in every_statement():
        table = re.search(r"(?:FROM|INTO|UPDATE) (\w+)", text)
        assert table is not None, name
        if table[1] not in CALLERS or name in FOR_ALL:
            continue
        condition = text if text.startswith("INSERT") else text.partition("WHERE")[2]
        assert "tenant" in condition, f"{name}: {text}"


def plan(connection: sqlite3.Connection, text: str) -> str:
    rows = connection.execute(f"EXPLAIN QUERY PLAN {text}", (0,) * text.count("?")).fetchall()
    return "; ".join(row[3] for row in rows)


def test_every_statement_finds_its_rows_by_an_index() -> None:
    connection = connect(":memory:")
    migrations.upgrade(connection)
    texts = [(name, text) for name, text in every_statement() if not text.startswith("INSERT")]
    reports = statements.compiled().reports
    single = (reports.rows_of_all, reports.rows_of_tenant)
    sums = (reports.sums_of_all, reports.sums_of_tenant)
    texts += [("report", text) for text in (*single, *sums)]
    for name, text in texts:
        if name in FOR_ALL | {"calibrations"}:
            continue
        assert "SCAN" not in plan(connection, text), f"{name}: {plan(connection, text)}"
    open_rows = plan(connection, "SELECT rowid FROM usage WHERE status = 'open' LIMIT 10")
    assert "usage_open" in open_rows, open_rows
    connection.close()


def test_statements_are_text_and_cannot_be_changed() -> None:
    said = statements.compiled().statements
    assert isinstance(msgspec.structs.asdict(said)["open_row"], str)
    with pytest.raises(AttributeError):
        said.open_row = ""  # type: ignore[misc] # what is tested


def test_the_text_that_is_read_is_what_the_tables_and_statements_make() -> None:
    made = composing.composed()
    assert statements.compiled() == made, "run python scripts/statements.py"
    assert tuple(column.name for column in schema.usage.columns) == (*statements.USAGE_COLUMNS, "instance")
