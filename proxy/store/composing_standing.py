"""The statements on limits of keys, written in SQLAlchemy Core: what was set, when a key was last used, what it used.

What belongs here: as in `composing`, which gives the maker (`Say`: of a statement, and of the order in which its
parameters will be given).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import BindParameter, ColumnElement, and_, bindparam, case, func, literal_column, or_, select
from sqlalchemy.dialects.postgresql import insert

from proxy.store.schema import standing, usage

Sql = TypeVar("Sql")
Say = Callable[..., Sql]

_COLUMNS = tuple(column.name for column in standing.columns)
_KEY = ("tenant", "key")
_NOTHING: ColumnElement[int] = literal_column("0")


def statements(sql: Say[Sql]) -> dict[str, Sql]:
    return {
        "standings": sql(select(standing).order_by(standing.c.tenant, standing.c.key)),
        "set_quota": _set_quota(sql),
        "mark_used": _mark_used(sql),
        "spent": _spent(sql),
    }


def _values() -> dict[str, BindParameter[object]]:
    return {name: bindparam(name) for name in _COLUMNS}


def _set_quota(sql: Say[Sql]) -> Sql:
    """The table's columns. When the key was last used stays."""
    adding = insert(standing).values(_values())
    return sql(adding.on_conflict_do_update(index_elements=_KEY, set_={"quota": adding.excluded.quota}), *_COLUMNS)


def _mark_used(sql: Say[Sql]) -> Sql:
    """The table's columns. What was set for the key stays, and a later use."""
    adding = insert(standing).values(_values())
    used = adding.excluded.last_used
    later = or_(standing.c.last_used.is_(None), standing.c.last_used < used)
    return sql(adding.on_conflict_do_update(index_elements=_KEY, set_={"last_used": used}, where=later), *_COLUMNS)


def _spent(sql: Say[Sql]) -> Sql:
    """since. Requests, tokens and nano-dollars by tenant and key: a request is its first row."""
    rows = usage.c
    closed = rows.status != literal_column("'open'")  # who runs is counted where it runs
    first = and_(rows.parent.is_(None), rows.purpose != literal_column("'compaction'"), closed)
    asked = select(
        rows.tenant,
        rows.key,
        func.sum(case((first, literal_column("1")), else_=_NOTHING)).label("requests"),
        func.sum(rows.input + rows.output).label("tokens"),
        func.sum(func.coalesce(rows.cost, _NOTHING)).label("cost"),
    )
    asked = asked.where(rows.opened_at >= bindparam("since")).group_by(rows.tenant, rows.key)
    return sql(asked, "since")
