"""The migrations make the schema that the code states, whole or not at all, and know what they do not know."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine
from sqlalchemy.dialects import postgresql
from sqlalchemy.pool import StaticPool
from sqlalchemy.schema import CreateIndex, CreateTable

from proxy.core.errors import StoreUnavailable
from proxy.core.usage import UsageRow
from proxy.store import migrations, schema
from proxy.store.sqlite import SqliteStore
from proxy.store.sqlite_file import connect
from tests.store.samples import NOW


def empty() -> sqlite3.Connection:
    return connect(":memory:")


def tables(connection: sqlite3.Connection) -> set[str]:
    return {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}


def dump(connection: sqlite3.Connection) -> list[str]:
    return list(connection.iterdump())


def differences(connection: sqlite3.Connection) -> list[object]:
    engine = create_engine("sqlite://", creator=lambda: connection, poolclass=StaticPool)
    with engine.connect() as opened:
        context = MigrationContext.configure(opened, opts={"compare_type": True})
        return list(compare_metadata(context, schema.metadata))


@pytest.mark.parametrize("make", [migrations.upgrade, migrations.migrate])
def test_an_empty_database_is_brought_to_the_stated_schema(make: Callable[[sqlite3.Connection], None]) -> None:
    connection = empty()
    make(connection)
    assert differences(connection) == []
    assert not connection.in_transaction
    connection.execute("DROP INDEX usage_open")
    assert len(differences(connection)) == 1  # the comparison sees what is missing
    connection.close()


def test_an_empty_database_is_made_at_once_as_the_changes_one_by_one_would_make_it() -> None:
    made, changed = empty(), empty()
    migrations.upgrade(made)
    migrations.migrate(changed)
    assert dump(made) == dump(changed)
    assert "usage_open" in "".join(dump(made))
    made.close()
    changed.close()


def test_a_database_that_holds_something_else_is_not_taken_for_an_empty_one() -> None:
    connection = empty()
    connection.execute("CREATE TABLE somebody (name TEXT)")
    migrations.upgrade(connection)
    assert tables(connection) > {"somebody", "usage", "alembic_version"}
    connection.close()


def test_the_head_is_the_newest_change_and_each_has_its_number() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    script = ScriptDirectory.from_config(config)
    assert script.get_heads() == [migrations.HEAD]
    assert {change.revision for change in script.walk_revisions()} == migrations.known()


def test_a_database_of_an_earlier_version_gets_what_came_later_and_keeps_what_it_holds() -> None:
    connection = empty()
    migrations.migrate(connection, to="0001")
    assert "trace" not in tables(connection)
    connection.execute("INSERT INTO conversation VALUES ('t', x'00', 'conv_1', NULL, 0, 0)")
    migrations.upgrade(connection)
    assert differences(connection) == []
    assert connection.execute("SELECT count(*) FROM conversation").fetchone() == (1,)
    connection.close()


def test_a_database_at_the_head_is_left_alone() -> None:
    connection = empty()
    migrations.upgrade(connection)
    said: list[str] = []
    connection.set_trace_callback(said.append)
    migrations.upgrade(connection)
    assert all(line.startswith("SELECT") for line in said), said
    connection.close()


@pytest.mark.parametrize("make", [migrations.upgrade, migrations.migrate])
def test_a_change_that_fails_half_way_leaves_nothing(make: Callable[[sqlite3.Connection], None]) -> None:
    connection = empty()

    def refuse(action: int, name: str | None, *_: object) -> int:
        return sqlite3.SQLITE_DENY if (action, name) == (sqlite3.SQLITE_CREATE_TABLE, "usage") else sqlite3.SQLITE_OK

    connection.set_authorizer(refuse)
    with pytest.raises(Exception, match="not authorized"):
        make(connection)
    connection.set_authorizer(None)
    assert tables(connection) == set()
    make(connection)
    assert differences(connection) == []
    connection.close()


async def test_a_database_of_a_newer_version_is_refused(database: Path) -> None:
    with sqlite3.connect(database) as plain:
        plain.execute("UPDATE alembic_version SET version_num = '9999'")
    plain.close()
    with pytest.raises(StoreUnavailable, match="newer Weirgate"):
        await SqliteStore(str(database)).open(NOW)


def test_the_usage_table_is_the_usage_row() -> None:
    columns = tuple(column.name for column in schema.usage.columns)
    assert columns == (*UsageRow.__struct_fields__, "day", "instance")


def test_every_row_of_a_caller_is_keyed_by_its_tenant() -> None:
    without = {table.name for table in schema.metadata.sorted_tables if "tenant" not in table.primary_key.columns}
    assert without == {"calibration", "secret", "instance", "revision"}


def test_the_schema_can_be_made_on_postgresql() -> None:
    dialect = postgresql.dialect()
    said = [str(CreateTable(table).compile(dialect=dialect)) for table in schema.metadata.sorted_tables]
    said += [
        str(CreateIndex(index).compile(dialect=dialect))
        for table in schema.metadata.sorted_tables
        for index in table.indexes
    ]
    text = "\n".join(said)
    assert "BYTEA" in text
    assert "DOUBLE PRECISION" in text
    assert "cost BIGINT" in text
    assert "WHERE status = 'open'" in text
