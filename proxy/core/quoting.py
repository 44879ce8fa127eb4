"""A stretch of history as quoted data: who said what in which turn, cut down until it fits, split where it does not.

For the eyes of a summariser only. Each entry has a head in our words and a body of others': results name their tool and
say that they are untrusted, media are placeholders, reasoning and system messages are left out. Bodies of results go
first (head and tail, then one line), then calls and long texts, and every message keeps at least its head: what was
summarised is what was covered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from proxy.core.chain import canonical_arguments
from proxy.core.conversation import (
    SYSTEM,
    Approval,
    Block,
    Clarification,
    Media,
    Message,
    Text,
    ToolCall,
    ToolResult,
)
from proxy.core.fence import defused, unfenced
from proxy.core.groups import groups
from proxy.core.measure import estimate
from proxy.core.render import clipped

Redact = Callable[[str], str]
Refer = Callable[[str], str]

_SPACE: Final = "a" * 8
"""Stands for a mark while sizes are worked out."""
LEAST_CITED: Final = 200
"""Characters of a result below which it needs no reference: a fact holds all of it."""

# Most characters of a result, of a call's arguments and of a text; None: all of it. In the order they are tried.
_CUTS: Final[tuple[tuple[int | None, int | None, int | None], ...]] = (
    (None, None, None),
    (4_000, None, None),
    (1_200, None, None),
    (400, 2_000, None),
    (0, 400, 6_000),
)
_HARDER: Final[tuple[tuple[int | None, int | None, int | None], ...]] = ((0, 160, 2_000), (0, 60, 600), (0, 0, 160))
_FEW_PARTS: Final = 8
"""More parts than this are worth cutting texts for: each is a call of its own."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """What one block said. `head` follows the mark and the turn; `kind` decides what is cut first."""

    turn: int
    head: str
    text: str
    kind: int
    reference: str = ""

    def written(self, mark: str) -> str:
        cited = f", reference {self.reference}" if self.reference else ""
        return f"[{mark} turn {self.turn}, {self.head}{cited}]\n{self.text}"


RESULT, CALL, SAID = range(3)

Part = tuple[Entry, ...]
"""Entries that are summarised in one call."""


def quote(
    messages: tuple[Message, ...],
    start: int,
    stop: int,
    *,
    skip: frozenset[int] = frozenset(),
    refer: Refer | None = None,
    redact: Redact = str,
) -> tuple[Part, ...]:
    """The entries of messages `start` to `stop`-1, group by group, whole and still as they were said (`parts` makes
    them harmless). Turns are counted from the first message; those in `skip` are told as nothing and make no turn.
    `refer` names a whole result; `redact` takes secrets out."""
    turns = _turns(messages, skip)
    found: list[Part] = []
    for group in groups(messages):
        entries: list[Entry] = []
        names: dict[str, str] = {}
        for index in range(max(group.first, start), min(group.last, stop - 1) + 1):
            item = messages[index]
            names.update({call.id: call.name for call in item.calls})
            if index not in skip and item.role not in SYSTEM:
                entries.extend(_entries(item, turns[index], names, refer, redact))
        if entries:
            found.append(tuple(entries))
    return tuple(found)


def parts(quoted: tuple[Part, ...], most_tokens: int) -> tuple[Part, ...]:
    """`quoted`, made harmless, in as few parts as `most_tokens` (estimated) allow: in one with results cut as little as
    it takes, else group by group in several."""
    packed: list[Part] = []
    for cut in _CUTS:
        entries = tuple(_cut(entry, cut) for group in quoted for entry in group)
        # Most of a long history goes unread: only what fits is worth defusing, and then must fit still.
        if size(entries) <= most_tokens and size(entries := _defused(entries)) <= most_tokens:
            return (entries,) if entries else ()
    for cut in (_CUTS[-1], *_HARDER):
        packed = _packed([_defused(tuple(_cut(entry, cut) for entry in group)) for group in quoted], most_tokens)
        if len(packed) <= _FEW_PARTS:
            break
    return tuple(packed)


def written(part: Part, mark: str) -> str:
    """`part` as text; each head begins with `mark`, which nothing in a body holds."""
    return "\n\n".join(entry.written(mark) for entry in part)


def size(part: Part) -> int:
    """Estimated tokens of a part as it will be written."""
    return sum(estimate(entry.written(_SPACE)) + 1 for entry in part)


def _turns(messages: tuple[Message, ...], skip: frozenset[int]) -> list[int]:
    """The turn that each message stands in, from 1; what comes before the first user message is of turn 1."""
    numbers: list[int] = []
    turn, before = 0, ""
    for index, item in enumerate(messages):
        if index not in skip and item.role not in SYSTEM:
            turn += item.role == "user" and before != "user"
            before = "user" if item.answer else item.role
        numbers.append(max(turn, 1))
    return numbers


def _entries(item: Message, turn: int, names: dict[str, str], refer: Refer | None, redact: Redact) -> list[Entry]:
    found: list[Entry] = []
    for block in item.blocks:
        head, kind, text, media = _told(block, item, names)
        placeholders = "".join(f"\n[{_named(each)}]" for each in media)
        body = (redact(text) + placeholders).strip()
        if head and (body or kind != SAID):
            cited = refer is not None and kind == RESULT and len(text) >= LEAST_CITED
            reference = refer(text) if refer is not None and cited else ""
            found.append(Entry(turn=turn, head=head, text=body, kind=kind, reference=reference))
    return found


def _told(block: Block, item: Message, names: dict[str, str]) -> tuple[str, int, str, tuple[Media, ...]]:
    """Head, kind, text and media of a block; an empty head where nothing is told of it."""
    if type(block) is Text:
        return "the user" if item.role == "user" else "the model", SAID, block.text, block.media
    if type(block) is ToolCall:
        return f"the model calls {_name(block.name)}", CALL, canonical_arguments(block.arguments), ()
    if type(block) is ToolResult and item.answer:
        return "the user", SAID, block.text, block.media
    if type(block) is ToolResult:
        name = _name(names.get(block.call_id, item.name or ""))
        return f"result of {name}: text from a tool, untrusted", RESULT, block.text, block.media
    if type(block) is Clarification:
        return "the model asks the user", SAID, "\n".join((block.question, *block.options)), ()
    if type(block) is Approval:
        return "the model asks for approval", SAID, f"{block.action}\n{block.reason}", ()
    return "", SAID, "", ()


def _name(name: str) -> str:
    """The name of a tool, which a client or a model chose, inside one of our heads."""
    return unfenced("".join(each if each.isalnum() or each in "_-.:/" else "_" for each in name[:64])) or "a tool"


def _named(media: Media) -> str:
    pixels = f", {media.width}x{media.height} pixels" if media.width and media.height else ""
    return f"{media.kind}{pixels}, not shown here"


def _cut(entry: Entry, cut: tuple[int | None, int | None, int | None]) -> Entry:
    most = cut[entry.kind]
    if most is None or len(entry.text) <= max(most, 40):
        return entry
    text = clipped(entry.text, most) if most else f"({len(entry.text)} characters, left out here)"
    return msgspec.structs.replace(entry, text=text) if len(text) < len(entry.text) else entry


def _defused(part: Part) -> Part:
    """Done last: a cut makes new beginnings of lines."""
    return tuple(msgspec.structs.replace(entry, text=defused(entry.text)) for entry in part)


def _packed(groups: list[Part], most_tokens: int) -> list[Part]:
    """Groups joined into parts while they fit; a group that is too long alone is cut harder."""
    packed: list[Part] = []
    left = 0
    for group in groups:
        group = _squeezed(group, most_tokens)
        need = size(group)
        if packed and need <= left:
            packed[-1] += group
        else:
            packed.append(group)
            left = most_tokens
        left -= need
    return packed


def _squeezed(group: Part, most_tokens: int) -> Part:
    for cut in _HARDER:
        if size(group) <= most_tokens:
            return group
        group = _defused(tuple(_cut(entry, cut) for entry in group))
    while len(group) > 1 and size(group) > most_tokens:
        # Hundreds of calls at once: heads alone are too many. The first and the last ones stand for all.
        middle = len(group) // 2
        entry = group[middle]
        gone = Entry(turn=entry.turn, head="calls and results left out here", text="(...)", kind=SAID)
        group = (*group[: middle // 2], gone, *group[middle + (middle + 1) // 2 :])
    return group
