"""`weirgate keys`: client keys of the database, through the running server or, where none runs, on its file.

Belongs here: adding, listing, revoking, and saying what that changes; `limits` changes what a key may use. Never:
showing a secret again; it is printed once, alone on stdout, so that it can be piped into a vault, and is kept nowhere.
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
from proxy.core.quota import Quota
from proxy.server.auth import new_key
from proxy.server.quotas import changed, rules, state
from proxy.server.quotas import shown as limits_shown
from proxy.settings import Settings, load_part
from proxy.store import KeyRow, Standing


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """A key as people see it. `source` is configuration or database; times are unix seconds; `limits` are those in
    force."""

    id: str
    tenant: str
    models: tuple[str, ...] = ("*",)
    created_at: float | None = None
    revoked_at: float | None = None
    source: str = "database"
    state: str = "open"
    limits: Mapping[str, Any] = msgspec.field(default_factory=dict)
    last_used: float | None = None


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


class NewKey(msgspec.Struct, frozen=True, kw_only=True):
    """What a key is made of; `limits` as people state them (`commands.limits`)."""

    tenant: str
    id: str | None
    models: tuple[str, ...]
    limits: Mapping[str, Any]


def add(at: Site, new: NewKey, form: str) -> int:
    """Make a key and show its secret this once."""
    place, models = at.place, new.models
    server = running(place, named=at.url is not None)
    wanted = {name: value for name, value in msgspec.to_builtins(new).items() if value not in (None, {})}
    first = server is not None and not found(at, place)
    made = server.post("keys", wanted) if server is not None else asyncio.run(_add(at, place, new))
    if form == "json":
        sys.stdout.write(msgspec.json.encode(made).decode() + "\n")
    else:
        sys.stdout.write(f"{made['secret']}\n")
    say(f"key {made['id']} of tenant {made['tenant']}, for {', '.join(models)}; its secret is shown this once")
    if first:
        say("the first key: from now on every client needs one, and these commands need admin.secret")
    return DONE


async def _add(at: Site, place: Where, new: NewKey) -> dict[str, Any]:
    if any((key.tenant, key.id) == (new.tenant, new.id) for key in _configured(at).keys):
        raise NotDone("a key with this id stands in the configuration")
    async with opened(place, make=True) as store:
        pepper, now = await store.secret("keys"), time.time()
        row, secret = new_key(pepper, now, tenant=new.tenant, id=new.id, models=new.models)
        limits = changed(Quota(), dict(new.limits))
        await store.add_key(row.tenant, row)
        if limits != Quota():
            await store.set_quota(row.tenant, row.id, limits)
        made = _shown(row, limits, None)
    return {**msgspec.to_builtins(made), "secret": secret}


def show_list(at: Site, form: str) -> int:
    """Every key, never its secret."""
    keys = found(at, at.place)
    if form == "json":
        listed = msgspec.json.encode({"object": "list", "data": keys})
        sys.stdout.write(msgspec.json.format(listed, indent=2).decode() + "\n")
    elif keys:
        names = ("id", "tenant", "models", "state", "made", "used", "in", "limits")
        columns = [Column(name=name, right=False) for name in names]
        show(columns, ([*_cells(key), in_a_line(_counted(key.limits))] for key in keys))
    else:
        say("there are no keys: whoever reaches the gateway is served, which is allowed on loopback only")
    return DONE


def in_a_line(limits: Mapping[str, Any]) -> str:
    """Limits as people read them."""
    return ", ".join(f"{name.replace('_per_', '/')} {_told(name, value)}" for name, value in limits.items())


def _told(name: str, value: Any) -> str:
    if name == "expires":
        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M")
    if name == "stopped":
        return "yes" if value else "no"
    return f"${value:g}" if name == "cost_per_day" else f"{value:,}"


def _counted(limits: Mapping[str, Any]) -> dict[str, Any]:
    """Without what the state of the key says already."""
    return {name: value for name, value in limits.items() if name != "stopped"}


def _cells(key: Key) -> list[str]:
    state = key.state if key.revoked_at is None else f"revoked {_day(key.revoked_at)}"
    made, used = ("" if at is None else _day(at) for at in (key.created_at, key.last_used))
    return [key.id, key.tenant, ", ".join(key.models), state, made, used, key.source]


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")


def revoke(at: Site, id: str, tenant: str | None) -> int:
    """Close a key. A running server refuses it from the next request on."""
    place = at.place
    key = key_named(found(at, place), id, tenant)
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


def key_named(keys: tuple[Key, ...], id: str, tenant: str | None) -> Key:
    """The key of this id. Raises NotDone where there is none, or several tenants have one."""
    named = [key for key in keys if key.id == id and tenant in (None, key.tenant)]
    if not named:
        whose = f" of tenant {tenant}" if tenant else ""
        raise NotDone(f"there is no key {id}{whose}; see `weirgate keys list`")
    if len(named) > 1:
        raise NotDone(f"{len(named)} tenants have a key {id}: say whose with --tenant", WRONG)
    return named[0]


def found(at: Site, place: Where) -> tuple[Key, ...]:
    """Every key, from the running server or from configuration and database."""
    server = running(place, named=at.url is not None)
    if server is not None:
        return msgspec.convert(server.get("keys")["data"], tuple[Key, ...])
    settings = _configured(at)
    configured = {(key.tenant, key.id): key.limits.quota() for key in settings.keys}
    stored, standings = asyncio.run(_stored(place))
    joined = rules(settings.key_limits.quota(), configured, standings)

    def known(row: KeyRow, source: str) -> Key:
        standing = joined.standings.get((row.tenant, row.id))
        made = _shown(row, joined.of(row.tenant, row.id), standing.last_used if standing is not None else None)
        return msgspec.structs.replace(made, source=source)

    listed = [
        KeyRow(id=key.id, tenant=key.tenant, digest=b"", created_at=0, models=key.models) for key in settings.keys
    ]
    return (*(known(row, "configuration") for row in listed), *(known(row, "database") for row in stored))


async def _stored(place: Where) -> tuple[tuple[KeyRow, ...], tuple[Standing, ...]]:
    if not place.known:
        return (), ()
    async with opened(place) as store:
        return await store.keys(), await store.standings()


def _configured(at: Site) -> Settings:
    """The keys of the configuration file, where this shell holds what their secrets refer to."""
    try:
        return load_part(at.config, at.environ, ("keys", "key_limits"))
    except ConfigError as error:
        say(f"the keys of the configuration are left out: {error.problems[0]}")
        return Settings()


def _shown(row: KeyRow, quota: Quota, used: float | None) -> Key:
    return Key(
        id=row.id,
        tenant=row.tenant,
        models=row.models,
        created_at=row.created_at or None,
        revoked_at=row.revoked_at,
        state=state(row, quota, time.time()),
        limits=limits_shown(quota),
        last_used=used,
    )
