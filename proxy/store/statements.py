"""The SQL of the SQLite fulfilment: written in SQLAlchemy Core, compiled once to text, run by the driver.

What belongs here: statements, and nothing that runs them. What never: a statement on a caller's rows that does not
name the tenant. Compiled ahead because SQLAlchemy costs more per row than SQLite does (research/performance.md 6).
Parameters are positional; each statement says its own order and `_sql` holds it to that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from sqlalchemy import (
    BindParameter,
    ClauseElement,
    ColumnElement,
    FromClause,
    Table,
    and_,
    bindparam,
    exists,
    or_,
    select,
    text,
)
from sqlalchemy import delete as delete_from
from sqlalchemy import tuple_ as row_of
from sqlalchemy import update as update_of
from sqlalchemy.dialects.sqlite import dialect, insert

from proxy.store import schema

SIZES = (4, 32, 256)
"""How many digests one statement can ask for. A list is filled up with its last digest, so three texts serve all."""

LISTED = 256
"""A scope with at most so many rows of a kind is listed whole: cheaper than asking for thousands of digests."""

PURGED = 2_000
"""Rows deleted in one transaction: others' work goes in between."""

USAGE_COLUMNS: tuple[str, ...] = tuple(column.name for column in schema.usage.columns)

CONTENT = (schema.compaction, schema.hidden, schema.result)
"""The tables that hold what people and models said."""

RETAINED = (*CONTENT, schema.reply)
"""The tables whose rows live as long as their conversation is used."""


class Statements(msgspec.Struct, frozen=True, kw_only=True):
    """SQL by what it does; the order of parameters stands at each maker below.

    A tuple holds one text per entry of SIZES. `touch`, `add` and `purge` go by table.
    """

    add: Mapping[str, str]
    touch: Mapping[str, str]
    purge: Mapping[str, str]
    conversation_of_label: str
    label_of_conversation: str
    move_anchor: str
    replies: tuple[str, ...]
    compactions: tuple[str, ...]
    compactions_in_scope: str
    hidden_at: tuple[str, ...]
    hidden_in_scope: str
    hidden: str
    result: str
    open_row: str
    close_row: str
    secret: str
    claim: str
    release: str
    calibrations: str
    calibrate: str
    keys: str
    revoke_key: str


def _p(name: str) -> BindParameter[Any]:
    return bindparam(name)


def _sql(statement: ClauseElement, *order: str) -> str:
    """The text of `statement`; `order` is how the caller will give its parameters."""
    compiled = statement.compile(dialect=dialect(paramstyle="qmark"))
    found = tuple(getattr(compiled, "positiontup", None) or ())
    if found != order:
        raise AssertionError(f"parameters come as {found}, not {order}: {compiled}")
    return str(compiled)


def _owned(table: Table) -> ColumnElement[bool]:
    """The rows of one caller: nothing that a caller owns is read without this."""
    return and_(table.c.tenant == _p("tenant"), table.c.scope == _p("scope"))


def _values(table: Table) -> dict[str, BindParameter[Any]]:
    return {column.name: _p(column.name) for column in table.columns}


def _names(table: Table) -> tuple[str, ...]:
    return tuple(column.name for column in table.columns)


def _keys(table: Table) -> list[str]:
    return [column.name for column in table.primary_key.columns]


def _add(table: Table) -> str:
    """The table's columns. Insert or ignore."""
    return _sql(
        insert(table).values(_values(table)).on_conflict_do_nothing(index_elements=_keys(table)), *_names(table)
    )


def _add_conversation() -> str:
    """The table's columns. A conversation that got its label later keeps the first one stated."""
    table = schema.conversation
    adding = insert(table).values(_values(table))
    new = adding.excluded
    unlabelled = and_(table.c.label.is_(None), new.label.is_not(None))
    adding = adding.on_conflict_do_update(index_elements=_keys(table), set_={"label": new.label}, where=unlabelled)
    return _sql(adding, *_names(table))


def _touch(table: Table, *keys: str) -> str:
    """now, tenant, scope, the keys, and the time from which a row counts as lately used."""
    changing = update_of(table).values(last_used=_p("now")).where(_owned(table))
    changing = changing.where(*(table.c[key] == _p(f"of_{key}") for key in keys), table.c.last_used < _p("lately"))
    return _sql(changing, "now", "tenant", "scope", *(f"of_{key}" for key in keys), "lately")


def _among(table: Table, searched: tuple[str, ...], *columns: str) -> tuple[str, ...]:
    """tenant, scope, then the digests once for each searched column."""
    texts = []
    for size in SIZES:
        names = [[f"{column}{number}" for number in range(size)] for column in searched]
        found = [table.c[column].in_([_p(name) for name in some]) for column, some in zip(searched, names, strict=True)]
        asked = select(*(table.c[column] for column in columns)).where(_owned(table), or_(*found))
        texts.append(_sql(asked, "tenant", "scope", *(name for some in names for name in some)))
    return tuple(texts)


def _in_scope(table: Table, *columns: str) -> str:
    """tenant, scope. One row more than LISTED says that there are too many to list."""
    asked = select(*(table.c[column] for column in columns)).where(_owned(table))
    return _sql(asked.suffix_with(text(f"LIMIT {LISTED + 1}")), "tenant", "scope")


def _one(table: Table, by: str, *columns: str) -> str:
    """tenant, scope, the value looked for."""
    asked = select(*(table.c[column] for column in columns)).where(_owned(table), table.c[by] == _p("by"))
    if by == "label":
        asked = asked.order_by(table.c.created_at, table.c.id).suffix_with(text("LIMIT 1"))
    return _sql(asked, "tenant", "scope", "by")


def _hidden() -> str:
    """tenant, scope, agent, digest."""
    table = schema.hidden
    asked = select(*(table.c[name] for name in ("digest", "id", "reply", "label", "payload")))
    asked = asked.where(_owned(table), table.c.agent == _p("agent"), table.c.digest == _p("at"))
    return _sql(asked.order_by(table.c.id), "tenant", "scope", "agent", "at")


def _move_anchor() -> str:
    """anchor, tenant, scope, digest, anchor. Nothing is written where the anchor is the same."""
    table = schema.reply
    changing = update_of(table).values(anchor=_p("anchor")).where(_owned(table), table.c.digest == _p("at"))
    changing = changing.where(table.c.anchor.is_distinct_from(_p("old")))
    return _sql(changing, "anchor", "tenant", "scope", "at", "old")


def _close_row() -> str:
    """The columns of `usage`. Serves a row that is there and one that is not yet; a closed row is left alone."""
    table = schema.usage
    adding = insert(table).values(_values(table))
    changed = {name: adding.excluded[name] for name in USAGE_COLUMNS if name not in ("tenant", "id")}
    closing = adding.on_conflict_do_update(
        index_elements=_keys(table), set_=changed, where=table.c.status == text("'open'")
    )
    return _sql(closing, *USAGE_COLUMNS)


def _claim() -> str:
    """tenant, key, owner, expires_at, now. Changes a row only where the lease was free."""
    table = schema.lease
    taking = insert(table).values(_values(table))
    new = taking.excluded
    taking = taking.on_conflict_do_update(
        index_elements=_keys(table),
        set_={"owner": new.owner, "expires_at": new.expires_at},
        where=table.c.expires_at <= _p("now"),
    )
    return _sql(taking, *_names(table), "now")


def _release() -> str:
    """tenant, key, owner."""
    table = schema.lease
    mine = and_(table.c.tenant == _p("tenant"), table.c.key == _p("of_key"), table.c.owner == _p("owner"))
    return _sql(delete_from(table).where(mine), "tenant", "of_key", "owner")


def _calibrate() -> str:
    """upstream, model, payload."""
    table = schema.calibration
    adding = insert(table).values(_values(table))
    adding = adding.on_conflict_do_update(index_elements=_keys(table), set_={"payload": adding.excluded.payload})
    return _sql(adding, *_names(table))


def _revoke() -> str:
    """now, tenant, id."""
    table = schema.client_key
    mine = and_(table.c.tenant == _p("tenant"), table.c.id == _p("of_id"), table.c.revoked_at.is_(None))
    return _sql(update_of(table).values(revoked_at=_p("now")).where(mine), "now", "tenant", "of_id")


def _purge(table: Table, *, kept_by_conversation: bool) -> str:
    """tenant, before (and before again where a conversation keeps its rows). At most PURGED rows."""
    old = table.alias("old")
    where = [old.c.tenant == _p("tenant"), old.c.last_used < _p("before")]
    if kept_by_conversation:
        where.append(~_alive(old))
    return _delete(table, old, where)


def _alive(rows: FromClause) -> ColumnElement[bool]:
    talk = schema.conversation.alias("talk")
    mine = and_(talk.c.tenant == rows.c.tenant, talk.c.scope == rows.c.scope, talk.c.id == rows.c.conversation)
    return exists().where(mine, talk.c.last_used >= _p("still"))


def _purge_usage() -> str:
    """tenant, before. An open row stays: its call runs."""
    old = schema.usage.alias("old")
    where = [old.c.tenant == _p("tenant"), old.c.opened_at < _p("before"), old.c.status != text("'open'")]
    return _delete(schema.usage, old, where)


def _delete(table: Table, old: FromClause, where: list[ColumnElement[bool]]) -> str:
    keys = _keys(table)
    going = select(*(old.c[key] for key in keys)).where(*where).suffix_with(text(f"LIMIT {PURGED}"))
    return str(
        delete_from(table)
        .where(row_of(*(table.c[key] for key in keys)).in_(going))
        .compile(dialect=dialect(paramstyle="qmark"))
    )


def _purges() -> dict[str, str]:
    """In the order in which they run: what a conversation keeps goes before it."""
    purges = {table.name: _purge(table, kept_by_conversation=True) for table in RETAINED}
    purges["conversation"] = _purge(schema.conversation, kept_by_conversation=False)
    return purges | {"usage": _purge_usage()}


def compiled() -> Statements:
    """Every statement. A few milliseconds, once per store."""
    talk, reply, notes, hidden, result = schema.conversation, schema.reply, *CONTENT
    added = (reply, *CONTENT, schema.usage, schema.secret, schema.client_key)
    return Statements(
        add={table.name: _add(table) for table in added} | {"conversation": _add_conversation()},
        touch={
            "conversation": _touch(talk, "id"),
            "compaction": _touch(notes, "digest", "id"),
            "hidden": _touch(hidden, "digest", "agent", "id"),
            "result": _touch(result, "reference"),
        },
        purge=_purges(),
        conversation_of_label=_one(talk, "label", "id"),
        label_of_conversation=_one(talk, "id", "label"),
        move_anchor=_move_anchor(),
        replies=_among(reply, ("digest",), "digest", "conversation", "anchor"),
        compactions=_among(notes, ("digest",), "digest", "payload"),
        compactions_in_scope=_in_scope(notes, "digest"),
        hidden_at=_among(hidden, ("digest", "reply"), "digest", "reply"),
        hidden_in_scope=_in_scope(hidden, "digest", "reply"),
        hidden=_hidden(),
        result=_one(result, "reference", "payload"),
        open_row=_add(schema.usage),
        close_row=_close_row(),
        secret=_sql(select(schema.secret.c.value).where(schema.secret.c.purpose == _p("of")), "of"),
        claim=_claim(),
        release=_release(),
        calibrations=_sql(select(schema.calibration.c.payload)),
        calibrate=_calibrate(),
        keys=_sql(select(schema.client_key).order_by(schema.client_key.c.created_at, schema.client_key.c.id)),
        revoke_key=_revoke(),
    )
