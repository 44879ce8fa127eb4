"""The operator's routes under /v1/weirgate/: usage, keys, calibrations, reload. The command line speaks to them, since
one process owns the database file.

Usage may also be read with a client key, which then sees its own tenant only. Everything else wants the admin secret.
Where none is configured and there are no client keys either, a program on this machine needs none (the listener is on
loopback then, see `settings.refusal`); a page in its browser is not such a program, whatever name it found us under.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import parse_qs

import msgspec

from proxy.core.errors import ClientError, Forbidden, Malformed, NotFound, Unauthorised
from proxy.dialects.strict import check_unique, check_utf8
from proxy.server.auth import new_key
from proxy.server.body import read_body
from proxy.server.endpoints import Desk, Endpoint, Scope, send_json
from proxy.server.head import Headers, host_name
from proxy.server.stream import Answering, Receive
from proxy.settings import is_loopback
from proxy.store import KeyRow, Store, UsageQuery

_BY = ("model", "conversation", "day", "key")
_ASKABLE = ("by", "since", "until", "limit")
_ROWS = 1000
_MOST_ROWS = 100_000
_BODY = 64 * 1024


class Admin(msgspec.Struct, frozen=True, kw_only=True):
    """What these routes act on. `configured` are the keys of the configuration file, `refresh` takes the stored ones
    into use, `reload` the policy folder."""

    store: Store
    pepper: bytes
    configured: tuple[KeyRow, ...]
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
            _local(headers)
        else:
            keys.authorise_admin(headers)

    def tenant(self, headers: Headers) -> str | None:
        """Whose usage may be seen: None for all, with the admin secret."""
        keys = self.desk.directory.keys()
        if keys.open or keys.admin is not None:
            try:
                self.authorise(headers)
            except Unauthorised:
                if keys.open:
                    raise
            else:
                return None
        return keys.authenticate(headers).tenant


class Usage(_Operated):
    """GET /v1/weirgate/usage?by=&since=&until=&limit=: rows, or sums by a column. Times are unix seconds."""

    route = "/v1/weirgate/usage"

    async def work(self, scope: Scope, receive: Receive, answering: Answering) -> int:
        tenant = self.tenant(scope["headers"])
        query = _query(scope["query_string"], tenant)
        found = await self.admin.store.usage(query)
        await send_json(answering, {"object": "list", "by": query.by, "data": list(found)})
        return 200


class KeyList(_Operated):
    """GET lists the keys, POST makes one and shows its secret this once."""

    route = "/v1/weirgate/keys"
    methods = ("GET", "POST")

    async def work(self, scope: Scope, receive: Receive, answering: Answering) -> int:
        self.authorise(scope["headers"])
        if scope["method"] == "GET":
            stored = await self.admin.store.keys()
            listed = [_shown(row, "configuration") for row in self.admin.configured] + [_shown(row) for row in stored]
            await send_json(answering, {"object": "list", "data": listed})
            return 200
        asked = _new_key(await read_body(receive, scope["headers"], limit=_BODY))
        now = self.desk.gateway.wall()
        row, secret = new_key(self.admin.pepper, now, tenant=asked.tenant, id=asked.id, models=asked.models)
        if _named(self.admin.configured, row.tenant, row.id):
            # Stored beside it, it would keep the server from starting: either would answer for the other.
            raise ClientError("A key with this id stands in the configuration.", code="key_exists", param="id")
        await self.admin.store.add_key(row.tenant, row)
        await self.admin.refresh()
        await send_json(answering, {**_shown(row), "secret": secret})
        return 200


class KeyRevocation(_Operated):
    """POST /v1/weirgate/keys/{tenant}/{id}/revoke. When it answers, the key opens nothing any more."""

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


class CalibrationList(_Operated):
    """GET /v1/weirgate/calibrations: the windows and ratios learned from upstreams."""

    route = "/v1/weirgate/calibrations"

    async def work(self, scope: Scope, receive: Receive, answering: Answering) -> int:
        self.authorise(scope["headers"])
        await send_json(answering, {"object": "list", "data": list(self.desk.gateway.calibrations.known)})
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


def admin_routes(desk: Desk, admin: Admin) -> tuple[Endpoint, ...]:
    """All of them; each is known by its `route`."""
    kinds = (Usage, KeyList, KeyRevocation, CalibrationList, Reload)
    return tuple(kind(desk, admin) for kind in kinds)


def _local(headers: Headers) -> None:
    """Where nothing is asked for, at least no web page may ask: one that was led here by a name of its own (DNS
    rebinding, research/reliability.md I-27), or that posts across origins."""
    fields = dict(headers)
    host = host_name(fields.get(b"host", b""))
    origin = fields.get(b"origin")
    foreign = origin is not None and origin.partition(b"://")[2] != fields.get(b"host")
    if host is None or not is_loopback(host.decode("ascii")) or foreign:
        raise Forbidden("Without an admin secret these routes answer programs on this machine only.")


def _query(text: bytes, tenant: str | None) -> UsageQuery:
    asked = {name: values[-1] for name, values in parse_qs(text.decode("latin-1"), keep_blank_values=True).items()}
    unknown = next((name for name in asked if name not in _ASKABLE), None)
    if unknown is not None:
        # Ignored, a misspelt "since" would be answered with the sums of all time.
        raise Malformed(f"Only {', '.join(_ASKABLE)} can be asked for.", code="unknown_parameter", param=unknown)
    by = asked.get("by")
    if by is not None and by not in _BY:
        raise Malformed(f"by is one of {', '.join(_BY)}.", code="out_of_range", param="by")
    limit = _number(asked, "limit")
    if limit is not None and (limit != int(limit) or not 1 <= limit <= _MOST_ROWS):
        raise Malformed(f"limit is a whole number from 1 to {_MOST_ROWS}.", code="out_of_range", param="limit")
    since, until = _number(asked, "since"), _number(asked, "until")
    return UsageQuery(tenant=tenant, since=since, until=until, by=by, limit=int(limit or _ROWS))


def _number(asked: Mapping[str, str], name: str) -> float | None:
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


def _new_key(body: bytes) -> NewKey:
    check_utf8(body)
    check_unique(body)
    try:
        return msgspec.json.decode(body, type=NewKey)
    except msgspec.ValidationError:
        # Not msgspec's words: they repeat the names of unknown members.
        message = "A key has tenant and id (texts) and models (a list of texts), and nothing else."
        raise Malformed(message, code="invalid_type") from None
    except (msgspec.DecodeError, RecursionError):
        raise Malformed("The body is not valid JSON.") from None


def _named(rows: tuple[KeyRow, ...], tenant: str, id: str) -> bool:
    return any((row.tenant, row.id) == (tenant, id) for row in rows)


def _shown(row: KeyRow, source: str = "database") -> dict[str, object]:
    return {
        "id": row.id,
        "tenant": row.tenant,
        "models": list(row.models),
        "created_at": row.created_at or None,
        "revoked_at": row.revoked_at,
        "source": source,
    }
