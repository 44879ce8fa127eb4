"""Whose limits are which: what an operator set while the server ran, over what the configuration says of the key, over
what it says of all keys.

Belongs here: joining the three, and the form that limits take in JSON (dollars, not nano-dollars). Never: counting.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from proxy.core.errors import Malformed
from proxy.core.quota import Quota
from proxy.metering import Owner
from proxy.store import KeyRow, Standing

_NANO: Final = 10**9
_MOST: Final = 10**15
_LATEST: Final = 1e12
_COUNTS: Final = ("requests_per_minute", "requests_per_day", "tokens_per_minute", "tokens_per_day", "streams")
LIMITS: Final = (*_COUNTS, "cost_per_day", "expires", "stopped")


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The three sources. `configured` and `standings` go by tenant and key id; a standing of key "" is its tenant's."""

    default: Quota = Quota()
    configured: Mapping[Owner, Quota] = msgspec.field(default_factory=dict)
    standings: Mapping[Owner, Standing] = msgspec.field(default_factory=dict)

    def of(self, tenant: str, key: str) -> Quota:
        """What holds for the key."""
        quota = self.configured.get((tenant, key), Quota()).over(self.default)
        standing = self.standings.get((tenant, key))
        if standing is not None:
            quota = standing.quota.over(quota)
        return msgspec.structs.replace(quota, stopped=True) if self.tenant_stopped(tenant) else quota

    def tenant_stopped(self, tenant: str) -> bool:
        standing = self.standings.get((tenant, ""))
        return standing is not None and bool(standing.quota.stopped)


def rules(default: Quota, configured: Mapping[Owner, Quota], standings: Iterable[Standing]) -> Rules:
    by_owner = {(standing.tenant, standing.key): standing for standing in standings}
    return Rules(default=default, configured=configured, standings=by_owner)


def state(row: KeyRow, quota: Quota, now: float) -> str:
    """Whether a key with this quota opens anything, or why not."""
    if row.revoked_at is not None:
        return "revoked"
    if quota.stopped:
        return "stopped"
    return "expired" if quota.closed(now) else "open"


def shown(quota: Quota) -> dict[str, object]:
    """`quota` as people state it; what is not limited is left out."""
    said: dict[str, object] = msgspec.to_builtins(quota)
    if quota.cost_per_day is not None:
        said["cost_per_day"] = quota.cost_per_day / _NANO
    return said


def changed(quota: Quota, stated: object) -> Quota:
    """`quota` with what a client stated of it; null takes a limit back. Raises Malformed."""
    if not isinstance(stated, dict):
        raise Malformed("limits is an object.", code="invalid_type", param="limits")
    unknown = next((name for name in stated if name not in LIMITS), None)
    if unknown is not None:
        raise Malformed(f"The limits are {', '.join(LIMITS)}.", code="unknown_parameter", param=f"limits.{unknown}")
    return msgspec.structs.replace(quota, **{name: _read(name, value) for name, value in stated.items()})


def _read(name: str, value: object) -> int | float | bool | None:
    param = f"limits.{name}"
    if value is None:
        return None
    if name == "stopped":
        if not isinstance(value, bool):
            raise Malformed("stopped is true, false or null.", code="invalid_type", param=param)
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Malformed(f"{name} is a number or null.", code="invalid_type", param=param)
    if name in _COUNTS:
        if value != int(value) or not 0 <= value <= _MOST:
            raise Malformed(f"{name} is a whole number, not negative.", code="out_of_range", param=param)
        return int(value)
    if not 0 <= value < (_LATEST if name == "expires" else 1e6):
        raise Malformed(f"{name} is a number, not negative.", code="out_of_range", param=param)
    return float(value) if name == "expires" else round(value * _NANO)
