"""The stores that must all behave alike. A new fulfilment joins by one more name here."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from proxy.store import Store
from proxy.store.sqlite import SqliteStore
from tests.store.samples import NOW


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


@pytest.fixture(params=["memory", "file", "no content at rest"])
async def store(request: pytest.FixtureRequest, database: Path) -> AsyncIterator[Store]:
    path = ":memory:" if request.param == "memory" else str(database)
    opened = SqliteStore(path, content=request.param != "no content at rest")
    assert await opened.open(NOW) == 0
    yield opened
    await opened.close()
