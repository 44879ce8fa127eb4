"""The operator's routes that look: at conversations, at the upstreams, at the configuration in force.

Never here: what anybody said (a conversation is its numbers), or a secret: what is one shows itself as ***, and a
password in an address is taken out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from proxy.core.errors import NotFound
from proxy.core.usage import UsageRow
from proxy.server.admin_usage import asked_of, query_of
from proxy.server.endpoints import Scope, send_json
from proxy.server.operated import Operated
from proxy.server.stream import Answering, Receive
from proxy.store import UsageQuery, UsageSum
from proxy.store.address import shown

_LOOKED_AT: Final = 1000
"""Newest rows of a conversation that its state is told from."""


class ConversationList(Operated):
    """GET: conversations by what they used, the one used last first. Asked for like usage."""

    route = "/v1/weirgate/conversations"

    async def work(self, scope: Scope, receive: Receive, answering: Answering) -> int:
        query = query_of(asked_of(scope["query_string"], _LIST), self.tenant(scope["headers"]))
        query = msgspec.structs.replace(query, by="conversation", newest=True)
        found = await self.admin.store.usage(query)
        told = [_told(line) for line in found if isinstance(line, UsageSum) and line.key]
        await send_json(answering, {"object": "list", "data": told})
        return 200


class ConversationState(Operated):
    """GET: one of them. `?tenant=` says whose, where several tenants have one of this id."""

    route = "/v1/weirgate/conversations/{id}"

    async def work(self, scope: Scope, receive: Receive, answering: Answering) -> int:
        seen = self.tenant(scope["headers"])
        tenant = query_of(asked_of(scope["query_string"], ("tenant",)), seen).tenant
        asked = UsageQuery(tenant=tenant, conversation=scope["path_params"]["id"], by="conversation", newest=True)
        sums = [line for line in await self.admin.store.usage(asked) if isinstance(line, UsageSum)]
        if not sums:
            raise NotFound("There is no such conversation.", param="id")
        (line, *_) = sums
        newest = UsageQuery(tenant=line.tenant, conversation=line.key, limit=_LOOKED_AT)
        rows = [row for row in await self.admin.store.usage(newest) if isinstance(row, UsageRow)]
        await send_json(answering, {**_told(line), **_state(rows)})
        return 200


class UpstreamList(Operated):
    """GET: how each upstream does, as this replica sees it."""

    route = "/v1/weirgate/upstreams"

    async def work(self, scope: Scope, receive: Receive, answering: Answering) -> int:
        self.authorise(scope["headers"])
        known = self.desk.gateway.calibrations.known
        told = [
            {**msgspec.to_builtins(each), "learned": [learned for learned in known if learned.upstream == each.name]}
            for each in self.admin.upstreams()
        ]
        await send_json(answering, {"object": "list", "data": told})
        return 200


class Configuration(Operated):
    """GET: every setting in force, with its default where nothing was stated."""

    route = "/v1/weirgate/config"

    async def work(self, scope: Scope, receive: Receive, answering: Answering) -> int:
        self.authorise(scope["headers"])
        told = _plain(self.admin.settings.model_dump())
        told["store"]["url"] = shown(told["store"]["url"])
        await send_json(answering, {**told, "policies_hash": self.admin.policies()})
        return 200


_LIST: Final = ("tenant", "since", "until", "limit", "key", "model", "end_user")


def _plain(value: Any) -> Any:
    """What JSON can say; a secret says ***."""
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value if value is None or isinstance(value, bool | int | float) else str(value)


def _told(line: UsageSum) -> dict[str, object]:
    return {
        "id": line.key,
        "tenant": line.tenant,
        "first_used": line.first,
        "last_used": line.last,
        "calls": line.calls,
        "input": line.input,
        "output": line.output,
        "cached": line.cached,
        "cost": line.cost,
        "compacted_calls": line.compactions,
        "recovered": line.recovered,
        "failed": line.failed,
    }


def _state(rows: Sequence[UsageRow]) -> dict[str, object]:
    """Where it stands, by its newest rows."""
    spoken = next((row for row in rows if row.purpose != "compaction"), None)
    return {
        "keys": sorted({row.key for row in rows}),
        "end_users": sorted({row.end_user for row in rows if row.end_user}),
        "models": sorted({row.model for row in rows if row.purpose != "compaction"}),
        "compactions": len({row.compaction_id for row in rows if row.compaction_id}),
        "tokens": spoken.projected if spoken is not None else None,
        "window": spoken.window if spoken is not None else None,
        "notes_by": spoken.notes_by if spoken is not None else None,
        "paused": spoken.paused if spoken is not None else None,
    }
