"""Which store an address names, how it is shown, and what it costs those who do not use it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from proxy.store.address import from_url, shown
from proxy.store.postgres import PostgresStore
from proxy.store.postgres_unwritten import UnwrittenStore
from proxy.store.sqlite import SqliteStore

HOST = "postgresql://h:5432/db"


@pytest.mark.parametrize(
    ("url", "content", "kind"),
    [
        ("sqlite://", True, SqliteStore),
        ("postgresql://u@h/db", True, PostgresStore),
        ("postgres://u@h/db", True, PostgresStore),
        ("postgresql://u@h/db", False, UnwrittenStore),
    ],
)
def test_an_address_names_its_store(url: str, content: bool, kind: type[object]) -> None:
    assert type(from_url(url, content=content)) is kind


def test_another_address_names_none() -> None:
    with pytest.raises(ValueError, match="sqlite:///"):
        from_url("mysql://u@h/db")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:s3cret@h:5432/db",
        "postgres://me:s3cret@h:5432/db?sslmode=require&password=s3cret",
        "postgresql://h:5432/db?password=s3cret",
        "postgresql://me:p%40s3cret%2F@h:5432/db",
    ],
)
def test_an_address_is_shown_without_user_password_and_options(url: str) -> None:
    assert shown(url) == HOST


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("postgresql://me:s3cret@h", "postgresql://h"),
        ("postgresql://me:s3c/ret@h/db", "postgresql://h/db"),
        ("postgresql://me:s3c?ret@h/db", "postgresql://***"),
        ("postgresql://h/db?user=me@x&password=s3cret", "postgresql://***"),
        ("postgresql:///db?host=h&password=s3cret", "postgresql:///db"),
    ],
)
def test_an_address_that_is_hard_to_read_shows_no_password_either(url: str, told: str) -> None:
    assert shown(url) == told


@pytest.mark.parametrize(
    "asked", ["import proxy.app", "from proxy.store.address import from_url; from_url('sqlite://')"]
)
def test_who_uses_sqlite_imports_no_driver_of_postgresql(asked: str) -> None:
    absent = "assert not {'asyncpg', 'sqlalchemy', 'alembic'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", f"{asked}; import sys; {absent}"], check=True)


def test_a_start_on_postgresql_imports_nothing_that_makes_statements(shared: str) -> None:
    asked = f"""
import asyncio, sys
from proxy.store.address import from_url
async def run():
    store = from_url({shared!r})
    await store.open(0)
    await store.close()
asyncio.run(run())
assert not {{'sqlalchemy', 'alembic'}} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", asked], check=True)
