"""Between the house's values and the columns of the tables, and the statements that belong together.

What belongs here: encoding, decoding, and the two compound operations (reading what is known of digests, writing what
a call taught us), as functions of a connection inside somebody else's transaction. What never: a transaction, a thread,
a clock, or keeping anything between calls.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from sqlite3 import Connection
from typing import Any, TypeVar

import msgspec

from proxy.core.notes import Compaction
from proxy.core.quota import Amount, Quota
from proxy.core.stack import Trace
from proxy.core.steps import Anchor, Hidden, Recall, Remember
from proxy.core.usage import UsageRow
from proxy.store import KeyRow, Standing, TraceRow
from proxy.store.statements import LISTED, SIZES, Statements

T = TypeVar("T")

REACH = 16
"""Compactions of a branch that a call is told of: those that reach furthest. Older ones wait for a rewind."""

LATELY = 60.0
"""Seconds within which a row is not marked as used again."""

_LARGEST = 1 << 50
"""More tokens, or nano-dollars, than this is a provider's nonsense; a sum over many rows must not overflow."""

_DAY = 86_400


class Known(msgspec.Struct, kw_only=True, gc=False):
    """What is stored at one shown prefix. `touched` is when its rows were last marked as used, `traced` the traces that
    this process wrote there. Compactions are kept as they are stored, and read when they are asked for: a long branch
    has hundreds, of which the last few are of use."""

    conversation: str | None = None
    anchor: Anchor | None = None
    payloads: tuple[bytes, ...] = ()
    hidden: bool = False
    size: int = 0
    touched: float = 0.0
    traced: tuple[Trace, ...] = ()
    read: tuple[Compaction, ...] | None = None

    def compactions(self) -> tuple[Compaction, ...]:
        """Those that this version understands."""
        if self.read is None:
            found = (readable(payload, Compaction) for payload in self.payloads)
            self.read = tuple(each for each in found if each is not None)
        return self.read


# -- values ----------------------------------------------------------------------------------------------------------


def encode(value: object) -> bytes:
    """msgspec JSON. Text with lone surrogates, which UTF-8 cannot hold, is written with escapes."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value)).encode("ascii")


def decode(payload: bytes, type: type[T]) -> T:
    try:
        return msgspec.json.decode(payload, type=type)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        return msgspec.convert(json.loads(payload), type)


def readable(payload: bytes, type: type[T]) -> T | None:
    """`decode`, or None where another version wrote what this one does not understand: it is made again then."""
    try:
        return decode(payload, type)
    except ValueError:
        return None


def usage_values(row: UsageRow, careful: bool = False) -> tuple[Any, ...]:
    """The columns of a usage row. `careful` also replaces what no database takes (a row must never be lost to it)."""
    fields = msgspec.structs.astuple(row)
    sizes = row.input | row.output | row.cached | row.cache_write | row.reasoning
    sizes |= (row.cost or 0) | (row.projected or 0)
    if careful or sizes >> _LARGEST.bit_length() - 1:  # one of them is too large, or below zero
        fields = tuple(_storable(value) for value in fields)
    return (*fields, int(row.opened_at // _DAY))


def _storable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8").replace("\0", "\N{REPLACEMENT CHARACTER}")
    if isinstance(value, int) and not isinstance(value, bool):
        return max(-_LARGEST, min(_LARGEST, value))
    return value


# -- reading ---------------------------------------------------------------------------------------------------------


def _batches(digests: Sequence[bytes]) -> Iterator[tuple[int, tuple[bytes, ...]]]:
    """(which of SIZES, exactly so many digests): the last one repeated where too few are left."""
    start = 0
    while start < len(digests):
        left = len(digests) - start
        which = next((place for place, size in enumerate(SIZES) if size >= left), len(SIZES) - 1)
        some = tuple(digests[start : start + SIZES[which]])
        yield which, some + (some[-1],) * (SIZES[which] - len(some))
        start += SIZES[which]


def known_at(
    connection: Connection, sql: Statements, tenant: str, scope: bytes, digests: Sequence[bytes]
) -> dict[bytes, Known]:
    """What is stored at each of `digests`; those where nothing is are left out."""
    found: dict[bytes, Known] = {}
    for which, some in _batches(digests):
        for digest, conversation, anchor in connection.execute(sql.replies[which], (tenant, scope, *some)):
            known = found.setdefault(digest, Known())
            known.conversation = conversation
            if anchor is not None:
                known.anchor = readable(anchor, Anchor)
    for digest, payloads in _compactions(connection, sql, tenant, scope, digests).items():
        known = found.setdefault(digest, Known())
        known.payloads = tuple(payloads)
        known.size = sum(map(len, payloads))
    for digest in _hidden_at(connection, sql, tenant, scope, digests):
        found.setdefault(digest, Known()).hidden = True
    return found


def _compactions(
    connection: Connection, sql: Statements, tenant: str, scope: bytes, digests: Sequence[bytes]
) -> dict[bytes, list[bytes]]:
    # Rows are counted, not digests: several compactions may end at one, and a list that was cut off knows only some.
    rows = connection.execute(sql.compactions_in_scope, (tenant, scope)).fetchall()
    listed = {row[0] for row in rows}
    wanted = digests if len(rows) > LISTED else [digest for digest in digests if digest in listed]
    found: dict[bytes, dict[bytes, None]] = {}
    for which, some in _batches(wanted):
        for digest, payload in connection.execute(sql.compactions[which], (tenant, scope, *some)):
            found.setdefault(digest, {})[payload] = None
    return {digest: list(payloads) for digest, payloads in found.items()}


def _hidden_at(
    connection: Connection, sql: Statements, tenant: str, scope: bytes, digests: Sequence[bytes]
) -> set[bytes]:
    """Those of `digests` under which hidden state is kept, of any agent."""
    listed = connection.execute(sql.hidden_in_scope, (tenant, scope)).fetchall()
    if len(listed) > LISTED:
        listed = []
        for which, some in _batches(digests):
            listed += connection.execute(sql.hidden_at[which], (tenant, scope, *some, *some)).fetchall()
    return {digest for row in listed for digest in row if digest is not None} & set(digests)


class HiddenRow(msgspec.Struct, frozen=True, kw_only=True):
    digest: bytes
    id: bytes
    reply: bytes | None
    label: str | None
    payload: bytes


def hidden_at(
    connection: Connection, sql: Statements, tenant: str, ask: Recall, digests: Iterable[bytes]
) -> tuple[HiddenRow, ...]:
    """The hidden state of this agent that belongs behind one of `digests`."""
    rows: list[HiddenRow] = []
    for digest in digests:
        for values in connection.execute(sql.hidden, (tenant, ask.scope, ask.agent, digest)):
            rows.append(HiddenRow(**dict(zip(HiddenRow.__struct_fields__, values, strict=True))))
    return tuple(rows)


def choose(rows: tuple[HiddenRow, ...], label: str | None, path: Collection[bytes]) -> tuple[HiddenRow, ...]:
    """Which hidden state is this history's: at most one for a shown prefix.

    A stated label takes only its own. A row whose reply the client sends back goes before one whose reply it altered.
    Where two different ones are left nothing decides, and the shown form is told (DESIGN 2).
    """
    chosen: list[HiddenRow] = []
    for digest in dict.fromkeys(row.digest for row in rows):
        here = [row for row in rows if row.digest == digest and label in (None, row.label)]
        here = [row for row in here if row.reply in path] or here
        if len({row.payload for row in here}) == 1:
            chosen.append(here[0])
    return tuple(chosen)


def told(row: HiddenRow) -> Hidden:
    return Hidden(digest=row.digest, label=row.label, payload=row.payload)


def labelled(connection: Connection, sql: Statements, tenant: str, scope: bytes, label: str) -> str | None:
    """The conversation that a label stands for: its first."""
    row = connection.execute(sql.conversation_of_label, (tenant, scope, label)).fetchone()
    return None if row is None else str(row[0])


def label_of(connection: Connection, sql: Statements, tenant: str, scope: bytes, conversation: str) -> str | None:
    row = connection.execute(sql.label_of_conversation, (tenant, scope, conversation)).fetchone()
    return None if row is None or row[0] is None else str(row[0])


def payload_of(connection: Connection, sql: Statements, tenant: str, scope: bytes, reference: str) -> bytes | None:
    row = connection.execute(sql.result, (tenant, scope, reference)).fetchone()
    return None if row is None else bytes(row[0])


def traces(connection: Connection, sql: Statements, tenant: str, scope: bytes, talk: str) -> tuple[TraceRow, ...]:
    found = connection.execute(sql.traces, (tenant, scope, talk)).fetchall()
    return tuple(TraceRow(kind=kind, skill=skill, agent=agent, at=at) for kind, skill, agent, at in found)


def keys(connection: Connection, sql: Statements) -> tuple[KeyRow, ...]:
    return tuple(map(key, connection.execute(sql.keys)))


def key(values: Sequence[Any]) -> KeyRow:
    """A key from the columns of its table, in their order."""
    tenant, id, digest, created_at, revoked_at, models = values
    return KeyRow(
        tenant=tenant,
        id=id,
        digest=digest,
        created_at=created_at,
        revoked_at=revoked_at,
        models=decode(models, tuple[str, ...]),
    )


def standing(values: Sequence[Any]) -> Standing:
    tenant, key, quota, used = values
    return Standing(tenant=tenant, key=key, quota=readable(quota, Quota) or Quota(), last_used=used)


def spent(found: Iterable[Sequence[Any]]) -> dict[tuple[str, str], Amount]:
    # PostgreSQL's sums are decimals.
    return {(tenant, key): Amount(*map(int, figures)) for tenant, key, *figures in found}


# -- writing ---------------------------------------------------------------------------------------------------------


def remember(connection: Connection, sql: Statements, tenant: str, what: Remember, now: float) -> None:
    """Write what a call taught us. The same `what` a second time writes nothing."""
    new = what.reply is not None and _add_reply(connection, sql, tenant, what, what.reply, now)
    if what.request is not None and what.anchor is not None:
        # Under the request too: sent again (a retry, a re-roll, a replay), it is told as it was.
        _add_reply(connection, sql, tenant, what, what.request, now)
    if new or what.label is not None:
        talk = (tenant, what.scope, what.conversation, what.label, now, now)
        connection.execute(sql.add["conversation"], talk)
    touch(connection, sql, tenant, what.scope, "conversation", (what.conversation,), now)
    if what.compaction is not None:
        keys = (what.compaction.digest, what.compaction.id)
        _add(connection, sql, tenant, what, "compaction", keys, (what.conversation, encode(what.compaction)), now)
    if what.hidden is not None:
        place = (what.hidden.digest, what.agent, hidden_id(what.hidden, what.reply))
        values = (what.reply, what.hidden.label, what.conversation, what.hidden.payload)
        _add(connection, sql, tenant, what, "hidden", place, values, now)
    for stored in what.results:
        # Not JSON: a text is bytes already, and with lone surrogates it is still this text.
        text = stored.text.encode("utf-8", "surrogatepass")
        _add(connection, sql, tenant, what, "result", (stored.reference,), (what.conversation, text), now)
    for trace in what.traces:
        asked = (what.conversation, what.request or b"", trace.kind, trace.id)
        connection.execute(sql.add["trace"], (tenant, what.scope, *asked, what.agent, now))


def _add_reply(connection: Connection, sql: Statements, tenant: str, what: Remember, digest: bytes, now: float) -> bool:
    anchor = None if what.anchor is None else encode(what.anchor)
    if connection.execute(sql.add["reply"], (tenant, what.scope, digest, what.conversation, anchor, now)).rowcount > 0:
        return True
    if anchor is not None:
        connection.execute(sql.move_anchor, (anchor, tenant, what.scope, digest, anchor))
    return False


def _add(
    connection: Connection,
    sql: Statements,
    tenant: str,
    what: Remember,
    table: str,
    keys: tuple[object, ...],
    values: tuple[object, ...],
    now: float,
) -> None:
    added = connection.execute(sql.add[table], (tenant, what.scope, *keys, *values, now))
    if added.rowcount <= 0:
        touch(connection, sql, tenant, what.scope, table, keys, now)


def touch(
    connection: Connection,
    sql: Statements,
    tenant: str,
    scope: bytes,
    table: str,
    keys: tuple[object, ...],
    now: float,
) -> None:
    """Mark a row as used, unless it was lately."""
    connection.execute(sql.touch[table], (now, tenant, scope, *keys, now - LATELY))


def hidden_id(hidden: Hidden, reply: bytes | None) -> bytes:
    """What tells two answers to one shown prefix apart. Lengths go first, so that no two values run together."""
    digest = hashlib.blake2b(digest_size=16)
    for part in (
        reply,
        None if hidden.label is None else hidden.label.encode("utf-8", "surrogatepass"),
        hidden.payload,
    ):
        digest.update(b"-" if part is None else len(part).to_bytes(8, "big") + part)
    return digest.digest()


def written(what: Remember) -> tuple[bytes, ...]:
    """The shown prefixes at which `remember` may change what is known."""
    places: dict[bytes | None, None] = {what.reply: None}
    if what.anchor is not None:
        places[what.request] = None
    if what.compaction is not None:
        places[what.compaction.digest] = None
    if what.hidden is not None:
        places[what.hidden.digest] = None
    return tuple([place for place in places if place is not None])


def left(before: Mapping[bytes, Known | None], what: Remember, now: float) -> dict[bytes, Known] | None:
    """What `remember` will leave at the prefixes whose state is `before`; equal to it where nothing would be written.

    None where only the database can say: a label, compactions, hidden state.
    """
    if what.label is not None or what.compaction is not None or what.hidden is not None or what.results:
        return None
    after: dict[bytes, Known] = {}
    for place, known in before.items():
        traces = what.traces if place == what.request else ()
        if known is None:
            after[place] = Known(conversation=what.conversation, anchor=what.anchor, touched=now, traced=traces)
            continue
        used = known.conversation == what.conversation and now - known.touched < LATELY
        after[place] = msgspec.structs.replace(
            known,
            conversation=known.conversation or what.conversation,
            anchor=known.anchor if what.anchor is None else what.anchor,
            touched=known.touched if used else now,
            traced=traces or known.traced,
        )
    return after
