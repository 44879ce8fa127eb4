"""`weirgate keys limit`, and limits on the command line: NAME=VALUE into what the operator's route is told.

Belongs here: reading what people type (`cost_per_day=5`, `expires=2027-01-31`, `tokens_per_day=none`). Never: what a
limit means.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import quote

import msgspec

from proxy.commands.keys import Key, NewKey, Site, found, in_a_line, key_named
from proxy.commands.outcome import DONE, WRONG, NotDone, say
from proxy.commands.where import Where, opened, running
from proxy.configfile.quotas import moment
from proxy.core.errors import Malformed
from proxy.core.quota import Quota
from proxy.server.quotas import LIMITS, changed

_WORDS: Final[Mapping[str, bool | None]] = {"yes": True, "true": True, "no": False, "false": False, "none": None}


def wanted(tenant: str, id: str | None, models: list[str] | None, limits: list[str] | None) -> NewKey:
    """The key that the command line asks for. Raises NotDone."""
    return NewKey(tenant=tenant, id=id, models=tuple(models or ("*",)), limits=stated(limits or ()))


def stated(texts: Iterable[str]) -> dict[str, Any]:
    """The limits that `texts` state; None takes one back. Raises NotDone."""
    told: dict[str, Any] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name not in LIMITS or not value:
            raise NotDone(f"'{text[:60]}' is no limit: write NAME=VALUE, with one of {', '.join(LIMITS)}", WRONG)
        told[name] = _value(name, value)
    return told


def _value(name: str, text: str) -> object:
    word = text.lower()
    if word == "none" or (name == "stopped" and word in _WORDS):
        return _WORDS[word]
    try:
        if name == "expires":
            return moment(float(text) if text.replace(".", "", 1).isdigit() and len(text) > 8 else text)
        return float(text) if name == "cost_per_day" else int(text.replace("_", ""))
    except ValueError:
        kind = {"expires": "a date or time", "cost_per_day": "dollars", "stopped": "yes or no"}.get(name, "a number")
        raise NotDone(f"{name} is {kind}, or none", WRONG) from None


def limit(at: Site, id: str, tenant: str | None, texts: tuple[str, ...]) -> int:
    """Change limits of a key, and say which hold now. A running server keeps to them from the next request on."""
    wanted = stated(texts)
    place = at.place
    key = key_named(found(at, place), id, tenant)
    server = running(place, named=at.url is not None)
    if server is not None:
        path = f"keys/{quote(key.tenant, safe='')}/{quote(key.id, safe='')}"
        now = msgspec.convert(server.patch(path, {"limits": wanted}), Key)
    else:
        asyncio.run(_change(place, key, wanted))
        now = key_named(found(at, place), key.id, key.tenant)
    say(f"key {now.id} of tenant {now.tenant}: {in_a_line(now.limits) or 'no limits'}")
    return DONE


async def _change(place: Where, key: Key, wanted: Mapping[str, object]) -> None:
    async with opened(place, make=True) as store:
        standings = await store.standings()
        before = next((each.quota for each in standings if (each.tenant, each.key) == (key.tenant, key.id)), Quota())
        await store.set_quota(key.tenant, key.id, read(before, wanted))


def read(before: Quota, wanted: Mapping[str, object]) -> Quota:
    """`before` with what was stated. Raises NotDone."""
    try:
        return changed(before, dict(wanted))
    except Malformed as error:
        raise NotDone(error.message, WRONG) from None
