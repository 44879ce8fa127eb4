"""What one call may know of the world: where its model's name leads, and what was learned of that place so far.

Everything is gathered once, when the call begins, and frozen; the core sees no more than this. Never: serving a call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

import msgspec

from proxy.attempt import Target
from proxy.calibration import Calibrations
from proxy.core import chain
from proxy.core.agent import EMPTY, Agent, Shelf
from proxy.core.policy import Mode, Policy
from proxy.core.recollection import Recollection
from proxy.core.steps import Call, Caller, Snapshot, Stored, Summariser
from proxy.layering import Layering
from proxy.naming import Names
from proxy.upstream.noted import Noted
from proxy.upstream.sighted import Sighted

_CALLERS: Final = 4096
"""Callers whose scope is kept; end users may be any number."""
_REFERENCES: Final = 100_000
_HELD: Final = 3600.0
"""References of stored texts that are known, and for how many seconds."""


class Destination(msgspec.Struct, frozen=True, kw_only=True):
    """Where a model name leads by the configuration; `pattern` is its entry, the only name that metrics see. `base` is
    the operator's prompt, `agent` the one that was asked for, `shelf` the skills that its caller may select."""

    target: Target
    policy: Policy
    pattern: str
    attempts: int = 2
    budget: float = 0.2
    base: str = ""
    agent: Agent | None = None
    shelf: Shelf = EMPTY


class Held:
    """The references whose texts were stored lately, so that a text is not stored again with each call that shows a
    part of it. After an hour it is: that counts as used, and what is used is not purged."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._until: dict[str, float] = {}

    def holds(self, reference: str) -> bool:
        return self._until.get(reference, 0.0) > self._wall()

    def add(self, stored: Iterable[Stored]) -> None:
        until = self._wall() + _HELD
        for each in stored:
            if len(self._until) >= _REFERENCES:
                self._until.clear()
            self._until[each.reference] = until


class Snapshots:
    """Makes the snapshot of each call. `secret` keys every identity; `redact` takes secrets out of what is stored."""

    def __init__(
        self,
        calibrations: Calibrations,
        names: Names,
        *,
        secret: bytes,
        redact: Callable[[str], str],
        wall: Callable[[], float],
    ) -> None:
        self.calibrations = calibrations
        self.layering = Layering(wall)
        self.recollection = Recollection()
        self.stored = Held(wall)
        self._names = names
        self._secret = secret
        self._redact = redact
        self._wall = wall
        self.sighted = Sighted(redact=redact)
        self._noted = Noted()
        self._scopes: dict[Caller, tuple[bytes, bytes]] = {}

    def of(self, call: Call, destination: Destination, summariser: Destination | None = None) -> Snapshot:
        """What this call may know of the world."""
        policy, card = destination.policy, destination.target.card
        upstream = destination.target.upstream.name
        estimate, exact = self.calibrations.ratios(upstream, card.name)
        scope, start = self._identity(call.caller)
        snap = Snapshot(  # a call with more than fifteen keywords makes a dictionary of them
            policy=policy,
            card=card,
            limits=self.calibrations.limits(policy, card, upstream, self._wall()),
            ratio=estimate,
            exact_ratio=exact,
            upstream=upstream,
            agent=call.model,
            scope=scope,
            start=start,
            fresh=self._names.fresh("conv_"),
            mode=_mode(call, destination),
            scan=self.sighted.scan,
            noted=self._noted.write,
            summarisers=partial(self.summarisers, destination, summariser),
            redact=self._redact,
        )
        agent, base = destination.agent, destination.base
        if agent is None and not base:
            return snap
        stack = self.layering.stack(call, base=base, agent=agent, shelf=destination.shelf, policy=policy, card=card)
        held = self.stored.holds
        return msgspec.structs.replace(snap, stack=stack, recollection=self.recollection, holds=held, now=self._wall())

    def summarisers(self, own: Destination, other: Destination | None) -> tuple[Summariser, ...]:
        """Who may be asked for a narrative: the policy's summary model, then the conversation's own."""
        if not own.policy.summary_asked:
            return ()
        asked = [own] if other is None or other.target == own.target else [other, own]
        found: list[Summariser] = []
        for destination in asked:
            card, upstream = destination.target.card, destination.target.upstream.name
            limits = self.calibrations.limits(destination.policy, card, upstream, self._wall())
            bounds = [bound for bound in (limits.total, limits.input) if bound]
            scale = self.calibrations.ratios(upstream, card.name)[0].value
            window = min(bounds) if bounds else None
            found.append(Summariser(name=card.name, window=window, scale=scale, own=destination is own))
        return tuple(found)

    def scope_of(self, caller: Caller) -> bytes:
        """The root of this caller's identities."""
        return self._identity(caller)[0]

    def _identity(self, caller: Caller) -> tuple[bytes, bytes]:
        """The root of this caller's identities, and the first of them; the same few callers ask again and again."""
        found = self._scopes.get(caller)
        if found is None:
            if len(self._scopes) >= _CALLERS:
                self._scopes.clear()
            scope = chain.scope(self._secret, caller.tenant, caller.key, caller.end_user)
            found = self._scopes[caller] = scope, chain.begin(scope)
        return found


def _mode(call: Call, destination: Destination) -> Mode:
    """Operator beats request: a request may only ask for less than the policy does, and not at all where the operator
    put prompts into it, which the other modes leave out."""
    mode = destination.policy.mode
    if call.mode is None or mode is not Mode.ENFORCE or destination.agent is not None or destination.base:
        return mode
    return call.mode
