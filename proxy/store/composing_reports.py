"""The statements that read usage rows, written in SQLAlchemy Core: single ones, and sums.

What belongs here: as in `composing`, which gives the maker (`Say`: of a statement, and of the order in which its
parameters will be given). Sums go by several columns at once, in any choice of them; the place of their names is
marked with GROUPED and ORDERED, which `reports` replaces by names out of a closed set.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Select, bindparam, case, func, literal_column, select, text, tuple_

from proxy.store.reports import FILTERS, GROUPED, ORDERED
from proxy.store.schema import usage
from proxy.store.statements import USAGE_COLUMNS

Sql = TypeVar("Sql")
Say = Callable[..., Sql]


def reports(sql: Say[Sql]) -> dict[str, Sql]:
    return {
        "rows_of_all": _rows(sql, one_tenant=False),
        "rows_of_tenant": _rows(sql, one_tenant=True),
        "sums_of_all": _sums(sql, one_tenant=False),
        "sums_of_tenant": _sums(sql, one_tenant=True),
    }


def _rows(sql: Say[Sql], *, one_tenant: bool) -> Sql:
    """since, until, tenant, the filters, opened_at and id that the rows lie before, limit."""
    rows = usage.c
    asked, order = _found(select(*(rows[name] for name in USAGE_COLUMNS)), one_tenant)
    asked = asked.where(tuple_(rows.opened_at, rows.id) < tuple_(bindparam("before"), bindparam("before_id")))
    asked = asked.order_by(rows.opened_at.desc(), rows.id.desc())
    return sql(asked.suffix_with(text("LIMIT :most")), *order, "before", "before_id", "most")


def _sums(sql: Say[Sql], *, one_tenant: bool) -> Sql:
    """since, until, tenant, the filters, limit."""
    rows = usage.c
    grouped: ColumnElement[Any] = literal_column(GROUPED)
    figures = [
        func.count().label("calls"),
        *(func.sum(rows[name]).label(name) for name in ("input", "output", "cached", "reasoning")),
        func.sum(func.coalesce(rows.cost, literal_column("0"))).label("cost"),
        _count(rows.unpriced.is_(True), "unpriced"),
        _count(rows.status == literal_column("'failed'"), "failed"),
        _count(rows.compaction != literal_column("'none'"), "compactions"),
        _count(rows.compaction == literal_column("'recovered'"), "recovered"),
        _count(rows.estimated.is_(True), "estimated"),
        func.min(rows.opened_at).label("first"),
        func.max(rows.opened_at).label("last"),
    ]
    asked, order = _found(select(grouped, *figures), one_tenant)
    asked = asked.group_by(grouped).order_by(literal_column(ORDERED)).suffix_with(text("LIMIT :most"))
    return sql(asked, *order, "most")


def _found(asked: Select[Any], one_tenant: bool) -> tuple[Select[Any], tuple[str, ...]]:
    """The rows of a time, and of those that are asked for: a filter that is NULL lets everything pass."""
    rows = usage.c
    asked = asked.where(rows.opened_at >= bindparam("since"), rows.opened_at < bindparam("until"))
    if one_tenant:
        asked = asked.where(rows.tenant == bindparam("tenant"))
    for name in FILTERS:
        wanted = func.coalesce(bindparam(f"of_{name}", type_=rows[name].type), rows[name])
        asked = asked.where(rows[name].is_not_distinct_from(wanted))
    return asked, ("since", "until", *(("tenant",) if one_tenant else ()), *(f"of_{name}" for name in FILTERS))


def _count(which: ColumnElement[bool], name: str) -> ColumnElement[Any]:
    return func.sum(case((which, literal_column("1")), else_=literal_column("0"))).label(name)
