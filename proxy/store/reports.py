"""Reading the usage rows: single ones, or sums by model, conversation, day or key.

What belongs here: the queries behind `weirgate usage` and the console. What never: writing a row, or a query whose
cost is not bounded by the time it covers and its limit. Days are UTC. Rows of two tenants are never summed into one
line of a key or a conversation: their ids may be equal by chance.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, timedelta
from typing import Any, Protocol

import msgspec
from sqlalchemy import ColumnElement, bindparam, case, func, literal_column, select, text
from sqlalchemy.dialects.sqlite import dialect

from proxy.core.errors import ClientError
from proxy.core.usage import UsageRow
from proxy.store import UsageQuery, UsageSum, schema

_EPOCH = date(1970, 1, 1)
_EARLIEST, _LATEST = -1e300, 1e300


class Rows(Protocol):
    """What of a connection is used here."""

    def execute(self, sql: str, parameters: tuple[object, ...], /) -> Any: ...


class Reports(msgspec.Struct, frozen=True, kw_only=True):
    """SQL text by (grouping column or None, whether one tenant is asked for)."""

    texts: Mapping[tuple[str | None, bool], str]


def compiled() -> Reports:
    """since, until, the tenant where one is asked for, limit."""
    groups = (None, "model", "conversation", "day", "key")
    return Reports(texts={(by, one): _text(by, one) for by in groups for one in (True, False)})


def _text(by: str | None, one_tenant: bool) -> str:
    rows = schema.usage.c
    found = [rows.opened_at >= bindparam("since"), rows.opened_at < bindparam("until")]
    if one_tenant:
        found.append(rows.tenant == bindparam("tenant"))
    if by is None:
        query = select(schema.usage).where(*found).order_by(rows.opened_at.desc(), rows.id.desc())
    else:
        query = select(*_sums(by)).where(*found).group_by(*_grouped(by))
        query = query.order_by(*_order(by))
    compiled = query.suffix_with(text("LIMIT :most")).compile(dialect=dialect(paramstyle="qmark"))
    return str(compiled)


def _grouped(by: str) -> list[ColumnElement[Any]]:
    column = schema.usage.c[by]
    return [schema.usage.c.tenant, column] if by in ("conversation", "key") else [column]


def _order(by: str) -> list[ColumnElement[Any]]:
    if by == "day":
        return [schema.usage.c.day]
    return [text("cost DESC"), text("calls DESC"), *_grouped(by)]  # type: ignore[list-item] # text orders too


def _sums(by: str) -> list[ColumnElement[Any]]:
    rows = schema.usage.c
    of_one = by in ("conversation", "key")
    return [
        rows[by].label("group"),
        (rows.tenant if of_one else literal_column("NULL")).label("tenant"),
        func.count().label("calls"),
        *(func.sum(rows[name]).label(name) for name in ("input", "output", "cached", "reasoning")),
        func.sum(func.coalesce(rows.cost, literal_column("0"))).label("cost"),
        _count(rows.unpriced.is_(True), "unpriced"),
        _count(rows.status == literal_column("'failed'"), "failed"),
        _count(rows.compaction != literal_column("'none'"), "compactions"),
        _count(rows.compaction == literal_column("'recovered'"), "recovered"),
        _count(rows.estimated.is_(True), "estimated"),
    ]


def _count(which: ColumnElement[bool], name: str) -> ColumnElement[Any]:
    return func.sum(case((which, literal_column("1")), else_=literal_column("0"))).label(name)


def usage(connection: Rows, reports: Reports, query: UsageQuery) -> tuple[UsageRow, ...] | tuple[UsageSum, ...]:
    """Single rows, newest first; or sums, the dearest first (days in their order)."""
    sql = reports.texts.get((query.by, query.tenant is not None))
    if sql is None:
        raise ClientError("`by` is one of: model, conversation, day, key.", param="by")
    since = _EARLIEST if query.since is None else query.since
    until = _LATEST if query.until is None else query.until
    tenant = () if query.tenant is None else (query.tenant,)
    found = connection.execute(sql, (since, until, *tenant, max(0, query.limit))).fetchall()
    if query.by is None:
        return tuple(row(values) for values in found)
    return tuple(_sum(query.by, values) for values in found)


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
