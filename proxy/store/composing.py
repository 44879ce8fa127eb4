"""The SQL of the fulfilments, written in SQLAlchemy Core and compiled to text ahead of time.

What belongs here: the statements, and nothing that runs them. What never: a statement on a caller's rows that does not
name the tenant, and an import from a module that serves: SQLAlchemy takes as long to import as all the rest of a start
does, and costs more per row than SQLite (research/performance.md 6). `scripts/statements.py` writes what is made here
to `sqlite.json`, which `statements` reads; a test holds the two together. What PostgreSQL says otherwise stands in
`composing_postgres`; ON CONFLICT is written with PostgreSQL's `insert`, from which SQLite has it.
Parameters are positional; each statement says its own order and `Sql.text` holds it to that.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import (
    BindParameter,
    ClauseElement,
    ColumnElement,
    Dialect,
    FromClause,
    Table,
    and_,
    bindparam,
    exists,
    func,
    or_,
    select,
    text,
    union_all,
)
from sqlalchemy import delete as delete_from
from sqlalchemy import tuple_ as row_of
from sqlalchemy import update as update_of
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.dialects.sqlite import dialect as sqlite_dialect

from proxy.store import composing_owned, composing_reports, composing_standing, migrations, schema
from proxy.store.statements import (
    CONTENT,
    LISTED,
    PURGED,
    RETAINED,
    SIZES,
    USAGE_COLUMNS,
    Compiled,
    Reports,
    Statements,
)


def composed() -> Compiled:
    """All of it. Takes a second."""
    dialect = sqlite_dialect(paramstyle="qmark")
    return Compiled(
        head=migrations.HEAD,
        schema=_schema(),
        statements=msgspec.convert(texts(_statements(), dialect), Statements),
        reports=msgspec.convert(texts(reports(), dialect), Reports),
    )


def _schema() -> tuple[str, ...]:
    """What the migrations make of an empty database, in SQLite's own words."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    try:
        migrations.migrate(connection)
        made = connection.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY rowid").fetchall()
    finally:
        connection.close()
    return tuple(sql for (sql,) in made)


def _p(name: str) -> BindParameter[Any]:
    return bindparam(name)


class Sql(NamedTuple):
    """A statement, and how the caller will give its parameters."""

    statement: ClauseElement
    order: tuple[str, ...]

    def text(self, dialect: Dialect) -> str:
        compiled = self.statement.compile(dialect=dialect)
        found = tuple(getattr(compiled, "positiontup", None) or ())
        if found != self.order:
            raise AssertionError(f"parameters come as {found}, not {self.order}: {compiled}")
        return str(compiled)


Said = Sql | tuple[Sql, ...] | Mapping[str, Sql]


def texts(said: Mapping[str, Said], dialect: Dialect) -> dict[str, Any]:
    """The text of each, in the words of one database."""

    def written(each: Said) -> Any:
        if isinstance(each, Sql):
            return each.text(dialect)
        if isinstance(each, Mapping):
            return {name: one.text(dialect) for name, one in each.items()}
        return [one.text(dialect) for one in each]

    return {name: written(each) for name, each in said.items()}


def sql(statement: ClauseElement, *order: str) -> Sql:
    return Sql(statement, order)


def of_caller(table: Table) -> ColumnElement[bool]:
    """The rows of one caller: nothing that a caller owns is read without this."""
    return and_(table.c.tenant == _p("tenant"), table.c.scope == _p("scope"))


def _table(name: str) -> Table:
    return schema.metadata.tables[name]


def _names(table: Table) -> tuple[str, ...]:
    """The columns that a row is written with: `instance` is PostgreSQL's own to fill."""
    return tuple(column.name for column in table.columns if column.name != "instance")


def _values(table: Table) -> dict[str, BindParameter[Any]]:
    return {name: _p(name) for name in _names(table)}


def _keys(table: Table) -> list[str]:
    return [column.name for column in table.primary_key.columns]


def _add(table: Table) -> Sql:
    """The table's columns. Insert or ignore."""
    return sql(insert(table).values(_values(table)).on_conflict_do_nothing(index_elements=_keys(table)), *_names(table))


def _add_conversation() -> Sql:
    """The table's columns. A conversation that got its label later keeps the first one stated."""
    table = schema.conversation
    adding = insert(table).values(_values(table))
    new = adding.excluded
    unlabelled = and_(table.c.label.is_(None), new.label.is_not(None))
    adding = adding.on_conflict_do_update(index_elements=_keys(table), set_={"label": new.label}, where=unlabelled)
    return sql(adding, *_names(table))


def _touch(table: Table, *keys: str) -> Sql:
    """now, tenant, scope, the keys, and the time from which a row counts as lately used."""
    changing = update_of(table).values(last_used=_p("now")).where(of_caller(table))
    changing = changing.where(*(table.c[key] == _p(f"of_{key}") for key in keys), table.c.last_used < _p("lately"))
    return sql(changing, "now", "tenant", "scope", *(f"of_{key}" for key in keys), "lately")


def _among(table: Table, searched: tuple[str, ...], *columns: str) -> tuple[Sql, ...]:
    """tenant, scope, then the digests once for each searched column."""
    texts = []
    for size in SIZES:
        names = [[f"{column}{number}" for number in range(size)] for column in searched]
        found = [table.c[column].in_([_p(name) for name in some]) for column, some in zip(searched, names, strict=True)]
        asked = select(*(table.c[column] for column in columns)).where(of_caller(table), or_(*found))
        texts.append(sql(asked, "tenant", "scope", *(name for some in names for name in some)))
    return tuple(texts)


def _in_scope(table: Table, *columns: str) -> Sql:
    """tenant, scope. One row more than LISTED says that there are too many to list."""
    asked = select(*(table.c[column] for column in columns)).where(of_caller(table))
    return sql(asked.suffix_with(text(f"LIMIT {LISTED + 1}")), "tenant", "scope")


def _one(table: Table, by: str, *columns: str) -> Sql:
    """tenant, scope, the value looked for."""
    asked = select(*(table.c[column] for column in columns)).where(of_caller(table), table.c[by] == _p("by"))
    if by == "label":
        asked = asked.order_by(table.c.created_at, table.c.id).suffix_with(text("LIMIT 1"))
    return sql(asked, "tenant", "scope", "by")


def _hidden() -> Sql:
    """tenant, scope, agent, digest."""
    table = schema.hidden
    asked = select(*(table.c[name] for name in ("digest", "id", "reply", "label", "payload")))
    asked = asked.where(of_caller(table), table.c.agent == _p("agent"), table.c.digest == _p("at"))
    return sql(asked.order_by(table.c.id), "tenant", "scope", "agent", "at")


def _move_anchor() -> Sql:
    """anchor, tenant, scope, digest, anchor. Nothing is written where the anchor is the same."""
    table = schema.reply
    changing = update_of(table).values(anchor=_p("anchor")).where(of_caller(table), table.c.digest == _p("at"))
    changing = changing.where(table.c.anchor.is_distinct_from(_p("old")))
    return sql(changing, "anchor", "tenant", "scope", "at", "old")


def _close_row() -> Sql:
    """The columns of `usage`. Serves a row that is there and one that is not yet; a closed row is left alone."""
    table = schema.usage
    adding = insert(table).values(_values(table))
    changed = {name: adding.excluded[name] for name in USAGE_COLUMNS if name not in ("tenant", "id")}
    closing = adding.on_conflict_do_update(
        index_elements=_keys(table), set_=changed, where=table.c.status == text("'open'")
    )
    return sql(closing, *USAGE_COLUMNS)


def _claim() -> Sql:
    """tenant, key, owner, expires_at, now. Changes a row only where the lease was free."""
    table = schema.lease
    taking = insert(table).values(_values(table))
    new = taking.excluded
    taking = taking.on_conflict_do_update(
        index_elements=_keys(table),
        set_={"owner": new.owner, "expires_at": new.expires_at},
        where=table.c.expires_at <= _p("now"),
    )
    return sql(taking, *_names(table), "now")


def _release() -> Sql:
    """tenant, key, owner."""
    table = schema.lease
    mine = and_(table.c.tenant == _p("tenant"), table.c.key == _p("of_key"), table.c.owner == _p("owner"))
    return sql(delete_from(table).where(mine), "tenant", "of_key", "owner")


def _calibrate() -> Sql:
    """upstream, model, payload."""
    table = schema.calibration
    adding = insert(table).values(_values(table))
    adding = adding.on_conflict_do_update(index_elements=_keys(table), set_={"payload": adding.excluded.payload})
    return sql(adding, *_names(table))


def _revoke() -> Sql:
    """now, tenant, id."""
    table = schema.client_key
    mine = and_(table.c.tenant == _p("tenant"), table.c.id == _p("of_id"), table.c.revoked_at.is_(None))
    return sql(update_of(table).values(revoked_at=_p("now")).where(mine), "now", "tenant", "of_id")


def _own() -> ColumnElement[bool]:
    """One account's row."""
    table = schema.account.c
    return and_(table.tenant == _p("tenant"), table.key == _p("of_key"), table.end_user == _p("of_user"))


def _account() -> Sql:
    """tenant, key, end user."""
    return sql(select(schema.account.c.payload).where(_own()), "tenant", "of_key", "of_user")


def _any_account() -> Sql:
    """tenant. Whether it has any."""
    table = schema.account
    asked = select(table.c.tenant).where(table.c.tenant == _p("tenant"))
    return sql(asked.suffix_with(text("LIMIT 1")), "tenant")


def _set_account() -> Sql:
    """The table's columns. What was set before is replaced."""
    table = schema.account
    adding = insert(table).values(_values(table))
    new = adding.excluded
    replaced = {"payload": new.payload, "updated_at": new.updated_at}
    return sql(adding.on_conflict_do_update(index_elements=_keys(table), set_=replaced), *_names(table))


def _drop_account() -> Sql:
    """tenant, key, end user."""
    return sql(delete_from(schema.account).where(_own()), "tenant", "of_key", "of_user")


def _traces() -> Sql:
    """tenant, scope, conversation. At most LISTED rows, in the order in which they came: a turn's skills are selected
    before others are loaded."""
    table = schema.trace
    columns = (table.c.kind, table.c.subject, table.c.agent, table.c.last_used)
    asking = select(*columns).where(of_caller(table), table.c.conversation == _p("conversation"))
    asking = asking.order_by(table.c.last_used, table.c.kind.desc(), table.c.subject).suffix_with(
        text(f"LIMIT {LISTED}")
    )
    return sql(asking, "tenant", "scope", "conversation")


def _purge(table: Table, *, kept_by_conversation: bool) -> Sql:
    """tenant, before (and before again where a conversation keeps its rows). At most PURGED rows."""
    old = table.alias("old")
    where = [old.c.tenant == _p("tenant"), old.c.last_used < _p("before")]
    if kept_by_conversation:
        where.append(~_alive(old))
    return _delete(table, old, where, "tenant", "before", *(("still",) if kept_by_conversation else ()))


def _alive(rows: FromClause) -> ColumnElement[bool]:
    talk = schema.conversation.alias("talk")
    mine = and_(talk.c.tenant == rows.c.tenant, talk.c.scope == rows.c.scope, talk.c.id == rows.c.conversation)
    return exists().where(mine, talk.c.last_used >= _p("still"))


def _purge_usage() -> Sql:
    """tenant, before. An open row stays: its call runs."""
    old = schema.usage.alias("old")
    where = [old.c.tenant == _p("tenant"), old.c.opened_at < _p("before"), old.c.status != text("'open'")]
    return _delete(schema.usage, old, where, "tenant", "before")


def _delete(table: Table, old: FromClause, where: list[ColumnElement[bool]], *order: str) -> Sql:
    """Where others delete too (PostgreSQL), nobody waits for them; SQLite is alone and locks no rows."""
    keys = _keys(table)
    going = select(*(old.c[key] for key in keys)).where(*where).with_for_update(skip_locked=True)
    going = going.suffix_with(text(f"LIMIT {PURGED}"))
    return sql(delete_from(table).where(row_of(*(table.c[key] for key in keys)).in_(going)), *order)


def _purges() -> dict[str, Sql]:
    """In the order in which they run: what a conversation keeps goes before it."""
    purges = {table.name: _purge(table, kept_by_conversation=True) for table in map(_table, RETAINED)}
    purges["conversation"] = _purge(schema.conversation, kept_by_conversation=False)
    return purges | {"usage": _purge_usage()}


def _tenant_after() -> Sql:
    """tenant, and again. The next ones, by name, of whom conversations and usage rows are kept: an index holds them."""
    talk, row = schema.conversation.c, schema.usage.c
    talked = select(func.min(talk.tenant)).where(talk.tenant > _p("talked"))
    used = select(func.min(row.tenant)).where(row.tenant > _p("used"))
    return sql(union_all(talked, used), "talked", "used")


def shared() -> dict[str, Said]:
    """What both databases are told in the same words: the fields of `Shared`."""
    content = tuple(map(_table, CONTENT))
    talk, (notes, hidden, result) = schema.conversation, content
    added = (schema.reply, *content, schema.trace, schema.secret, schema.client_key)
    return {
        "add": {table.name: _add(table) for table in added} | {"conversation": _add_conversation()},
        "touch": {
            "conversation": _touch(talk, "id"),
            "compaction": _touch(notes, "digest", "id"),
            "hidden": _touch(hidden, "digest", "agent", "id"),
            "result": _touch(result, "reference"),
        },
        "purge": _purges(),
        "result": _one(result, "reference", "payload"),
        "traces": _traces(),
        "secret": sql(select(schema.secret.c.value).where(schema.secret.c.purpose == _p("of")), "of"),
        "claim": _claim(),
        "release": _release(),
        "calibrations": sql(select(schema.calibration.c.payload)),
        "calibrate": _calibrate(),
        "keys": sql(select(schema.client_key).order_by(schema.client_key.c.created_at, schema.client_key.c.id)),
        "revoke_key": _revoke(),
        "account": _account(),
        "set_account": _set_account(),
        "drop_account": _drop_account(),
        "tenant_after": _tenant_after(),
        "owned": composing_owned.statements(sql),
        "standing": composing_standing.statements(sql),
    }


def _statements() -> dict[str, Said]:
    talk, reply, notes, hidden = schema.conversation, schema.reply, schema.compaction, schema.hidden
    return shared() | {
        "conversation_of_label": _one(talk, "label", "id"),
        "label_of_conversation": _one(talk, "id", "label"),
        "move_anchor": _move_anchor(),
        "replies": _among(reply, ("digest",), "digest", "conversation", "anchor"),
        "compactions": _among(notes, ("digest",), "digest", "payload"),
        "compactions_in_scope": _in_scope(notes, "digest"),
        "hidden_at": _among(hidden, ("digest", "reply"), "digest", "reply"),
        "hidden_in_scope": _in_scope(hidden, "digest", "reply"),
        "hidden": _hidden(),
        "open_row": _add(schema.usage),
        "close_row": _close_row(),
        "any_account": _any_account(),
    }


def reports() -> dict[str, Said]:
    """What usage rows are read with: the fields of `Reports`."""
    return dict(composing_reports.reports(sql))
