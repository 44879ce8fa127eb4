"""Reading the usage rows: single ones, or sums by one column or several.

What belongs here: the queries behind `weirgate usage` and the console. What never: writing a row, or a query whose
cost is not bounded by the time it covers and its limit. Days are UTC. Rows of two tenants are never summed into one
line of a key, an end user or a conversation: their ids may be equal by chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from typing import Any, Final, Protocol

from proxy.core.errors import ClientError
from proxy.core.usage import UsageRow
from proxy.store import UsageQuery, UsageSum
from proxy.store.statements import Reports

GROUPED: Final = "'grouped'"
ORDERED: Final = "'ordered'"
"""What stands in the texts where the names of columns go."""

FILTERS: Final = ("key", "model", "end_user", "conversation", "purpose", "status")
"""Columns that a query may name a value of, besides tenant and time; in the order of the statements' parameters."""

BY: Final = (
    "model",
    "conversation",
    "day",
    "key",
    "tenant",
    "end_user",
    "purpose",
    "status",
    "upstream",
    "asked_model",
)
"""Columns that sums may go by."""

_OF_ONE: Final = frozenset(("conversation", "key", "end_user", "tenant"))
_EPOCH: Final = date(1970, 1, 1)
_EARLIEST: Final = -1e300
_LATEST: Final = 1e300
_FIGURES: Final = (
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


class Rows(Protocol):
    """What of a connection is used here."""

    def execute(self, sql: str, parameters: tuple[object, ...], /) -> Any: ...


def usage(connection: Rows, reports: Reports, query: UsageQuery) -> tuple[UsageRow, ...] | tuple[UsageSum, ...]:
    """Single rows, newest first; or sums, the dearest first (days in their order)."""
    return read(query, connection.execute(*asked(reports, query)).fetchall())


def asked(reports: Reports, query: UsageQuery) -> tuple[str, tuple[Any, ...]]:
    """The SQL that answers `query`, and its parameters. Raises ClientError."""
    since = _EARLIEST if query.since is None else query.since
    until = _LATEST if query.until is None else query.until
    tenant = () if query.tenant is None else (query.tenant,)
    values = (since, until, *tenant, *(getattr(query, name) for name in FILTERS))
    if query.by is None:
        sql = reports.rows_of_tenant if tenant else reports.rows_of_all
        return sql, (*values, *(query.before or (_LATEST, "")), max(0, query.limit))
    sql = reports.sums_of_tenant if tenant else reports.sums_of_all
    names = ", ".join(f'usage."{name}"' for name in _columns(query.by))
    order = names if query.by.startswith("day") else f"cost DESC, calls DESC, {names}"
    order = f"last DESC, {names}" if query.newest else order
    return sql.replace(GROUPED, names).replace(ORDERED, order), (*values, max(0, query.limit))


def grouped(by: str) -> tuple[str, ...]:
    """The columns that `by` names, separated by commas. Raises ClientError."""
    names = tuple(by.split(","))
    if not set(names) <= set(BY) or len(set(names)) < len(names):
        raise ClientError(f"by names one or several of {', '.join(BY)}.", code="out_of_range", param="by")
    return names


def _columns(by: str) -> tuple[str, ...]:
    """Those that sums by `by` are grouped by."""
    names = grouped(by)
    return names if "tenant" in names or not _OF_ONE & set(names) else (*names, "tenant")


def read(query: UsageQuery, found: Sequence[Any]) -> tuple[UsageRow, ...] | tuple[UsageSum, ...]:
    """What the lines that answer `query` say."""
    if query.by is None:
        return tuple(row(values) for values in found)
    names, columns = grouped(query.by), _columns(query.by)
    return tuple(_sum(names, columns, values) for values in found)


def row(values: tuple[Any, ...]) -> UsageRow:
    """A usage row from the columns of its table, in their order."""
    fields = dict(zip(UsageRow.__struct_fields__, values, strict=False))
    for name in ("stream", "estimated", "unpriced"):
        fields[name] = bool(fields[name])
    return UsageRow(**fields)


def _sum(names: tuple[str, ...], columns: tuple[str, ...], values: Sequence[Any]) -> UsageSum:
    group = {name: _value(name, value) for name, value in zip(columns, values, strict=False)}
    # PostgreSQL's sums are decimals.
    *sums, first, last = values[len(columns) :]
    figures = dict(zip(_FIGURES, map(int, sums), strict=True))
    told = tuple(group[name] for name in names)
    several = told if len(told) > 1 else ()
    tenant = group.get("tenant")
    return UsageSum(key=", ".join(told), tenant=tenant, group=several, first=first, last=last, **figures)


def _value(name: str, value: Any) -> str:
    return (_EPOCH + timedelta(days=value)).isoformat() if name == "day" else (value or "")
