"""Reading the usage rows: single ones, or sums by model, conversation, day or key.

What belongs here: the queries behind `weirgate usage` and the console. What never: writing a row, or a query whose
cost is not bounded by the time it covers and its limit. Days are UTC. Rows of two tenants are never summed into one
line of a key or a conversation: their ids may be equal by chance.
"""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any, Protocol

from proxy.core.errors import ClientError
from proxy.core.usage import UsageRow
from proxy.store import UsageQuery, UsageSum
from proxy.store.statements import Reports

_EPOCH = date(1970, 1, 1)
_EARLIEST, _LATEST = -1e300, 1e300


class Rows(Protocol):
    """What of a connection is used here."""

    def execute(self, sql: str, parameters: tuple[object, ...], /) -> Any: ...


def usage(connection: Rows, reports: Reports, query: UsageQuery) -> tuple[UsageRow, ...] | tuple[UsageSum, ...]:
    """Single rows, newest first; or sums, the dearest first (days in their order)."""
    sql = _asked(reports, query)
    since = _EARLIEST if query.since is None else query.since
    until = _LATEST if query.until is None else query.until
    tenant = () if query.tenant is None else (query.tenant,)
    found = connection.execute(sql, (since, until, *tenant, max(0, query.limit))).fetchall()
    if query.by is None:
        return tuple(row(values) for values in found)
    return tuple(_sum(query.by, values) for values in found)


def _asked(reports: Reports, query: UsageQuery) -> str:
    if query.by is None:
        return reports.rows_of_all if query.tenant is None else reports.rows_of_tenant
    sums = reports.sums_of_all if query.tenant is None else reports.sums_of_tenant
    if query.by not in sums:
        raise ClientError("`by` is one of: model, conversation, day, key.", param="by")
    return sums[query.by]


def row(values: tuple[Any, ...]) -> UsageRow:
    """A usage row from the columns of its table, in their order."""
    fields = dict(zip(UsageRow.__struct_fields__, values, strict=False))
    for name in ("stream", "estimated", "unpriced"):
        fields[name] = bool(fields[name])
    return UsageRow(**fields)


def _sum(by: str, values: tuple[Any, ...]) -> UsageSum:
    group, tenant, *figures = values
    key = (_EPOCH + timedelta(days=group)).isoformat() if by == "day" else (group or "")
    names = (
        "calls",
        "input",
        "output",
        "cached",
        "reasoning",
        "cost",
        "unpriced",
        "failed",
        "compactions",
        "recovered",
        "estimated",
    )
    return UsageSum(key=key, tenant=tenant, **dict(zip(names, figures, strict=True)))
