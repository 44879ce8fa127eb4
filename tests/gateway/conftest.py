"""A house per test, on a copy of a migrated database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from shutil import copyfile

import pytest

from proxy.store.sqlite import SqliteStore
from tests import engine
from tests.driving import House, Housed, opened


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database: a copy of it opens faster than a new one."""
    path = tmp_path_factory.mktemp("gateway") / "migrated.db"

    async def make() -> None:
        opened = SqliteStore(str(path))
        await opened.open(1.0)
        await opened.close()

    asyncio.run(make())
    return path


@pytest.fixture
async def housed(migrated: Path, tmp_path: Path) -> AsyncIterator[Housed]:
    path = tmp_path / "weirgate.db"
    copyfile(migrated, path)
    async with engine.database(path, passing=True) as url:
        yield partial(opened, url)


@pytest.fixture
async def house(housed: Housed) -> AsyncIterator[House]:
    async with housed() as made:
        yield made
