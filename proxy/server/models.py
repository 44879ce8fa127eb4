"""What /v1/models tells: every name a key may ask for, with the window it is held against.

Agents that this caller may know and names that the configuration states come first; where a pattern forwards any name,
the upstream's own list is asked for, with the caller's key where the upstream has none of ours. An upstream that does
not answer is left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

import msgspec

from proxy.agents import Agents
from proxy.core.errors import UpstreamError
from proxy.core.steps import Caller
from proxy.gateway import Gateway
from proxy.server.auth import Keys
from proxy.server.desk import Directory
from proxy.settings import Settings
from proxy.snapshots import Destination
from proxy.upstream import Request, Upstream

_MOST = 2000
"""Models listed; some routers offer more than anybody reads."""
_PATIENCE = 5.0
"""Seconds an upstream has for its list; its deadlines are those of long answers."""


class Offers(Directory, Protocol):
    """A directory that also knows its agents, and its upstreams by name."""

    @property
    def agents(self) -> Agents: ...

    @property
    def upstreams(self) -> Mapping[str, Upstream]: ...


class Listing:
    """Callable for the endpoint: (keys, caller, the client's authorization) -> model objects."""

    def __init__(self, settings: Settings, places: Offers, gateway: Gateway) -> None:
        self._settings = settings
        self._places = places
        self._gateway = gateway

    async def __call__(self, keys: Keys, caller: Caller, authorization: str | None) -> list[dict[str, object]]:
        named = [name for name in self._settings.models if "*" not in name and "?" not in name]
        ours = (*self._places.agents.visible_to(caller.tenant, caller.end_user), *named)
        listed = {
            name: self._entry(name, self._places.destination_of(name, caller), 0, "weirgate")
            for name in ours
            if keys.allowed(caller, name)
        }
        forwarding = [entry.upstream for name, entry in self._settings.models.items() if name not in named]
        if not self._settings.models:
            forwarding = list(self._settings.upstreams)
        asked = [self._ask(upstream, authorization) for upstream in dict.fromkeys(forwarding)]
        for found in await asyncio.gather(*asked):
            for name, created, owner in found:
                if name not in listed and keys.allowed(caller, name):
                    listed[name] = self._entry(name, self._places.destination(name), created, owner)
        return [entry for entry in list(listed.values())[:_MOST] if entry]

    async def _ask(self, upstream: str, authorization: str | None) -> list[tuple[str, int, str]]:
        request = Request(path="/models", body=b"", method="GET", authorization=authorization)
        try:
            async with asyncio.timeout(_PATIENCE):
                response = await self._places.upstreams[upstream].send(request)
                try:
                    body = await response.read() if response.status == 200 else b""
                finally:
                    await response.close()
            value = msgspec.json.decode(body) if body else None
        except (UpstreamError, TimeoutError, msgspec.DecodeError, RecursionError):
            return []
        data = value.get("data") if isinstance(value, dict) else None
        found = [item for item in data if isinstance(item, dict)] if isinstance(data, list) else []
        return [
            (item["id"], _whole(item.get("created")), str(item.get("owned_by") or upstream))
            for item in found
            if isinstance(item.get("id"), str)
        ]

    def _entry(self, name: str, destination: Destination | None, created: int, owner: str) -> dict[str, object]:
        if destination is None:
            return {}
        window = self._window(destination)
        entry: dict[str, object] = {"id": name, "object": "model", "created": created, "owned_by": owner}
        if window is not None:
            # OpenRouter's and vLLM's names for it; clients read the one or the other.
            entry.update(context_length=window, max_model_len=window)
        return entry

    def _window(self, destination: Destination) -> int | None:
        limits = self._gateway.calibrations.limits(
            destination.policy, destination.target.card, destination.target.upstream.name, self._gateway.wall()
        )
        return limits.total or limits.input


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0
