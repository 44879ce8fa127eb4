"""What upstreams taught us: real windows and how their tokenizers count, per upstream and model.

Held in memory, written through to the store, read back at start. A learned window lives for a day (deployments
change); a lower bound is never learned (`overflow.learnable`). Ratios are saved now and then: losing a few samples
costs nothing.
"""

from __future__ import annotations

from typing import Final

import msgspec

from proxy.core import measure
from proxy.core.policy import ModelCard, Policy
from proxy.core.steps import Limits, Ratio, Remember
from proxy.store import Calibration

LIFETIME: Final = 24 * 3600.0
"""Seconds a learned window is believed."""
_EVERY: Final = 32
"""Samples between two writes of a ratio, after the first few."""
_MOST: Final = 10_000
"""Pairs of upstream and model kept; clients may ask for any name."""


class Calibrations:
    """All calibrations of this process."""

    def __init__(self, known: tuple[Calibration, ...] = ()) -> None:
        self._known = {(item.upstream, item.model): item for item in known}

    @property
    def known(self) -> tuple[Calibration, ...]:
        """Everything learned, by upstream and model."""
        return tuple(self._known[pair] for pair in sorted(self._known))

    def of(self, upstream: str, model: str) -> Calibration:
        return self._known.get((upstream, model)) or Calibration(upstream=upstream, model=model)

    def limits(self, policy: Policy, card: ModelCard, upstream: str, now: float) -> Limits:
        """The window for this call: the policy's, bounded by what a refusal stated; else learned, else the catalogue's.

        A window that the operator set too high would cost a refused call for every compaction; the provider's own word
        for it is believed as long as it lives.
        """
        entry = self.of(upstream, card.name)
        learned = entry.limits if entry.limits is not None and entry.expires_at > now else None
        if policy.window is not None:
            if learned is None:
                return Limits(total=policy.window, source="policy")
            return Limits(
                total=min(policy.window, learned.total or policy.window), input=learned.input, source="learned"
            )
        if learned is not None:
            return Limits(total=learned.total or card.window, input=learned.input or card.input_limit, source="learned")
        if card.window is not None or card.input_limit is not None:
            return Limits(total=card.window, input=card.input_limit, source="catalogue")
        return Limits()

    def take(self, upstream: str, model: str, what: Remember, now: float) -> Calibration | None:
        """Learn from a call. Returns what should be written to the store now, if anything."""
        before = self.of(upstream, model)
        entry = before
        if what.sample is not None:
            reported, estimated, counted = what.sample
            entry = msgspec.structs.replace(entry, estimate=measure.learn(entry.estimate, reported, estimated))
            if counted:
                entry = msgspec.structs.replace(entry, exact=measure.learn(entry.exact, reported, counted))
        if what.learned is not None:
            old = entry.limits if entry.limits is not None and entry.expires_at > now else Limits()
            limits = Limits(
                total=what.learned.total or old.total, input=what.learned.input or old.input, source="learned"
            )
            entry = msgspec.structs.replace(entry, limits=limits, expires_at=now + LIFETIME)
        if entry is before:
            return None
        if len(self._known) >= _MOST and (upstream, model) not in self._known:
            return None
        self._known[upstream, model] = entry
        saved = entry.estimate.samples
        return entry if what.learned is not None or saved <= 4 or saved % _EVERY == 0 else None

    def ratios(self, upstream: str, model: str) -> tuple[Ratio, Ratio]:
        """The ratios for estimates and for exact counts."""
        entry = self.of(upstream, model)
        return entry.estimate, entry.exact
