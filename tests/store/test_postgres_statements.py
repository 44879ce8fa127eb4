"""What PostgreSQL is told: current, never without the tenant, and by an index."""

from __future__ import annotations

import re
from collections.abc import Iterator

import asyncpg

from proxy.store import composing_postgres, schema
from proxy.store.postgres_statements import COPIED, compiled

WITHOUT = {"calibration", "secret", "instance", "revision"}
CALLERS = {table.name for table in schema.metadata.sorted_tables} - WITHOUT
# Read whole by those who run the installation: keys and what was set for them, what was learned, who is alive; and what
# is done for all tenants at once: closing the rows of the dead, what each key used today.
FOR_ALL = {"keys", "standings", "spent", "reap"}
LISTED = FOR_ALL | {"calibrations", "forget_dead"}
DUMMIES = {"text": "", "varchar": "", "bytea": b"", "float8": 0.0, "int4": 0, "int8": 0, "bool": False}


def every_statement() -> Iterator[tuple[str, str]]:
    said = compiled().statements
    for name in said.__struct_fields__:
        value = getattr(said, name)
        yield from value.items() if isinstance(value, dict) else ((name, value),)


def test_the_text_that_is_read_is_what_the_tables_and_statements_make() -> None:
    assert compiled() == composing_postgres.composed(), "run python scripts/statements.py"
    assert tuple(column.name for column in schema.usage.columns) == COPIED


def test_every_statement_on_a_callers_rows_names_the_tenant() -> None:
    for name, text in every_statement():
        # Every part of a union, and what a condition asks besides.
        for part in re.split(r"\bUNION ALL\b", text):
            tables = set(re.findall(r"(?:FROM|INTO|UPDATE|JOIN) (\w+)", part)) & CALLERS
            if tables and name not in FOR_ALL:
                condition = part if part.startswith("INSERT") else part.partition("WHERE")[2]
                assert "tenant" in condition, f"{name}: {part}"


async def test_every_statement_finds_its_rows_by_an_index(shared: str) -> None:
    connection = await asyncpg.connect(shared)
    reports = compiled().reports
    single = (reports.rows_of_all, reports.rows_of_tenant)
    texts = [*every_statement(), *(("report", text) for text in single)]
    await connection.execute("SET enable_seqscan = off")
    for name, text in texts:
        if name in LISTED or (text.startswith("INSERT") and "SELECT" not in text):
            continue
        kinds = (await connection.prepare(text)).get_parameters()
        values = [[] if kind.kind == "array" else DUMMIES[kind.name] for kind in kinds]
        plan = "\n".join(row[0] for row in await connection.fetch(f"EXPLAIN {text}", *values))
        assert "Seq Scan" not in plan.replace("Seq Scan on instance", "the few processes"), f"{name}:\n{plan}"
    open_rows = await connection.fetch("EXPLAIN SELECT 1 FROM usage WHERE status = 'open'")
    assert "status_" in str(open_rows) or "opened_at_idx" in str(open_rows)
    await connection.close()
