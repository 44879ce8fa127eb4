"""Routes of the operator: what they act on, and who may use them.

Everything wants the admin secret. Where none is configured and there are no client keys either, a program on this
machine needs none (the listener is on loopback then, see `settings.refusal`); a page in its browser is not such a
program, whatever name it found us under. Never here: what a route does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from proxy.core.errors import Forbidden, Malformed, Unauthorised
from proxy.dialects.strict import check_unique, check_utf8
from proxy.server.body import read_body
from proxy.server.desk import Desk
from proxy.server.endpoints import Endpoint
from proxy.server.head import Headers, host_name
from proxy.server.quotas import Rules
from proxy.server.stream import Receive
from proxy.settings import Settings, is_loopback
from proxy.store import KeyRow, Store

T = TypeVar("T")

_BODY = 64 * 1024


class UpstreamState(msgspec.Struct, frozen=True, kw_only=True):
    """How an upstream does: what it is called, its calls under way, and those of the last minute."""

    name: str
    base_url: str
    in_flight: int
    state: str
    calls: int
    failures: int
    rate_limited: int
    last_error: str | None
    last_error_at: float | None


class Admin(msgspec.Struct, frozen=True, kw_only=True):
    """What these routes act on. `configured` are the keys of the configuration file, `rules` reads whose limits are
    which, `refresh` takes keys and limits into use, `reload` the policy folder. `policies` is the hash of
    those in force, `upstreams` tells how each upstream does."""

    store: Store
    pepper: bytes
    configured: tuple[KeyRow, ...]
    rules: Callable[[], Awaitable[Rules]]
    refresh: Callable[[], Awaitable[None]]
    reload: Callable[[], Awaitable[tuple[str, ...]]]
    settings: Settings
    policies: Callable[[], str]
    upstreams: Callable[[], tuple[UpstreamState, ...]]


class Operated(Endpoint):
    """One of them."""

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
        """Whose rows may be seen: None for all, with the admin secret; else those of the client key's tenant."""
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


async def stated(receive: Receive, headers: Headers, type: type[T], what: str) -> T:
    """The body of a request. `what` says what may stand there. Raises Malformed."""
    body = await read_body(receive, headers, limit=_BODY)
    check_utf8(body)
    check_unique(body)
    try:
        return msgspec.json.decode(body, type=type)
    except msgspec.ValidationError:
        # Not msgspec's words: they repeat the names of unknown members.
        raise Malformed(what, code="invalid_type") from None
    except (msgspec.DecodeError, RecursionError):
        raise Malformed("The body is not valid JSON.") from None


def _local(headers: Headers) -> None:
    """Where nothing is asked for, at least no web page may ask: one that was led here by a name of its own (DNS
    rebinding, research/reliability.md I-27), or that posts across origins."""
    fields = dict(headers)
    host = host_name(fields.get(b"host", b""))
    origin = fields.get(b"origin")
    foreign = origin is not None and origin.partition(b"://")[2] != fields.get(b"host")
    if host is None or not is_loopback(host.decode("ascii")) or foreign:
        raise Forbidden("Without an admin secret these routes answer programs on this machine only.")
