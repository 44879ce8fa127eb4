"""The migrations on PostgreSQL make the schema that the code states, whole or not at all, one process at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import msgspec
import pytest
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex, CreateTable

from proxy.core.errors import StoreUnavailable
from proxy.store import UsageQuery, migrations, schema
from proxy.store.postgres import PostgresStore
from proxy.store.postgres_changes import upgrade
from proxy.store.postgres_pool import Pool
from proxy.store.postgres_statements import compiled
from tests.postgres import Cluster
from tests.store.samples import NOW, ask, row

_COLUMNS = (
    "SELECT table_name, column_name, data_type, is_nullable, ordinal_position FROM information_schema.columns"
    " WHERE table_schema = 'public' AND table_name !~ '^usage_|^alembic' ORDER BY 1, 5"
)
_INDEXES = (
    "SELECT tablename, regexp_replace(indexdef, 'ON ONLY', 'ON') FROM pg_indexes WHERE schemaname = 'public'"
    " AND tablename !~ '^usage_|^alembic' AND indexname !~ '^usage_(pkey|by_month)' ORDER BY indexname"
)


@pytest.fixture
def empty(server: Cluster) -> Iterator[str]:
    """The name of a database that holds nothing."""
    server.drop("empty")
    server.create("empty")
    yield "empty"
    server.drop("empty")


def stated() -> str:
    """The schema as `schema` says it."""
    dialect = postgresql.dialect()
    tables = schema.metadata.sorted_tables
    made = [str(CreateTable(table).compile(dialect=dialect)) for table in tables]
    made += [str(CreateIndex(index).compile(dialect=dialect)) for table in tables for index in table.indexes]
    return ";".join(made)


def before(server: Cluster, database: str, version: str) -> None:
    """The database as an earlier version left it."""
    for number, script in compiled().changes.items():
        if number <= version:
            server.say(script, database)


async def opened(url: str, **how: bool) -> None:
    store = PostgresStore(url, **how)
    await store.open(NOW)
    await store.close()


async def test_an_empty_database_is_brought_to_the_stated_schema(server: Cluster, empty: str, own: str) -> None:
    server.say(stated(), empty)
    for asked in (_COLUMNS, _INDEXES):
        assert server.say(asked, own) == server.say(asked, empty)
    assert server.say("SELECT version_num FROM alembic_version", own) == migrations.HEAD
    server.say("DROP INDEX hidden_reply", own)
    assert server.say(_INDEXES, own) != server.say(_INDEXES, empty)  # the comparison sees what is missing


@pytest.mark.parametrize("version", ["0001", "0003"])
async def test_a_database_of_an_earlier_version_gets_what_came_later_and_keeps_what_it_holds(
    server: Cluster, empty: str, version: str
) -> None:
    before(server, empty, version)
    server.say("INSERT INTO conversation VALUES ('t', '', 'conv_1', 'chat', 0, 0)", empty)
    columns = [column for column in schema.usage.columns if column.name != "instance"]
    kinds = {"Text": "'x'", "Boolean": "false"}
    values = [f"{kinds.get(type(column.type).__name__, '7')}" for column in columns]
    server.say(f"INSERT INTO usage VALUES ({', '.join(values)})", empty)
    store = PostgresStore(server.url(empty))
    await store.open(NOW)
    assert (await store.recall("t", ask("u", scope=b"", label="chat"), NOW)).conversation == "conv_1"
    assert [(each.id, each.input) for each in await store.usage(UsageQuery())] == [("x", 7)]
    await store.close()
    assert server.say("SELECT version_num FROM alembic_version", empty) == migrations.HEAD


async def test_of_many_that_start_on_an_empty_database_one_makes_it(server: Cluster, empty: str) -> None:
    await asyncio.gather(*(opened(server.url(empty)) for _ in range(5)))
    assert server.say("SELECT version_num FROM alembic_version", empty) == migrations.HEAD


@pytest.mark.parametrize("version", ["", "0003"])
async def test_who_may_not_change_the_schema_refuses_one_that_is_behind(
    server: Cluster, empty: str, version: str
) -> None:
    before(server, empty, version)
    with pytest.raises(StoreUnavailable, match="weirgate db upgrade"):
        await opened(server.url(empty), migrate=False)
    there = server.say("SELECT to_regclass('revision')", empty)
    assert there == ""
    await opened(server.url(empty))
    await opened(server.url(empty), migrate=False)


async def test_a_database_of_a_newer_version_is_refused(server: Cluster, own: str) -> None:
    server.say("UPDATE alembic_version SET version_num = '9999'", own)
    with pytest.raises(StoreUnavailable, match="newer Weirgate"):
        await opened(server.url(own))


async def test_a_change_that_fails_half_way_leaves_nothing(server: Cluster, empty: str) -> None:
    made = compiled()
    broken = msgspec.structs.replace(
        made, changes=dict(made.changes) | {"0004": "CREATE TABLE half (n int); SELECT 1/0"}
    )
    pool = Pool(server.url(empty), 1)
    await pool.start()
    with pytest.raises(Exception, match="zero"):
        await upgrade(pool, broken, allowed=True)
    assert server.say("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'", empty) == "0"
    assert await upgrade(pool, made, allowed=True) == (None, made.head)
    await pool.close()


async def test_a_user_who_may_make_no_tables_is_served_from_the_default(server: Cluster, own: str) -> None:
    server.say("DROP TABLE usage_2027_01; DROP ROLE IF EXISTS clerk; CREATE ROLE clerk LOGIN", own)
    server.say("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO clerk", own)
    store = PostgresStore(server.url(own).replace("weirgate@", "clerk@"), migrate=False)
    await store.open(NOW)
    await store.close_row(row(status="ok"))
    assert [each.id for each in await store.usage(UsageQuery())] == ["row_1"]
    assert server.say("SELECT count(*) FROM usage_default", own) == "1"
    await store.close_row(row("row_2", status="ok", opened_at=NOW + 31 * 86_400))
    assert await store.retire(NOW + 100 * 86_400) == 2
    await store.close()
    server.say("DROP OWNED BY clerk; DROP ROLE clerk", own)
