"""What all endpoints share, and what they ask of the configuration in force. Never: a route, or what one does."""

from __future__ import annotations

from typing import Protocol

import msgspec

from proxy.conversing import Conversing
from proxy.core.steps import Caller
from proxy.dialects.chat.request import Bounds
from proxy.gateway import Gateway
from proxy.server.accounts import Accounts
from proxy.server.auth import Keys
from proxy.server.lifecycle import Drain
from proxy.server.overload import Overload
from proxy.server.stream import Watches
from proxy.snapshots import Destination
from proxy.upstream.beginnings import Beginnings
from proxy.upstream.decoded import Decoded


class Directory(Protocol):
    """Where model names lead; the app answers from the configuration and policies in force."""

    def destination(self, model: str) -> Destination | None: ...

    def destination_of(self, name: str, caller: Caller) -> Destination | None:
        """The same where `name` may be that of an agent, for a caller who may know of it."""

    def remembering(self, led: Destination) -> Destination:
        """`led` for a turn of a conversation that the gateway keeps: with the memory that those have."""

    def keys(self) -> Keys: ...


class Desk(msgspec.Struct, kw_only=True):
    """One per process."""

    gateway: Gateway
    directory: Directory
    accounts: Accounts
    conversing: Conversing
    beginnings: Beginnings
    drain: Drain
    decoded: Decoded
    bounds: Bounds
    hold: float
    ping: float
    body_limit: int
    overload: Overload
    streams_per_key: int | None
    running: dict[tuple[str, str], int] = msgspec.field(default_factory=dict)
    """Requests being served, by tenant and key."""
    watches: Watches = msgspec.field(default_factory=Watches)
