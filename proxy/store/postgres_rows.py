"""Between the house's values and the columns of PostgreSQL's tables.

What belongs here: what a `Remember` writes, as lines for few statements, and what a recall's lines say. What never: a
connection, a clock, or keeping anything between calls. Payloads are those of `rows`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from proxy.core.steps import Anchor, Remember
from proxy.store.rows import LATELY, HiddenRow, encode, hidden_id, readable

TOUCH: Final = "touch "
"""Before the name of a table: the lines mark rows of it as used."""
ORDER: Final = (
    "reply",
    "conversation",
    "compaction",
    "hidden",
    "result",
    "trace",
    *(f"{TOUCH}{name}" for name in ("conversation", "compaction", "hidden")),
)
"""In which lines are written, by every process: two that write the same rows meet in the same order, and neither waits
for the other. A conversation follows the replies that tell whether it is new."""

Line = tuple[Any, ...]


def plain(text: str) -> str:
    """What PostgreSQL's text can hold: what a client sent may have NULs and halves of surrogates in it."""
    if text.isascii() and "\0" not in text:
        return text
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")


def lines(tenant: str, what: Remember, now: float) -> Iterator[tuple[str, Line]]:
    """(what of ORDER, a line for it). The same a second time changes nothing."""
    owner, talk, agent = (tenant, what.scope), what.conversation, plain(what.agent)
    label = None if what.label is None else plain(what.label)
    anchor = None if what.anchor is None else encode(what.anchor)
    if what.reply is not None:
        yield "reply", (*owner, what.reply, talk, anchor, now)
    if what.request is not None and anchor is not None and what.request != what.reply:
        # Under the request too: sent again (a retry, a re-roll, a replay), it is told as it was.
        yield "reply", (*owner, what.request, talk, anchor, now)
    if what.reply is not None or label is not None:
        yield "conversation", (*owner, talk, label, now, now, what.reply)
    yield f"{TOUCH}conversation", used((*owner, talk), now)
    if (notes := what.compaction) is not None:
        yield "compaction", (*owner, notes.digest, notes.id, talk, encode(notes), now)
    if (hidden := what.hidden) is not None:
        place = (hidden.digest, agent, hidden_id(hidden, what.reply))
        theirs = None if hidden.label is None else plain(hidden.label)
        yield "hidden", (*owner, *place, what.reply, theirs, talk, hidden.payload, now)
    for stored in what.results:
        yield "result", (*owner, plain(stored.reference), talk, stored.text.encode("utf-8", "surrogatepass"), now)
    for trace in what.traces:
        yield "trace", (*owner, talk, what.request or b"", trace.kind, trace.id, agent, now)


def used(keys: Line, now: float) -> Line:
    """The line that marks a row as used, unless it was lately."""
    return (now, *keys, now - LATELY)


class Noted(msgspec.Struct, frozen=True, kw_only=True):
    """A compaction on the path, but for what it says."""

    digest: bytes
    id: str
    used: float


class Found(msgspec.Struct, kw_only=True):
    """What a recall found. `replies` is (conversation, its label, last used, anchor) by digest; `compactions` are those
    on the path; `labelled` is the conversation of the label."""

    replies: dict[bytes, tuple[str, str | None, float | None, bytes | None]] = {}
    compactions: list[Noted] = []
    hidden: list[HiddenRow] = []
    labelled: str | None = None

    def take(self, rows: Sequence[Sequence[Any]]) -> None:
        for kind, digest, words, label, at, one, two, three in rows:
            if kind == "reply":
                self.replies[digest] = (words, label, at, one)
            elif kind == "compaction":
                self.compactions.append(Noted(digest=digest, id=words, used=at))
            elif kind == "hidden":
                self.hidden.append(HiddenRow(digest=digest, id=one, reply=two, label=label, payload=three))
            else:
                self.labelled = words

    def anchor(self, path: Sequence[bytes]) -> Anchor | None:
        """Of the longest known prefix that has one this version understands."""
        for digest in path:
            found = self.replies.get(digest)
            if found is not None and found[3] is not None and (anchor := readable(found[3], Anchor)) is not None:
                return anchor
        return None

    def conversation(self, path: Sequence[bytes]) -> tuple[str, str | None, float | None] | None:
        """(conversation, label, last used) of the longest known prefix."""
        found = next((self.replies[digest] for digest in path if digest in self.replies), None)
        return None if found is None else found[:3]


def nearest(found: Found, path: Sequence[bytes], most: int) -> list[Noted]:
    """Of the compactions found those that reach furthest, at most `most`."""
    place: Mapping[bytes, int] = {digest: number for number, digest in enumerate(path)}
    return sorted(found.compactions, key=lambda noted: (place[noted.digest], noted.id))[:most]
