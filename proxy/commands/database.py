"""`weirgate db upgrade` and `weirgate purge`: the database's schema, and what is too old in it.

Belongs here: asking the store, and saying what was done. Never: a statement, or a change to a SQLite file that a server
holds. PostgreSQL serves many, so both may be run beside servers.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from proxy.commands.outcome import DONE, WRONG, NotDone, say
from proxy.commands.usage import moment
from proxy.commands.where import Where, configuration, find, opened, running
from proxy.store.migrations import HEAD


class Old(msgspec.Struct, frozen=True, kw_only=True):
    """What `weirgate purge` is to delete, as typed: one of `before` and `older_than`. `tenant` None: of all."""

    before: str | None = None
    older_than: str | None = None
    tenant: str | None = None

    def moment(self, now: float) -> float:
        """Unix seconds. Raises NotDone."""
        if (self.before is None) == (self.older_than is None):
            raise NotDone("say what is old: --older-than 90d, or --before 2026-01-01", WRONG)
        before = moment(self.before or self.older_than, now)
        assert before is not None
        return before


def upgrade(config: Path | None, environ: Mapping[str, str]) -> int:
    """Bring the database to this version's schema; make an empty one where there is none."""
    place = find(configuration(config), None, environ)
    asyncio.run(_upgrade(place))
    say(f"{place.database} is at schema {HEAD}")
    return DONE


async def _upgrade(place: Where) -> None:
    async with opened(msgspec.structs.replace(place, migrate=True), make=True):
        pass


def purge(old: Old, config: Path | None, environ: Mapping[str, str]) -> int:
    """Delete what was last used before a moment, and say how many rows that were."""
    before = old.moment(time.time())
    place = find(configuration(config), None, environ)
    if place.file is not None and running(place, named=False) is not None:
        raise NotDone(f"the server at {place.server} has {place.database}: stop it first, or set store.retention_days")
    gone = asyncio.run(_purge(place, old.tenant, before))
    sys.stdout.write(f"{gone}\n")
    say(f"rows deleted from {place.database}")
    return DONE


async def _purge(place: Where, tenant: str | None, before: float) -> int:
    async with opened(place) as store:
        return await (store.retire(before) if tenant is None else store.purge(tenant, before))
