"""`weirgate keys`: client keys of the database, through the running server or, where none runs, on its file.

Belongs here: adding, listing, revoking, and saying what that changes. Never: showing a secret again; it is printed
once, alone on stdout, so that it can be piped into a vault, and is kept nowhere.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from proxy.commands.outcome import DONE, WRONG, NotDone, say
from proxy.commands.table import Column, show
from proxy.commands.where import Where, configuration, find, opened, running
from proxy.configfile import ConfigError
from proxy.server.auth import new_key
from proxy.settings import load_part
from proxy.store import KeyRow


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """A key as people see it. `source` is configuration or database; times are unix seconds."""

    id: str
    tenant: str
    models: tuple[str, ...] = ("*",)
    created_at: float | None = None
    revoked_at: float | None = None
    source: str = "database"


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """Where the keys are: what was given on the command line."""

    config: Path | None
    url: str | None
    environ: Mapping[str, str]

    @property
    def place(self) -> Where:
        return find(self.config, self.url, self.environ)


def site(config: Path | None, url: str | None, environ: Mapping[str, str]) -> Site:
    return Site(config=configuration(config), url=url, environ=environ)


def add(at: Site, tenant: str, id: str | None, models: tuple[str, ...], form: str) -> int:
    """Make a key and show its secret this once."""
    place = at.place
    server = running(place, named=at.url is not None)
    wanted = {"tenant": tenant, "models": models, **({"id": id} if id is not None else {})}
    first = server is not None and not _keys(at, place)
    made = server.post("keys", wanted) if server is not None else asyncio.run(_add(at, place, tenant, id, models))
    if form == "json":
        sys.stdout.write(msgspec.json.encode(made).decode() + "\n")
    else:
        sys.stdout.write(f"{made['secret']}\n")
    say(f"key {made['id']} of tenant {made['tenant']}, for {', '.join(models)}; its secret is shown this once")
    if first:
        say("the first key: from now on every client needs one, and these commands need admin.secret")
    return DONE


async def _add(at: Site, place: Where, tenant: str, id: str | None, models: tuple[str, ...]) -> dict[str, Any]:
    if any((key.tenant, key.id) == (tenant, id) for key in _configured(at)):
        raise NotDone("a key with this id stands in the configuration")
    async with opened(place, make=True) as store:
        row, secret = new_key(await store.secret("keys"), time.time(), tenant=tenant, id=id, models=models)
        await store.add_key(row.tenant, row)
    return {**msgspec.to_builtins(_shown(row)), "secret": secret}


def show_list(at: Site, form: str) -> int:
    """Every key, never its secret."""
    found = _keys(at, at.place)
    if form == "json":
        listed = msgspec.json.encode({"object": "list", "data": found})
        sys.stdout.write(msgspec.json.format(listed, indent=2).decode() + "\n")
    elif found:
        columns = [Column(name=name, right=False) for name in ("id", "tenant", "models", "state", "made", "in")]
        show(columns, (_cells(key) for key in found))
    else:
        say("there are no keys: whoever reaches the gateway is served, which is allowed on loopback only")
    return DONE


def _cells(key: Key) -> list[str]:
    state = "open" if key.revoked_at is None else f"revoked {_day(key.revoked_at)}"
    made = "" if key.created_at is None else _day(key.created_at)
    return [key.id, key.tenant, ", ".join(key.models), state, made, key.source]


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")


def revoke(at: Site, id: str, tenant: str | None) -> int:
    """Close a key. A running server refuses it from the next request on."""
    place = at.place
    key = _one(_keys(at, place), id, tenant)
    if key.source == "configuration":
        raise NotDone(f"key {id} stands in the configuration: take it out there and restart the server")
    if key.revoked_at is not None:
        say(f"key {id} of tenant {key.tenant} was revoked on {_day(key.revoked_at)}")
        return DONE
    server = running(place, named=at.url is not None)
    if server is not None:
        server.post(f"keys/{quote(key.tenant, safe='')}/{quote(key.id, safe='')}/revoke")
    elif not asyncio.run(_revoke(place, key)):
        raise NotDone(f"there is no key {id}")
    say(f"key {id} of tenant {key.tenant} opens nothing any more")
    return DONE


async def _revoke(place: Where, key: Key) -> bool:
    async with opened(place) as store:
        return await store.revoke_key(key.tenant, key.id, time.time())


def _one(keys: tuple[Key, ...], id: str, tenant: str | None) -> Key:
    found = [key for key in keys if key.id == id and tenant in (None, key.tenant)]
    if not found:
        whose = f" of tenant {tenant}" if tenant else ""
        raise NotDone(f"there is no key {id}{whose}; see `weirgate keys list`")
    if len(found) > 1:
        raise NotDone(f"{len(found)} tenants have a key {id}: say whose with --tenant", WRONG)
    return found[0]


def _keys(at: Site, place: Where) -> tuple[Key, ...]:
    server = running(place, named=at.url is not None)
    if server is not None:
        return msgspec.convert(server.get("keys")["data"], tuple[Key, ...])
    return (*_configured(at), *asyncio.run(_stored(place)))


async def _stored(place: Where) -> tuple[Key, ...]:
    if not place.database.is_file():
        return ()
    async with opened(place) as store:
        return tuple(map(_shown, await store.keys()))


def _configured(at: Site) -> tuple[Key, ...]:
    """Those of the configuration file, where this shell holds what their secrets refer to."""
    try:
        rows = load_part(at.config, at.environ, ("keys",)).keys
    except ConfigError as error:
        say(f"the keys of the configuration are left out: {error.problems[0]}")
        return ()
    return tuple(Key(id=row.id, tenant=row.tenant, models=row.models, source="configuration") for row in rows)


def _shown(row: KeyRow) -> Key:
    return Key(
        id=row.id, tenant=row.tenant, models=row.models, created_at=row.created_at or None, revoked_at=row.revoked_at
    )
