"""The statements on conversations that the gateway keeps, written in SQLAlchemy Core.

What belongs here: as in `composing`, which gives the maker (`Say`: of a statement, and of the order in which its
parameters will be given). What never: a statement that does not name tenant, key and conversation, but for
the lists of a key's and of a tenant's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Select,
    Table,
    and_,
    bindparam,
    insert,
    or_,
    select,
    text,
)
from sqlalchemy import delete as delete_from
from sqlalchemy import tuple_ as row_of
from sqlalchemy import update as update_of
from sqlalchemy.dialects.postgresql import insert as insert_or

from proxy.store.schema import interjection, owned, owned_item

Sql = TypeVar("Sql")
Say = Callable[..., Sql]

_OWNER = ("tenant", "of_key", "of_id")


def statements(sql: Say[Sql]) -> dict[str, Sql]:
    """By name. `lock` is for a database where others write: what it waited for may have moved the head, so it tells
    nothing, and `find` comes behind it. Lists of conversations go by direction and by what bounds
    them: "newest" or "oldest", then ".user" and ".after" where these are given."""
    lists = {
        f"{direction}{'.user' if user else ''}{'.after' if after else ''}": _listed(sql, direction, user, after)
        for direction in ("newest", "oldest")
        for user in (False, True)
        for after in (False, True)
    }
    gone = {f"delete.{table.name}": _gone(sql, table) for table in (interjection, owned_item, owned)}
    return (
        lists
        | gone
        | {
            "create": _add(sql, owned),
            "find": sql(_read().where(_of(owned)), *_OWNER),
            "lock": sql(select(owned.c.id).where(_of(owned)).with_for_update(), *_OWNER),
            "describe": _describe(sql),
            "move": _move(sql),
            "renew": _renew(sql),
            "stop": _stop(sql),
            "add_item": _add_item(sql),
            "item": _item(sql),
            "any_item": sql(select(owned_item.c.id).where(_of(owned_item)).suffix_with(text("LIMIT 1")), *_OWNER),
            "items": _items(sql),
            "interject": _add(sql, interjection),
            "interjected": _interjected(sql),
            "old": _old(sql),
        }
    )


def _p(name: str) -> BindParameter[Any]:
    return bindparam(name)


def _of(table: Table) -> ColumnElement[bool]:
    """The rows of one conversation."""
    id = table.c.id if table is owned else table.c.conversation
    return and_(table.c.tenant == _p("tenant"), table.c.key == _p("of_key"), id == _p("of_id"))


def _add_item(sql: Say[Sql]) -> Sql:
    """The table's columns. Insert or ignore."""
    names = [column.name for column in owned_item.columns]
    keys = [column.name for column in owned_item.primary_key.columns]
    adding = insert_or(owned_item).values({name: _p(name) for name in names})
    return sql(adding.on_conflict_do_nothing(index_elements=keys), *names)


def _item(sql: Say[Sql]) -> Sql:
    """tenant, key, id (of the conversation), id."""
    columns = (owned_item.c.parent, owned_item.c.wire, owned_item.c.payload)
    return sql(select(*columns).where(_of(owned_item), owned_item.c.id == _p("of_item")), *_OWNER, "of_item")


def _gone(sql: Say[Sql], table: Table) -> Sql:
    """tenant, key, id (of the conversation)."""
    return sql(delete_from(table).where(_of(table)), *_OWNER)


def _add(sql: Say[Sql], table: Table) -> Sql:
    """The table's columns."""
    names = [column.name for column in table.columns]
    return sql(insert(table).values({name: _p(name) for name in names}), *names)


def _read() -> Select[Any]:
    """All of a conversation but whose it is, and its newest item with the one above it."""
    columns = (column for column in owned.columns if column.name not in ("tenant", "key"))
    names = ("tenant", "key")
    newest = and_(
        *(owned_item.c[name] == owned.c[name] for name in names),
        owned_item.c.conversation == owned.c.id,
        owned_item.c.id == owned.c.head,
    )
    last = (owned_item.c.parent, owned_item.c.wire, owned_item.c.payload)
    return select(*columns, *last).select_from(owned.outerjoin(owned_item, newest))


def _listed(sql: Say[Sql], direction: str, user: bool, after: bool) -> Sql:
    """tenant, key, (end user), (tenant, key and id of the one that was last), how many."""
    place = row_of(owned.c.created_at, owned.c.id)
    found = [owned.c.tenant == _p("tenant"), owned.c.key == _p("of_key")]
    names = ["tenant", "of_key"]
    if user:
        found.append(owned.c.end_user == _p("of_user"))
        names.append("of_user")
    if after:
        last = owned.alias("last")
        mine = (last.c.tenant == _p("its_tenant"), last.c.key == _p("its_key"), last.c.id == _p("its_id"))
        bound = select(last.c.created_at, last.c.id).where(*mine).scalar_subquery()
        found.append(place < bound if direction == "newest" else place > bound)
        names += ["its_tenant", "its_key", "its_id"]
    columns = (owned.c.created_at, owned.c.id)
    order = [column.desc() for column in columns] if direction == "newest" else [column.asc() for column in columns]
    return sql(_read().where(*found).order_by(*order).suffix_with(text("LIMIT :most")), *names, "most")


def _describe(sql: Say[Sql]) -> Sql:
    """metadata, now, tenant, key, id."""
    changing = update_of(owned).where(_of(owned)).values(metadata=_p("said"), last_used=_p("now"))
    return sql(changing, "said", "now", *_OWNER)


def _move(sql: Say[Sql]) -> Sql:
    """end user, head, version, run, its end, stopping, now, tenant, key, id."""
    names = ("end_user", "head", "version", "run", "run_until", "stopping", "last_used")
    changing = update_of(owned).where(_of(owned)).values({name: _p(f"new_{name}") for name in names})
    return sql(changing, *(f"new_{name}" for name in names), *_OWNER)


def _renew(sql: Say[Sql]) -> Sql:
    """its end, tenant, key, id, run."""
    mine = (_of(owned), owned.c.run == _p("of_run"))
    return sql(update_of(owned).where(*mine).values(run_until=_p("until")), "until", *_OWNER, "of_run")


def _stop(sql: Say[Sql]) -> Sql:
    """tenant, key, id, now."""
    running = (_of(owned), owned.c.run.is_not(None), owned.c.run_until > _p("now"))
    return sql(update_of(owned).where(*running).values(stopping=text("TRUE")), *_OWNER, "now")


def _items(sql: Say[Sql]) -> Sql:
    """tenant, key, id (of the conversation). All of them, those that a rewind left behind too: to walk up from the head
    in one list is twice as fast as to have the database do it, and rewinds are rare."""
    columns = (owned_item.c.id, owned_item.c.parent, owned_item.c.wire, owned_item.c.payload)
    return sql(select(*columns).where(_of(owned_item)), *_OWNER)


def _interjected(sql: Say[Sql]) -> Sql:
    """tenant, key, id, run."""
    mine = (_of(interjection), interjection.c.run == _p("of_run"))
    asked = select(interjection.c.place, interjection.c.wire, interjection.c.payload).where(*mine)
    return sql(asked.order_by(interjection.c.place), *_OWNER, "of_run")


def _old(sql: Say[Sql]) -> Sql:
    """tenant, before, before again, how many. (key, id) of those that were not used since; a turn that runs uses."""
    idle = or_(owned.c.run.is_(None), owned.c.run_until < _p("before_too"))
    going = select(owned.c.key, owned.c.id).where(
        owned.c.tenant == _p("tenant"), owned.c.last_used < _p("before"), idle
    )
    return sql(going.suffix_with(text("LIMIT :most")), "tenant", "before", "before_too", "most")
