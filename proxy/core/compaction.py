"""When a history no longer fits: what stays, what the notes stand for, and how the two are put together.

Code decides what survives. From the front: system messages untouched; the notes (earlier requests word for word, the
ledger, a model's narrative where there is one); the open request if the cut falls inside its turn; the tail of whole
groups, byte for byte. Any end of a group is a legal cut. A plan that gains nothing is no plan: then None, and nothing
changes. Everything here is a function of its arguments, so equal histories give equal notes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import Final

import msgspec

from proxy.core.chain import message
from proxy.core.conversation import SYSTEM, Message, Text, ToolResult
from proxy.core.groups import ended, newest
from proxy.core.ledger import Ledger, named
from proxy.core.lettered import lettered
from proxy.core.measure import MESSAGE_OVERHEAD, Room, estimate
from proxy.core.notes import Compaction, Notes
from proxy.core.past import Chain
from proxy.core.pauses import asked
from proxy.core.pins import Request, pinned, whole_price
from proxy.core.policy import Policy
from proxy.core.render import notes_text
from proxy.core.tail import History, Tail, choose, clip, cut_at

_FRAME: Final = 110
"""Estimated tokens of the notes' own sentences."""
_PINS: Final = 0.3
"""Most of the notes that pins may take: where room is short, identifiers are worth more than long requests."""
_TURNS: Final = ((3.25, 0.53), (2.1, 0.53))
"""Turns that a compaction leaves room for, as long as the prompt may then be larger than this share of the trigger: at
most one compaction in three turns, or in two."""
_GROUPS: Final = 3
"""Groups that it leaves room for where turns are larger than that, or as many of them as fit."""
_FILLED: Final = 0.68
"""Share of what lies between target and trigger that the ledger fills where what comes next leaves it so much; also the
least where turns are large. Fitted by replay."""
_FULL: Final = 0.82
"""The most of it: where the next group is larger than any room that could be left for it, that call is compacted
anyway. The rest is for what comes on top of the target (`completing`): a prompt above the trigger pauses compaction."""
_AIM: Final = 0.75
"""Most of the trigger that a target may be, or the next call would be compacted again."""
_LOOKED_THROUGH: Final = 2_000_000
"""Estimated tokens, from the newest back, that the ledger is made of: under a second of work, whatever comes."""
_FOLDED: Final = 0.2
"""Of what slid out of memory, the most that the ledger takes."""
_UNNAMED: Final = "cmp_" + "a" * 26


def notes_message(compaction: Compaction) -> Message:
    """The notes as they are told."""
    return message("user", (Text(text=notes_text(compaction)),))


def assemble(
    messages: tuple[Message, ...],
    chain: Chain,
    compaction: Compaction,
    noted: Callable[[Compaction], Message] = notes_message,
) -> tuple[Message, ...]:
    """The told messages: `messages` with what `compaction` covers replaced by its notes, which `noted` writes."""
    limits = dict(compaction.clips)
    told = list(_standing(messages[: _cut(messages, chain, compaction)], compaction.standing))
    if speaks(compaction):
        told.append(noted(compaction))
    kept = remaining(messages, chain, compaction)
    told.extend(clip(messages[index], limits.get(chain.counted[index])) for index in kept)
    return tuple(told)


def remaining(messages: tuple[Message, ...], chain: Chain, compaction: Compaction) -> list[int]:
    """The indices of the messages that are told behind the notes, in order: what opened a turn that the cut parts, and
    all from there on."""
    cut = _cut(messages, chain, compaction)
    return [*(newest(messages[:cut]) if compaction.notes.part else ()), *range(cut, len(messages))]


def _cut(messages: tuple[Message, ...], chain: Chain, compaction: Compaction) -> int:
    # Nothing covered, only clipped: the notes still stand behind the leading system messages, never before them.
    return chain.behind(compaction.covers) or _lead(messages)


def applicable(found: tuple[Compaction, ...], chain: Chain) -> tuple[Compaction, ...]:
    """Those of `found` that belong to this history, the least compacted first."""
    own = [item for item in found if chain.holds(item.digest, item.messages)]
    return tuple(sorted(own, key=lambda item: (item.covers, -item.after, item.id)))


def plan(
    history: History,
    room: Room,
    policy: Policy,
    before: int,
    share: float = 1.0,
    narrative: str = "",
    writer: str = "builtin",
) -> Compaction | None:
    """A compaction of `history` that brings its prompt to about `room.target` x `share` tokens.

    `before` is the projected size of the prompt it would replace. None where nothing can be gained: the parts that
    must stay are too large, or nothing lies before them.
    """
    goal, filled = (int(part * share) for part in _goal(history, room))
    # Where system and tools take most of the target, half of what they leave below the trigger is to be used.
    spare = max(goal - history.fixed, int((room.trigger - history.fixed) * share) // 2, room.window // 16)
    tail = _tail(history, room, policy, spare)
    if tail is None:
        return None
    matter = _Matter(history, tail, narrative)
    for squeeze in (1.0, 0.5, 0.2, 0.0):
        made = _write(matter, policy, _budget(history, tail, room, spare, filled, squeeze))
        notes = MESSAGE_OVERHEAD + estimate(notes_text(made)) if speaks(made) else 0
        after = history.fixed + tail.tokens + history.scaled(notes)
        if after <= (room.fit if tail.tokens + history.fixed <= room.fit else room.most):
            break
    else:
        return None
    if after >= before:
        return None
    made = msgspec.structs.replace(made, before=before, after=after, window=room.window, writer=writer)
    return named_by_content(made)


def ending_at(
    start: int, told: int, history: History, room: Room, policy: Policy, before: int, last: Compaction | None
) -> Compaction:
    """A compaction of everything before message `start`, a boundary between turns, whatever it gains.

    Requests come before all else: the ledger gets a small part of the `told` estimated tokens that it stands for. The
    narrative of `last`, an earlier compaction, goes on, and still stands for what it stood for.
    """
    tail = cut_at(history, start, room.fit)
    matter = _Matter(history, tail, last.notes.narrative if last is not None else "")
    spare = int(max(room.target - history.fixed, room.window // 16) / history.scale)
    pins = min(whole_price(matter.requests), int(policy.pinned_max_share * spare))
    listed = int(min(policy.ledger_max_share * spare, _FOLDED * told))
    made = _write(matter, policy, (_FRAME + estimate(matter.narrative) + pins + listed, spare), pins)
    notes = history.scaled(MESSAGE_OVERHEAD + estimate(notes_text(made)))
    after = history.fixed + tail.tokens + notes
    made = msgspec.structs.replace(made, before=before, after=after, window=room.window)
    if last is not None:
        made = msgspec.structs.replace(made, writer=last.writer, narrated=last.told_to)
    return named_by_content(made)


def _tail(history: History, room: Room, policy: Policy, spare: int) -> Tail | None:
    """The tail that leaves room for the notes' own sentences; where there is none, one that needs no notes may fit."""
    fit, most = room.fit - history.fixed, room.most - history.fixed
    frame = history.scaled(MESSAGE_OVERHEAD + _FRAME)
    return choose(history, policy, spare, fit - frame, most - frame) or choose(history, policy, spare, fit, most)


def speaks(compaction: Compaction) -> bool:
    """Whether the notes are told: where nothing is covered and nothing listed, the clips say all there is to say."""
    return compaction.covers > 0 or bool(compaction.notes.ledger)


def _goal(history: History, room: Room) -> tuple[int, int]:
    """What tail and pins are measured by, and up to what the ledger may fill the prompt.

    The first is the target, or less where the recent turns are so large that the target would be outgrown at once. The
    second is further up: room that nobody uses before the next compaction is lost.
    """
    aim = min(room.target, int(_AIM * room.trigger))
    filled, full = (aim + int(part * (room.trigger - aim)) for part in (_FILLED, _FULL))
    turns = history.turns[-5:-1]
    if turns:
        grown = sum(history.size(turn.first, turn.last) for turn in turns) / len(turns)
        for several, least in _TURNS:
            leaving = int(room.trigger - several * grown)
            if leaving > least * room.trigger:
                return min(aim, leaving), min(filled, leaving)
    groups = history.groups[-9:-1]
    grown = sum(history.size(group.first, group.last) for group in groups) / max(1, len(groups))
    for several in range(_GROUPS, 0, -1):
        leaving = int(room.trigger - several * grown)
        if leaving >= filled:
            return aim, filled if several == _GROUPS else min(leaving, full)
    return aim, full


def _budget(history: History, tail: Tail, room: Room, spare: int, filled: int, squeeze: float) -> tuple[int, int]:
    """Estimated tokens for the notes, and for their pins: what the tail leaves of `spare` or of `filled`; where a large
    tail leaves little, half of the room behind it, and all of it where the next call will be compacted anyway."""
    behind = room.fit - history.fixed - tail.tokens
    left = max(spare, filled - history.fixed) - tail.tokens
    left = max(left, min(behind, spare) // 2)
    if history.fixed + tail.tokens + left > room.trigger:
        left = max(left, min(behind, spare))
    left = min(left, behind)
    return int(max(0, left) * squeeze / history.scale), int(spare / history.scale)


class _Matter:
    """What the notes of one tail can be made of, gathered once."""

    def __init__(self, history: History, tail: Tail, narrative: str) -> None:
        self.history = history
        self.narrative = narrative
        self.tail = tail
        self.turns = tuple(turn for turn in history.turns if ended(history.messages, turn) < tail.start)
        self.requests = tuple(
            Request(turn=number, text=text)
            for number, index in _asked(history, tail)
            if (text := history.redact(_words(history.messages, index)))
        )
        self.ledger = _ledger(history, tail)
        self.told = named(_told_texts(history, tail))


def _asked(history: History, tail: Tail) -> Iterator[tuple[int, int]]:
    """What the user said before `tail`, by turn and message: all but the request that is still open."""
    open_ = history.parted(tail.start)
    for number, turn in enumerate(history.turns, 1):
        for index in range(turn.first, min(turn.last + 1, tail.start)):
            if history.messages[index].by_user and index not in open_:
                yield number, index


def _words(messages: Sequence[Message], index: int) -> str:
    """What the user said in message `index`, media by name: an image alone is a request too. An answer says little
    without what was asked."""
    item = messages[index]
    parts: list[str] = []
    if item.answer:
        parts.append(f"(asked: {asked(messages, index)})")
    for block in item.blocks:
        if type(block) is Text or type(block) is ToolResult:
            parts.extend([block.text.strip()] if block.text.strip() else [])
            parts.extend(f"[{media.kind}]" for media in block.media)
    return "\n".join(parts)


def _write(matter: _Matter, policy: Policy, budget: tuple[int, int], most_pins: int | None = None) -> Compaction:
    left, spare = budget
    left = max(0, left - _FRAME - estimate(matter.narrative))
    history, tail = matter.history, matter.tail
    most_pins = int(min(policy.pinned_max_share * spare, _PINS * left)) if most_pins is None else most_pins
    pins, dropped, used = pinned(matter.requests, most_pins)
    ledger = matter.ledger
    entries, unlisted = ledger.best(left - used, matter.told | named(pin.text for pin in pins))
    notes = Notes(
        turns=len(matter.turns),
        part=bool(history.parted(tail.start)),
        pins=pins,
        dropped=dropped,
        ledger=entries,
        unlisted=unlisted,
        calls=ledger.calls[:12] if left > used + 60 else (),
        narrative=matter.narrative,
    )
    covers = history.chain.counted[tail.start - 1] if tail.start else 0
    reach = max([covers, *(counted for counted, _ in tail.clips)])
    return Compaction(
        id=_UNNAMED,
        digest=history.chain.after[history.chain.behind(reach) - 1] if reach else history.chain.start,
        messages=reach,
        covers=covers,
        notes=notes,
        clips=tail.clips,
        standing=tail.standing,
    )


def _ledger(history: History, tail: Tail) -> Ledger:
    """Sightings in all that is covered, and in what the tail holds only clipped."""
    ledger = Ledger(history.scan)
    turn = 0
    starts = {item.first for item in history.turns}
    clips = {counted for counted, _ in tail.clips}
    oldest = _oldest(history.messages)
    for index, item in enumerate(history.messages):
        turn += index in starts
        if item.role in SYSTEM or index < oldest:
            continue
        if index < tail.start or history.chain.counted[index] in clips:
            ledger.add(item, max(turn, 1))
    return ledger


def _oldest(messages: tuple[Message, ...]) -> int:
    """Index of the oldest message that is looked through: beyond so much text nothing old is worth the time."""
    left = _LOOKED_THROUGH
    for index in range(len(messages) - 1, -1, -1):
        left -= messages[index].tokens
        if left < 0:
            return index + 1
    return 0


def _told_texts(history: History, tail: Tail) -> list[str]:
    """Everything that stands in the prompt beside the notes: what leads it, and the told tail, calls included."""
    limits = dict(tail.clips)
    texts = [item.text for item in history.messages[: history.lead]]
    for index in (*history.parted(tail.start), *range(tail.start, len(history.messages))):
        item = clip(history.messages[index], limits.get(history.chain.counted[index]))
        texts.append(item.text)
        texts.extend(call.arguments for call in item.calls)
    return texts


def _standing(front: tuple[Message, ...], keep: int) -> tuple[Message, ...]:
    """System messages of the covered part: the leading ones all, of the others the newest `keep` different ones."""
    lead = _lead(front)
    inner: dict[bytes, Message] = {}
    for item in reversed(front[lead:]):
        if item.role in SYSTEM and len(inner) < keep:
            inner.setdefault(item.digest, item)
    return front[:lead] + tuple(reversed(inner.values()))


def _lead(messages: tuple[Message, ...]) -> int:
    """How many system messages stand in front."""
    return next((index for index, item in enumerate(messages) if item.role not in SYSTEM), len(messages))


def named_by_content(made: Compaction) -> Compaction:
    """`made` with its id, which is derived from all the rest and changes no size."""
    made = msgspec.structs.replace(made, id=_UNNAMED)
    name = lettered(blake2b(msgspec.json.encode(made), digest_size=13).digest())
    return msgspec.structs.replace(made, id=f"cmp_{name}")
