"""The operator's routes for client keys: make, list, limit, stop, revoke.

What a client may use is in force when the answer is sent, here; other replicas have it within a second or so. Never
here: a secret a second time.
"""

from __future__ import annotations

from typing import Any

import msgspec

from proxy.core.errors import ClientError, NotFound
from proxy.core.quota import Quota
from proxy.server.auth import new_key
from proxy.server.desk import Desk
from proxy.server.endpoints import Scope, send_json
from proxy.server.operated import Admin, Operated, stated
from proxy.server.quotas import Rules, changed, shown, state
from proxy.server.stream import Answering, Receive
from proxy.store import KeyRow

_KEY = "A key has tenant and id (texts), models (a list of texts) and limits (an object), and nothing else."
_CHANGE = "limits (an object) can be changed, and nothing else."
_STOP = "stopped is true, false or null."

Limits = dict[str, Any]


class NewKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/weirgate/keys."""

    tenant: str = "default"
    id: str | None = None
    models: tuple[str, ...] = ("*",)
    limits: Limits = msgspec.field(default_factory=dict)


class Change(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of PATCH /v1/weirgate/keys/{tenant}/{id}."""

    limits: Limits


class Stop(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of PATCH /v1/weirgate/tenants/{tenant}."""

    stopped: bool | None


class _Keys(Operated):
    async def find(self, tenant: str, id: str) -> KeyRow:
        """Raises NotFound."""
        rows = (*self.admin.configured, *await self.admin.store.keys())
        found = next((row for row in rows if (row.tenant, row.id) == (tenant, id)), None)
        if found is None:
            raise NotFound("There is no such key.", param="id")
        return found

    def told(self, row: KeyRow, rules: Rules) -> dict[str, object]:
        """A key as people see it: `limits` are those in force."""
        owner = (row.tenant, row.id)
        quota = rules.of(*owner)
        metering = self.desk.gateway.metering
        standing, meter = rules.standings.get(owner), metering.meters.get(owner)
        last = metering.now().wall if owner in metering.seen else standing.last_used if standing else None
        return {
            "id": row.id,
            "tenant": row.tenant,
            "models": list(row.models),
            "created_at": row.created_at or None,
            "revoked_at": row.revoked_at,
            "source": "configuration" if _named(self.admin.configured, *owner) else "database",
            "state": state(row, quota, self.desk.gateway.wall()),
            "limits": shown(quota),
            "last_used": last,
            "today": None if meter is None or not meter.asked else msgspec.to_builtins(meter.today),
        }


class KeyList(_Keys):
    """GET lists the keys, POST makes one and shows its secret this once."""

    route = "/v1/weirgate/keys"
    methods = ("GET", "POST")

    async def work(self, scope: Scope, receive: Receive, answering: Answering) -> int:
        self.authorise(scope["headers"])
        admin = self.admin
        if scope["method"] == "GET":
            rules, stored = await admin.rules(), await admin.store.keys()
            listed = [self.told(row, rules) for row in (*admin.configured, *stored)]
            await send_json(answering, {"object": "list", "data": listed})
            return 200
        asked = await stated(receive, scope["headers"], NewKey, _KEY)
        limits = changed(Quota(), asked.limits)
        now = self.desk.gateway.wall()
        row, secret = new_key(admin.pepper, now, tenant=asked.tenant, id=asked.id, models=asked.models)
        if _named(admin.configured, row.tenant, row.id):
            # Stored beside it, it would keep the server from starting: either would answer for the other.
            raise ClientError("A key with this id stands in the configuration.", code="key_exists", param="id")
        if _named(await admin.store.keys(), row.tenant, row.id):
            raise ClientError("A key with this id exists.", code="key_exists", param="id")
        if limits != Quota():
            # First: the key is never open without them.
            await admin.store.set_quota(row.tenant, row.id, limits)
        await admin.store.add_key(row.tenant, row)
        await admin.refresh()
        await send_json(answering, {**self.told(row, await admin.rules()), "secret": secret})
        return 200


class KeyLimits(_Keys):
    """GET shows a key. PATCH changes its limits: a number limits, null takes back what was set here, so that what the
    configuration says holds again; what is not named stays."""

    route = "/v1/weirgate/keys/{tenant}/{id}"
    methods = ("GET", "PATCH")

    async def work(self, scope: Scope, receive: Receive, answering: Answering) -> int:
        self.authorise(scope["headers"])
        tenant, id = scope["path_params"]["tenant"], scope["path_params"]["id"]
        row = await self.find(tenant, id)
        rules = await self.admin.rules()
        if scope["method"] == "PATCH":
            asked = await stated(receive, scope["headers"], Change, _CHANGE)
            standing = rules.standings.get((tenant, id))
            quota = changed(standing.quota if standing else Quota(), asked.limits)
            await self.admin.store.set_quota(tenant, id, quota)
            await self.admin.refresh()
            rules = await self.admin.rules()
        await send_json(answering, self.told(row, rules))
        return 200


class TenantStop(Operated):
    """PATCH stops every key of a tenant at once, or opens those again that are not stopped themselves."""

    route = "/v1/weirgate/tenants/{tenant}"
    methods = ("PATCH",)

    async def work(self, scope: Scope, receive: Receive, answering: Answering) -> int:
        self.authorise(scope["headers"])
        tenant = scope["path_params"]["tenant"]
        if tenant not in self.desk.directory.keys().tenants():
            raise NotFound("There is no such tenant.", param="tenant")
        asked = await stated(receive, scope["headers"], Stop, _STOP)
        await self.admin.store.set_quota(tenant, "", Quota(stopped=asked.stopped or None))
        await self.admin.refresh()
        await send_json(answering, {"tenant": tenant, "stopped": bool(asked.stopped)})
        return 200


class KeyRevocation(Operated):
    """POST: when it answers, the key opens nothing any more."""

    route = "/v1/weirgate/keys/{tenant}/{id}/revoke"
    methods = ("POST",)

    async def work(self, scope: Scope, receive: Receive, answering: Answering) -> int:
        self.authorise(scope["headers"])
        tenant, id = scope["path_params"]["tenant"], scope["path_params"]["id"]
        if _named(self.admin.configured, tenant, id):
            message = "This key stands in the configuration: take it out there and restart."
            raise ClientError(message, code="key_configured", param="id")
        if not await self.admin.store.revoke_key(tenant, id, self.desk.gateway.wall()):
            raise NotFound("There is no such key.", param="id")
        await self.admin.refresh()
        await send_json(answering, {"id": id, "tenant": tenant, "revoked": True})
        return 200


def key_routes(desk: Desk, admin: Admin) -> tuple[Operated, ...]:
    return tuple(kind(desk, admin) for kind in (KeyList, KeyLimits, TenantStop, KeyRevocation))


def _named(rows: tuple[KeyRow, ...], tenant: str, id: str) -> bool:
    return any((row.tenant, row.id) == (tenant, id) for row in rows)
