"""The operator's routes under /v1/weirgate/: usage, keys, reload. The command line speaks to them, since one process
owns the database file.

Usage may also be read with a client key, which then sees its own tenant only. Everything else wants the admin secret,
or, where none is configured and there are no client keys either, a caller on this machine (the listener is on loopback
then, see `settings.refusal`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from urllib.parse import parse_qs

import msgspec

from proxy.core.errors import Malformed, NotFound, Unauthorised
from proxy.server.auth import key_digest, make_key
from proxy.server.body import read_body
from proxy.server.endpoints import Desk, Endpoint, Scope, send_json
from proxy.server.head import Headers
from proxy.server.stream import Answering, Receive
from proxy.store import KeyRow, Store, UsageQuery

_BY = ("model", "conversation", "day", "key")
_MOST_ROWS = 100_000
_BODY = 64 * 1024


class Admin(msgspec.Struct, frozen=True, kw_only=True):
    """What these routes act on. `refresh` takes the stored keys into use, `reload` the policy folder."""

    store: Store
    pepper: bytes
    refresh: Callable[[], Awaitable[None]]
    reload: Callable[[], Awaitable[tuple[str, ...]]]


class NewKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/weirgate/keys."""

    tenant: str = "default"
    id: str | None = None
    models: tuple[str, ...] = ("*",)


class _Operated(Endpoint):
    def __init__(self, desk: Desk, admin: Admin) -> None:
        super().__init__(desk)
        self.admin = admin

    def authorise(self, headers: Headers) -> None:
        """Raises Forbidden or Unauthorised."""
        keys = self.desk.directory.keys()
        if keys.admin is None and keys.open:
            return
        keys.authorise_admin(headers)

    def tenant(self, headers: Headers) -> str | None:
        """Whose usage may be seen: None for all, with the admin secret."""
        keys = self.desk.directory.keys()
        if keys.admin is None and keys.open:
            return None
        try:
            if keys.admin is not None:
                keys.authorise_admin(headers)
                return None
        except Unauthorised:
            pass
        return keys.authenticate(headers).tenant


class Usage(_Operated):
    """GET /v1/weirgate/usage?by=&since=&until=&limit=: rows, or sums by a column. Times are unix seconds."""

    route = "/v1/weirgate/usage"

    async def work(self, scope: Scope, receive: Receive, answering: Answering) -> int:
        tenant = self.tenant(scope["headers"])
        asked = {name: values[-1] for name, values in parse_qs(scope["query_string"].decode("latin-1")).items()}
        by = asked.get("by")
        if by is not None and by not in _BY:
            raise Malformed(f"by is one of {', '.join(_BY)}.", code="out_of_range", param="by")
        query = UsageQuery(
            tenant=tenant,
            since=_number(asked, "since"),
            until=_number(asked, "until"),
            by=by,
            limit=int(min(_number(asked, "limit") or 1000, _MOST_ROWS)),
        )
        found = await self.admin.store.usage(query)
        await send_json(answering, {"object": "list", "by": by, "data": list(found)})
        return 200


class KeyList(_Operated):
    """GET lists the stored keys, POST makes one and shows its secret this once."""

    route = "/v1/weirgate/keys"
    methods = ("GET", "POST")

    async def work(self, scope: Scope, receive: Receive, answering: Answering) -> int:
        self.authorise(scope["headers"])
        if scope["method"] == "GET":
            listed = [_shown(row) for row in await self.admin.store.keys()]
            await send_json(answering, {"object": "list", "data": listed})
            return 200
        body = await read_body(receive, scope["headers"], limit=_BODY)
        try:
            asked = msgspec.json.decode(body, type=NewKey)
        except msgspec.ValidationError as error:
            raise Malformed(f"Not a key: {error}", code="invalid_type") from None
        except msgspec.DecodeError:
            raise Malformed("The body is not valid JSON.") from None
        made, secret = make_key()
        row = KeyRow(
            id=asked.id or made,
            tenant=asked.tenant,
            digest=key_digest(self.admin.pepper, secret.encode()),
            created_at=self.desk.gateway.wall(),
            models=asked.models,
        )
        await self.admin.store.add_key(row.tenant, row)
        await self.admin.refresh()
        await send_json(answering, {**_shown(row), "secret": secret})
        return 200


class KeyRevocation(_Operated):
    """POST /v1/weirgate/keys/{tenant}/{id}/revoke."""

    route = "/v1/weirgate/keys/{tenant}/{id}/revoke"
    methods = ("POST",)

    async def work(self, scope: Scope, receive: Receive, answering: Answering) -> int:
        self.authorise(scope["headers"])
        named = scope["path_params"]
        if not await self.admin.store.revoke_key(named["tenant"], named["id"], self.desk.gateway.wall()):
            raise NotFound("There is no such key.", param="id")
        await self.admin.refresh()
        await send_json(answering, {"id": named["id"], "tenant": named["tenant"], "revoked": True})
        return 200


class Reload(_Operated):
    """POST /v1/weirgate/reload: read the policies again; what is wrong with them, if anything."""

    route = "/v1/weirgate/reload"
    methods = ("POST",)

    async def work(self, scope: Scope, receive: Receive, answering: Answering) -> int:
        self.authorise(scope["headers"])
        problems = await self.admin.reload()
        await send_json(answering, {"taken": not problems, "problems": list(problems)})
        return 200


def admin_routes(desk: Desk, admin: Admin) -> list[Endpoint]:
    """All of them."""
    return [kind(desk, admin) for kind in (Usage, KeyList, KeyRevocation, Reload)]


def _number(asked: dict[str, str], name: str) -> float | None:
    value = asked.get(name)
    if value is None:
        return None
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e12:
        raise Malformed(f"{name} is a number, not negative.", code="out_of_range", param=name)
    return number


def _shown(row: KeyRow) -> dict[str, object]:
    return {
        "id": row.id,
        "tenant": row.tenant,
        "models": list(row.models),
        "created_at": row.created_at,
        "revoked_at": row.revoked_at,
    }
