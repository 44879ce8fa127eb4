"""A place among the requests that are served at once, and within the limits of the key that asks.

Belongs here: taking one before the body is read, giving it back, and what a request is expected to use. Never: the
arithmetic of limits (`core.quota`), or what a request means.
"""

from __future__ import annotations

from proxy.core.errors import Busy
from proxy.core.quota import Held, Meter
from proxy.core.steps import Call, Caller
from proxy.core.usage import Usage, cost
from proxy.server.desk import Desk
from proxy.server.stream import Answering
from proxy.snapshots import Destination

_STREAMS_PER_KEY = 50
_OUTPUT = 1024
"""Tokens that a request which does not say how many it wants is expected to be answered with."""


class Place:
    """A place for one request of `caller`. Raises Busy or QuotaSpent where there is none, when made or entered.

    `meter` is the account of its key, None for one without limits: then there is nothing to `reserve`.
    """

    __slots__ = ("_answering", "_desk", "_held", "_owner", "_shared", "meter")

    def __init__(self, desk: Desk, caller: Caller, answering: Answering) -> None:
        self._desk = desk
        self._answering = answering
        self._owner = owner = (caller.tenant, caller.key)
        self._held: Held | None = None
        self._shared = False
        metering, overload = desk.gateway.metering, desk.overload
        metering.seen.add(owner)
        self.meter: Meter | None = metering.meters.get(owner) if metering.meters else None
        most = desk.streams_per_key
        if most is None:
            # A bound between the keys of one gateway; somebody who is alone on his machine has all of it.
            most = overload.most if desk.directory.keys().open else _STREAMS_PER_KEY
        if self.meter is not None and self.meter.quota.streams is not None:
            most = overload.most  # the key's own bound is the meter's to hold
        if desk.running.get(owner, 0) >= most or overload.serving >= overload.limit:
            raise Busy("Too many requests at once.", retry_after=1.0)

    def __enter__(self) -> Place:
        if self.meter is not None:
            self._enter(self.meter)
        desk, owner = self._desk, self._owner
        running, overload = desk.running, desk.overload
        running[owner] = running.get(owner, 0) + 1
        overload.serving += 1
        if not overload.watched:
            overload.watch()
        return self

    def __exit__(self, *exit: object) -> None:
        self.leave()

    def share(self) -> None:
        """It is held by something that outlives the request, too: the last of the two that leaves gives it back."""
        self._shared = True

    def leave(self) -> None:
        if self._shared:
            self._shared = False
            return
        desk, owner = self._desk, self._owner
        running = desk.running
        desk.overload.serving -= 1
        left = running[owner] - 1
        if left:
            running[owner] = left
        else:
            del running[owner]
        if self.meter is not None and self._held is not None:
            desk.gateway.metering.leave(self.meter, self._answering.request_id, self._held)

    def reserve(self, call: Call, destination: Destination) -> None:
        """Hold what `call` is expected to use. Raises Busy, QuotaSpent."""
        card = destination.target.card
        read = sum([message.tokens for message in call.messages], call.tools_tokens)
        window = destination.policy.window or card.window
        # What does not fit is compacted before it is sent.
        self.expect(min(read, window or read), call.choices * (call.max_output or _OUTPUT), destination)

    def expect(self, input: int, output: int, destination: Destination) -> None:
        """Hold so many tokens and what they cost there. Raises Busy, QuotaSpent."""
        meter, held = self.meter, self._held
        if meter is None or held is None:
            return
        price = cost(Usage(input=input, output=output), destination.target.card.tariff) or 0
        now = self._desk.gateway.metering.now()
        try:
            meter.reserve(held, input + output, price, now)
        finally:
            self._answering.limits = meter.shown(now)

    def _enter(self, meter: Meter) -> None:
        metering = self._desk.gateway.metering
        if meter.quota.daily and metering.due:
            self._desk.gateway.spawn(metering.look())
        try:
            self._held = metering.enter(meter, self._answering.request_id)
        finally:
            self._answering.limits = meter.shown(metering.now())
