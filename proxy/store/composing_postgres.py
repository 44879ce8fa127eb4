"""The SQL of the PostgreSQL fulfilment, written in SQLAlchemy Core and compiled to text ahead of time.

What belongs here: the statements that PostgreSQL is told otherwise than SQLite, because every one is a journey over the
network: a recall is one question, and what is remembered by many calls is written by few statements, none of which
needs the answer of another. What never: running them. `scripts/statements.py` writes `postgres.json`.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Double,
    LargeBinary,
    Select,
    Table,
    Text,
    and_,
    any_,
    bindparam,
    cast,
    delete,
    exists,
    literal_column,
    null,
    or_,
    select,
    text,
    tuple_,
    union_all,
    update,
)
from sqlalchemy.dialects.postgresql import dialect as postgres_dialect
from sqlalchemy.dialects.postgresql import insert as upsert

from proxy.store import composing, migrations, schema
from proxy.store.composing import Said, Sql, of_caller, sql
from proxy.store.postgres_statements import COPIED, DEAD, Compiled, PostgresStatements
from proxy.store.rows import LATELY
from proxy.store.statements import CONTENT, PURGED, USAGE_COLUMNS, Reports

_CHUNK = 5_000
_CLOCK: ColumnElement[Any] = literal_column("extract(epoch FROM clock_timestamp())")
"""The database's: those of the replicas may differ."""


def composed() -> Compiled:
    """All of it. Takes a second."""
    dialect = postgres_dialect(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call]
    return Compiled(
        head=migrations.HEAD,
        changes={number: _script(number) for number in sorted(migrations.known())},
        statements=msgspec.convert(composing.texts(_statements(), dialect), PostgresStatements),
        reports=msgspec.convert(composing.texts(composing.reports(), dialect), Reports),
    )


def _script(number: str) -> str:
    """What the change `number` does, in PostgreSQL's own words."""
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    written = io.StringIO()
    config = Config(output_buffer=written)
    config.set_main_option("script_location", Path(migrations.__file__).parent.as_posix().replace("%", "%%"))
    config.attributes["dialect"] = "postgresql"
    before = ScriptDirectory.from_config(config).get_revision(number).down_revision or "base"
    command.upgrade(config, f"{before}:{number}", sql=True)
    return "\n".join(line for line in written.getvalue().splitlines() if line and not line.startswith("-- "))


def _p(name: str, kind: Any = None) -> Any:
    return bindparam(name, type_=kind)


def _digests(name: str) -> Any:
    return any_(_p(name, ARRAY(LargeBinary)))


def _names(table: Table) -> tuple[str, ...]:
    return tuple(column.name for column in table.columns)


def _keys(table: Table) -> list[str]:
    return [column.name for column in table.primary_key.columns]


# -- reading ---------------------------------------------------------------------------------------------------------


def _found(kind: str, digest: Any, words: Any = None, label: Any = None, used: Any = None, *data: Any) -> Select[Any]:
    """A line of what a recall finds: kind, digest, words, label, used, and three times bytes."""
    bytes_ = [*data, *[None] * (3 - len(data))]
    given = (
        (digest, LargeBinary),
        (words, Text),
        (label, Text),
        (used, Double),
        *((one, LargeBinary) for one in bytes_),
    )
    return select(
        literal_column(f"'{kind}'").label("kind"),
        *(cast(null(), of) if column is None else column for column, of in given),
    )


def _replies(name: str) -> Select[Any]:
    reply, talk = schema.reply, schema.conversation
    theirs = and_(talk.c.tenant == reply.c.tenant, talk.c.scope == reply.c.scope, talk.c.id == reply.c.conversation)
    asked = _found("reply", reply.c.digest, reply.c.conversation, talk.c.label, talk.c.last_used, reply.c.anchor)
    return asked.select_from(reply.outerjoin(talk, theirs)).where(of_caller(reply), reply.c.digest == _digests(name))


def _recall() -> Sql:
    """tenant, scope, the newest digests, all digests, those of hidden state (none: it is not told), agent, label."""
    notes, hidden, talk = schema.compaction, schema.hidden, schema.conversation
    compactions = _found("compaction", notes.c.digest, notes.c.id, None, notes.c.last_used)
    told = _found(
        "hidden",
        hidden.c.digest,
        None,
        hidden.c.label,
        hidden.c.last_used,
        hidden.c.id,
        hidden.c.reply,
        hidden.c.payload,
    )
    first = _found("label", None, talk.c.id).where(of_caller(talk), talk.c.label == _p("label", Text))
    asked = union_all(
        _replies("near"),
        compactions.where(of_caller(notes), notes.c.digest == _digests("all")),
        told.where(of_caller(hidden), hidden.c.digest == _digests("hiding"), hidden.c.agent == _p("agent")),
        first.order_by(talk.c.created_at, talk.c.id).limit(literal_column("1")),
    )
    return sql(asked, "tenant", "scope", "near", "all", "hiding", "agent", "label")


def _farther() -> Sql:
    """tenant, scope, digests."""
    return sql(_replies("digests"), "tenant", "scope", "digests")


def _payloads() -> Sql:
    """tenant, scope, digests, ids: of each pair the payload."""
    notes = schema.compaction
    asked = select(notes.c.digest, notes.c.id, notes.c.payload).where(
        of_caller(notes), notes.c.digest == _digests("digests"), notes.c.id == any_(_p("ids", ARRAY(Text)))
    )
    return sql(asked, "tenant", "scope", "digests", "ids")


# -- writing ---------------------------------------------------------------------------------------------------------


def _add_reply() -> Sql:
    """The table's columns. A reply that is there keeps its conversation and takes the newest anchor."""
    table = schema.reply
    adding = upsert(table).values({name: _p(name) for name in _names(table)})
    new = adding.excluded
    moved = and_(new.anchor.is_not(None), table.c.anchor.is_distinct_from(new.anchor))
    adding = adding.on_conflict_do_update(index_elements=_keys(table), set_={"anchor": new.anchor}, where=moved)
    return sql(adding, *_names(table))


def _add_conversation() -> Sql:
    """tenant, scope, id, label, created_at, last_used, and the reply that made it. Only where it got a label, or that
    reply is its own: one that another conversation was answered with before makes no new one."""
    table, reply = schema.conversation, schema.reply
    names = _names(table)
    given = [cast(_p(column.name), column.type).label(column.name) for column in table.columns]
    mine = exists().where(
        of_caller(reply), reply.c.digest == _p("reply", LargeBinary), reply.c.conversation == _p("id")
    )
    adding = upsert(table).from_select(list(names), select(*given).where(or_(_p("label").is_not(None), mine)))
    new = adding.excluded
    # One that got its label later keeps the first one stated.
    unlabelled = and_(table.c.label.is_(None), new.label.is_not(None))
    changed = {"label": new.label, "last_used": new.last_used}
    adding = adding.on_conflict_do_update(index_elements=_keys(table), set_=changed, where=unlabelled)
    return sql(adding, *names, "reply")


def _add(table: Table) -> Sql:
    """The table's columns. One that is there is marked as used, unless it was lately."""
    adding = upsert(table).values({name: _p(name) for name in _names(table)})
    new = adding.excluded
    stale = table.c.last_used < new.last_used - literal_column(str(LATELY))
    adding = adding.on_conflict_do_update(index_elements=_keys(table), set_={"last_used": new.last_used}, where=stale)
    return sql(adding, *_names(table))


_ROW = ("tenant", "id", "opened_at")


def _open_row() -> Sql:
    """The columns of COPIED. Insert or ignore."""
    adding = upsert(schema.usage).values({name: _p(name) for name in COPIED})
    return sql(adding.on_conflict_do_nothing(index_elements=_ROW), *COPIED)


def _close_row() -> Sql:
    """The columns of `usage`, and who closes. Serves a row that is there and one that is not; a closed row is left
    alone, but what others took for a dead process's last word gives way to its own."""
    table = schema.usage
    adding = upsert(table).values({name: _p(name) for name in USAGE_COLUMNS})
    changed: dict[str, Any] = {name: adding.excluded[name] for name in USAGE_COLUMNS if name not in _ROW}
    guessed = and_(table.c.status == literal_column("'unknown'"), table.c.instance == _p("mine"))
    closing = adding.on_conflict_do_update(
        index_elements=_ROW,
        set_=changed | {"instance": null()},
        where=or_(table.c.status == literal_column("'open'"), guessed),
    )
    return sql(closing, *USAGE_COLUMNS, "mine")


# -- replicas --------------------------------------------------------------------------------------------------------


def _dead(id: ColumnElement[Any]) -> ColumnElement[bool]:
    """Whether the process `id` has given no sign of life. Asked of a list, which is short: nothing is correlated."""
    seen = schema.instance
    return id.not_in(select(seen.c.id).where(seen.c.seen_at > _CLOCK - literal_column(str(DEAD))))


def _claim() -> Sql:
    """tenant, key, owner, expires_at, instance, now. Changes a row only where the lease was free: run out, or a dead
    process's."""
    table = schema.lease
    taking = upsert(table).values({name: _p(name) for name in _names(table)})
    new = taking.excluded
    free = or_(table.c.expires_at <= _p("now"), _dead(table.c.instance))
    changed = {"owner": new.owner, "expires_at": new.expires_at, "instance": new.instance}
    taking = taking.on_conflict_do_update(index_elements=_keys(table), set_=changed, where=free)
    return sql(taking, *_names(table), "now")


def _beat() -> Sql:
    """id."""
    table = schema.instance
    adding = upsert(table).values(id=_p("id"), seen_at=_CLOCK)
    return sql(adding.on_conflict_do_update(index_elements=["id"], set_={"seen_at": _CLOCK}), "id")


def _reap() -> Sql:
    """Close some open rows of dead processes. They stay marked as theirs: the dead may be late, and know more."""
    rows, old = schema.usage, schema.usage.alias("old")
    nobodys = or_(old.c.instance.is_(None), _dead(old.c.instance))
    left = select(*(old.c[name] for name in _ROW)).where(old.c.status == literal_column("'open'"), nobodys)
    left = left.with_for_update(skip_locked=True).suffix_with(text(f"LIMIT {_CHUNK}"))
    closing = update(rows).values(status=literal_column("'unknown'"))
    return sql(closing.where(tuple_(*(rows.c[name] for name in _ROW)).in_(left)))


def _forget_dead() -> Sql:
    """Those that were silent for a day have no open rows any more."""
    return sql(delete(schema.instance).where(schema.instance.c.seen_at < _CLOCK - literal_column("86400")))


def _revise() -> Sql:
    """name."""
    table = schema.revision
    adding = upsert(table).values(name=_p("name"), number=literal_column("1"))
    more = {"number": table.c.number + literal_column("1")}
    return sql(adding.on_conflict_do_update(index_elements=["name"], set_=more), "name")


# -- retention -------------------------------------------------------------------------------------------------------


def _purge_usage() -> Sql:
    """tenant, before. An open row stays: its call runs."""
    rows, old = schema.usage, schema.usage.alias("old")
    going = select(*(old.c[name] for name in _ROW)).where(
        old.c.tenant == _p("tenant"), old.c.opened_at < _p("before"), old.c.status != literal_column("'open'")
    )
    going = going.with_for_update(skip_locked=True).suffix_with(text(f"LIMIT {PURGED}"))
    return sql(delete(rows).where(tuple_(*(rows.c[name] for name in _ROW)).in_(going)), "tenant", "before")


def _statements() -> dict[str, Said]:
    said: dict[str, Any] = composing.shared()
    seen, revision = schema.instance, schema.revision
    content = (*CONTENT, "trace")
    added = {name: _add(schema.metadata.tables[name]) for name in content}
    return said | {
        "add": said["add"] | added | {"reply": _add_reply(), "conversation": _add_conversation()},
        "purge": said["purge"] | {"usage": _purge_usage()},
        "claim": _claim(),
        "recall": _recall(),
        "farther": _farther(),
        "payloads": _payloads(),
        "open_row": _open_row(),
        "close_row": _close_row(),
        "beat": _beat(),
        "leave": sql(delete(seen).where(seen.c.id == _p("id")), "id"),
        "reap": _reap(),
        "forget_dead": _forget_dead(),
        "revision": sql(select(revision.c.number).where(revision.c.name == _p("name")), "name"),
        "revise": _revise(),
    }
