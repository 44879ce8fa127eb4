"""The stores that must all behave alike. A new fulfilment joins by one more name here."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from proxy.store import Store, schema
from proxy.store.address import from_url
from proxy.store.owned import Conversations
from proxy.store.postgres import PostgresStore
from proxy.store.sqlite import SqliteStore
from tests.postgres import Cluster
from tests.store.samples import NOW

_NUMBERS = itertools.count()
_EMPTY = "TRUNCATE " + ", ".join(f'"{table.name}"' for table in schema.metadata.sorted_tables)


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database at the newest schema: a copy of it opens faster than a new one."""
    path = tmp_path_factory.mktemp("store") / "migrated.db"

    async def make() -> None:
        opened = SqliteStore(str(path))
        await opened.open(NOW)
        await opened.close()

    asyncio.run(make())
    return path


@pytest.fixture
def database(migrated: Path, tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "weirgate.db"
    shutil.copyfile(migrated, path)
    yield path


@pytest.fixture(scope="session")
def server(cluster: Cluster) -> Cluster:
    """A PostgreSQL whose database `migrated` is empty, at the newest schema, and used by nobody."""

    async def make(url: str) -> None:
        opened = from_url(url)
        await opened.open(NOW)
        await opened.close()

    asyncio.run(make(cluster.create("migrated")))
    cluster.create("shared", like="migrated")
    return cluster


@pytest.fixture
def shared(server: Cluster) -> str:
    """The address of a database at the newest schema, emptied for each test: quicker than a new one."""
    server.say(_EMPTY, "shared")
    return server.url("shared")


@pytest.fixture
async def opened(shared: str) -> AsyncIterator[PostgresStore]:
    """A store on it."""
    store = PostgresStore(shared)
    await store.open(NOW)
    yield store
    await store.close()


@pytest.fixture
def own(server: Cluster) -> Iterator[str]:
    """The name of a database of the test's own, at the newest schema, for one that changes more than rows."""
    name = f"own{next(_NUMBERS)}"
    server.create(name, like="migrated")
    yield name
    server.drop(name)


@pytest.fixture(params=["memory", "file", "no content at rest", "postgresql", "postgresql, no content at rest"])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def address(request: pytest.FixtureRequest, kind: str) -> str:
    """Where the store of that kind is."""
    if kind.startswith("postgresql"):
        url: str = request.getfixturevalue("shared")
        return url
    return "sqlite://" if kind == "memory" else f"sqlite:///{request.getfixturevalue('database')}"


@pytest.fixture
async def store(kind: str, address: str) -> AsyncIterator[Store]:
    opened = from_url(address, content=not kind.endswith("no content at rest"))
    assert await opened.open(NOW) == 0
    yield opened
    await opened.close()


@pytest.fixture(params=["memory", "file", "postgresql"])
def keeper(request: pytest.FixtureRequest) -> str:
    """Where a store is that keeps conversations."""
    if request.param == "postgresql":
        url: str = request.getfixturevalue("shared")
        return url
    return "sqlite://" if request.param == "memory" else f"sqlite:///{request.getfixturevalue('database')}"


@pytest.fixture
async def conversations(keeper: str) -> AsyncIterator[Conversations]:
    opened = from_url(keeper)
    await opened.open(NOW)
    assert opened.conversations is not None
    yield opened.conversations
    await opened.close()
