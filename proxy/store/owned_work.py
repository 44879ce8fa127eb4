"""Conversations that the gateway keeps, as work on a database: what each verb of the contract reads and writes.

What belongs here: each verb, as a generator inside somebody else's transaction, which asks by the name of a statement
(`composing_owned`) and is told what the database answers; so one text serves every database. What never: a connection,
a transaction, a clock, or what a tree decides (`branches`).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from proxy.store import branches, rows
from proxy.store.owned import Begun, Item, Owned

T = TypeVar("T")

FEW = 8
"""Items behind a known path that are read one by one: an answer, and what was said into its turn."""
PURGED = 20
"""Conversations deleted in one transaction, each with all its items: others' work goes in between."""


class Ask(NamedTuple):
    """A statement by its name, and its parameters."""

    name: str
    values: Sequence[object]


class Told(NamedTuple):
    """What it was answered with: the rows it found, and how many it changed."""

    rows: Sequence[Any]
    changed: int

    @property
    def first(self) -> Any:
        return self.rows[0] if self.rows else None


Work = Generator[Ask, Told, T]


class At(NamedTuple):
    """One conversation: the parameters that every statement on it begins or ends with."""

    tenant: str
    key: str
    id: str


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation as it is stored: `owned.run` may be of a turn whose owner is gone since `until`. `above` is the id
    of the item that its newest stands under."""

    owned: Owned
    above: str | None
    until: float | None
    stopping: bool

    def at(self, now: float) -> Owned:
        """As it is now."""
        return self.owned if self.runs(now) else msgspec.structs.replace(self.owned, run=None)

    def runs(self, now: float) -> bool:
        return self.owned.run is not None and self.until is not None and self.until > now


# -- rows --------------------------------------------------------------------------------------------------------------


def _standing(row: Sequence[Any]) -> Standing:
    id, user, said, head, version, run, until, stopping, created, used, above, wire, payload = row
    owned = Owned(
        id=id,
        created_at=created,
        last_used=used,
        end_user=user,
        metadata=rows.decode(said, dict[str, str]),
        head=head,
        last=None if wire is None else _item(wire, payload),
        version=version,
        run=run,
    )
    return Standing(owned=owned, above=above, until=until, stopping=bool(stopping))


def _item(wire: bytes, payload: bytes) -> Item:
    return msgspec.structs.replace(rows.decode(payload, Item), wire=wire)


def _values(item: Item) -> tuple[bytes, bytes]:
    """Its bytes, and what is known of it besides."""
    return item.wire, rows.encode(msgspec.structs.replace(item, wire=b""))


def _put(at: At, last: Item | None, items: Sequence[Item]) -> Work[tuple[Item, ...]]:
    """Store `items` under `last`; they as they are stored."""
    put: list[Item] = []
    for item in branches.placed(last, items):
        last = yield from _put_one(at, last, item)
        put.append(last)
    return tuple(put)


def _put_one(at: At, last: Item | None, item: Item) -> Work[Item]:
    """Store `item` under `last`. One of its id may be there, on a branch that was left: the very same one is the item
    then, another one has its id alone."""
    parent, named, number = None if last is None else last.id, item, 1
    while (yield Ask("add_item", (*at, named.id, parent, *_values(named)))).changed <= 0:
        above, wire, payload = (yield Ask("item", (*at, named.id))).first
        if (above, wire) == (parent, item.wire):
            return _item(wire, payload)
        number += 1
        named = msgspec.structs.replace(item, id=f"{item.id}r{number}")
    return named


def _move(at: At, owned: Owned, until: float | None, now: float) -> Work[Owned]:
    """Store head and run as `owned` has them: the next version of it."""
    moved = msgspec.structs.replace(
        owned, head=None if owned.last is None else owned.last.id, version=owned.version + 1, last_used=now
    )
    values = (moved.end_user, moved.head, moved.version, moved.run, until, False, moved.last_used)
    yield Ask("move", (*values, *at))
    return moved


# -- the verbs ---------------------------------------------------------------------------------------------------------


def find(at: At) -> Work[Standing | None]:
    row = (yield Ask("find", at)).first
    return None if row is None else _standing(row)


def create(at: At, owned: Owned, items: Sequence[Item]) -> Work[Owned]:
    last = (None, *(yield from _put(at, None, items)))[-1]
    made = msgspec.structs.replace(owned, head=None if last is None else last.id, last=last, run=None)
    said = rows.encode(dict(made.metadata))
    standing = (made.end_user, said, made.head, made.version, None, None, False, made.created_at, made.last_used)
    yield Ask("create", (*at, *standing))
    return made


def path(at: At, found: Standing, known: tuple[Item, ...] = ()) -> Work[tuple[Item, ...]]:
    """From the beginning to the head. `known` is a path of it that was told before; what came behind is read alone."""
    last = found.owned.last
    if last is None:
        return ()
    grown = (yield from _grown(at, last, found.above, known)) if known else None
    if grown is not None:
        return grown
    told = yield Ask("items", at)
    tree = {id: (parent, _item(wire, payload)) for id, parent, wire, payload in told.rows}
    return branches.path(tree, last.id) if last.id in tree else ()  # deleted since it was found


def _grown(at: At, last: Item, above: str | None, known: tuple[Item, ...]) -> Work[tuple[Item, ...] | None]:
    """The path to `last`, which stands under `above`, where it leads by the end of `known` a few items before."""
    if last.id == known[-1].id:
        return known
    behind = [last]
    while above != known[-1].id:
        row = (yield Ask("item", (*at, above))).first if above is not None and len(behind) < FEW else None
        if row is None:
            return None
        above, wire, payload = row
        behind.append(_item(wire, payload))
    return (*known, *reversed(behind))


def begin(
    at: At,
    run: str,
    items: Sequence[Item],
    end_user: str | None,
    now: float,
    seconds: float,
    known: tuple[Item, ...] = (),
) -> Work[Begun | Owned | None]:
    found = yield from find(at)
    if found is None or found.runs(now):
        return None if found is None else found.owned
    owned = found.owned
    if owned.run is not None:
        yield Ask("delete.interjection", at)  # left for a turn whose owner is gone
    if owned.end_user is None and end_user is not None and owned.head is None:
        new = (yield Ask("any_item", at)).first is None
        owned = msgspec.structs.replace(owned, end_user=end_user if new else None)
    told = yield from path(at, found, known)
    told += yield from _put(at, owned.last, branches.fresh(told, items))
    owned = msgspec.structs.replace(owned, last=told[-1] if told else None, run=run)
    owned = yield from _move(at, owned, now + seconds, now)
    return Begun(owned=owned, path=told, new=branches.unanswered(told))


def extend(at: At, items: Sequence[Item], now: float) -> Work[Owned | None]:
    found = yield from find(at)
    if found is None or found.runs(now):
        return None if found is None else found.owned
    last = (found.owned.last, *(yield from _put(at, found.owned.last, items)))[-1]
    return (yield from _move(at, msgspec.structs.replace(found.owned, last=last, run=None), None, now))


def renew(at: At, run: str, until: float) -> Work[bool | None]:
    if (yield Ask("renew", (until, *at, run))).changed <= 0:
        return None
    found = yield from find(at)
    return found is not None and found.stopping


def interject(at: At, items: Sequence[Item], now: float) -> Work[bool]:
    found = yield from find(at)
    if found is None or not found.runs(now):
        return False
    run = found.owned.run
    there = (yield Ask("interjected", (*at, run))).rows
    first = there[-1][0] + 1 if there else 0
    known = {_item(wire, payload).id for _, wire, payload in there}
    for place, item in enumerate(items, first):
        if item.id not in known and (yield Ask("item", (*at, item.id))).first is None:
            yield Ask("interject", (*at, run, place, *_values(item)))
    return True


def interjected(at: At, run: str) -> Work[tuple[Item, ...]]:
    found = (yield Ask("interjected", (*at, run))).rows
    if found:
        yield Ask("delete.interjection", at)
    return tuple(_item(wire, payload) for _, wire, payload in found)


def finish(at: At, run: str, items: Sequence[Item], now: float, back: int) -> Work[None]:
    found = yield from find(at)
    if found is None or found.owned.run != run:
        return
    last = found.owned.last
    if back:
        told = yield from path(at, found)
        last = told[-1 - back] if back < len(told) else None
    last = (last, *(yield from _put(at, last, items)))[-1]
    left = yield from interjected(at, run)
    if last is None or not last.paused:
        last = (last, *(yield from _put(at, last, branches.numbered(last, left))))[-1]
    yield from _move(at, msgspec.structs.replace(found.owned, last=last, run=None), None, now)


def rewind(at: At, turns: int, now: float) -> Work[Owned | Literal["busy"] | None]:
    found = yield from find(at)
    if found is None or found.runs(now):
        return None if found is None else "busy"
    last = branches.before((yield from path(at, found)), turns)
    return (yield from _move(at, msgspec.structs.replace(found.owned, last=last, run=None), None, now))


def delete(at: At, now: float) -> Work[bool | Literal["busy"]]:
    found = yield from find(at)
    if found is None or found.runs(now):
        return False if found is None else "busy"
    yield from _remove(at)
    return True


def purge(tenant: str, before: float) -> Work[tuple[int, int]]:
    """Delete some that were last used before `before`: how many, and how many rows went."""
    going = (yield Ask("old", (tenant, before, before, PURGED))).rows
    gone = 0
    for key, id in going:
        gone += yield from _remove(At(tenant, key, id))
    return len(going), gone


def _remove(at: At) -> Work[int]:
    gone = 0
    for name in ("delete.interjection", "delete.owned_item", "delete.owned"):
        gone += (yield Ask(name, at)).changed
    return gone


def described(at: At, metadata: Mapping[str, str], now: float) -> Work[Standing | None]:
    yield Ask("describe", (rows.encode(dict(metadata)), now, *at))
    return (yield from find(at))


def shown(at: At, known: tuple[Item, ...] = ()) -> Work[tuple[Item, ...]]:
    """The path to the head."""
    found = yield from find(at)
    return () if found is None else (yield from path(at, found, known))


def listed(name: str, values: Sequence[object]) -> Work[tuple[Standing, ...]]:
    return tuple(map(_standing, (yield Ask(name, values)).rows))


def stop(at: At, now: float) -> Work[bool]:
    return (yield Ask("stop", (*at, now))).changed > 0
