"""What notes get once their plan stands: rules of the user that stand nowhere else, and what was kept; and that nothing
in them can pass for more than it is.

Both are small, bounded and of a few lines; they come on top of the target. Only where the window has no room for that
does the rest make way: a rule that is gone is broken, whatever else is remembered, and what else is gone is still to be
had.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from proxy.core import kept, rules
from proxy.core.compaction import named_by_content
from proxy.core.conversation import Message
from proxy.core.fence import sealed
from proxy.core.groups import ended, opening, turns
from proxy.core.measure import Room, estimate
from proxy.core.narrative import fitted, read, rendered
from proxy.core.notes import Compaction, Notes
from proxy.core.past import Chain
from proxy.core.render import kept_text, notes_text, rules_text
from proxy.core.steps import Stored

_RULES: Final = 0.12
"""Most of what layers and tools leave of the target that rules take."""
_LEAST_RULES: Final = 20
"""But one part in so many of the window in any case."""
_LOOKED_THROUGH: Final = 1_000_000
"""Characters of the user's words, from the newest back, that are read for rules: a quarter of a second of work."""
_LEAST_NARRATIVE: Final = 200
"""Estimated tokens of a narrative that does not make way for rules."""


def completed(
    made: Compaction,
    messages: tuple[Message, ...],
    chain: Chain,
    room: Room,
    *,
    fixed: int,
    scale: float,
    before: Compaction | None,
    refer: Callable[[str], str],
    redact: Callable[[str], str] = str,
) -> tuple[Compaction, tuple[Stored, ...]]:
    """`made` with rules and references, and the texts that these stand for.

    `fixed` are the tokens of layers and tools, `scale` turns our estimate into the provider's; `before` is the known
    compaction whose pages go on (`kept`). Where room is short others make way (`_relieved`); what finds none all the
    same is left out, and then nothing is stored for it.
    """
    if not made.covers and not made.notes.ledger:
        return made, ()  # nothing is told but clips (`compaction`)
    most = min(room.fit if made.after <= room.fit else room.most, made.before - 1)
    safe = msgspec.structs.replace(made, notes=_harmless(made.notes))
    references, stored = kept.kept(messages, chain, made, before, refer, redact)
    price = estimate(kept_text(references)) + 1 if references else 0
    asked = _requests(messages, chain, made, before)
    spare = int(max(_RULES * max(room.target - fixed, 0), room.window / _LEAST_RULES) / scale)
    found = rules.standing(asked, spare, notes_text(made))
    need = price + (estimate(rules_text(found)) + 1 if found else 0)
    left = int((most - made.after) / scale)
    while (over := need + _grown(safe, made) - left) > 0:
        lean = _relieved(safe.notes, over)
        if lean == safe.notes:
            break
        safe = msgspec.structs.replace(safe, notes=lean)
    if over > 0:
        left -= _grown(safe, made)
        if price > left:
            references, stored, price = (), (), 0
        found = rules.standing(asked, min(spare, left - price - estimate(rules_text(())) - 1), notes_text(safe))
    found = tuple(msgspec.structs.replace(rule, text=redact(rule.text)) for rule in found)
    told = msgspec.structs.replace(safe, notes=msgspec.structs.replace(safe.notes, rules=found, kept=references))
    if told == made:
        return made, ()
    told = msgspec.structs.replace(told, after=made.after + round(_grown(told, made) * scale))
    return named_by_content(told), stored


def _harmless(notes: Notes) -> Notes:
    """`notes` in which no words of the user pass for a line of ours. That nobody closes a fence of ours is seen to
    where they are rendered; the narrative is sealed already (`gate`)."""
    pins = tuple(msgspec.structs.replace(pin, text=sealed(pin.text)) for pin in notes.pins)
    return msgspec.structs.replace(notes, pins=pins)


def _relieved(notes: Notes, tokens: int) -> Notes:
    """`notes` without about `tokens` of what is still to be had from a page, the oldest first: entries of the ledger;
    then half of a narrative; then requests that were cut already, which are counted from here on."""
    if notes.ledger:
        entries = list(notes.ledger)
        while entries and tokens > 0:
            tokens -= estimate(entries.pop(0).text) + 1
        gone = len(notes.ledger) - len(entries)
        return msgspec.structs.replace(notes, ledger=tuple(entries), unlisted=notes.unlisted + gone)
    size = estimate(notes.narrative)
    if size > _LEAST_NARRATIVE:
        lean = fitted(read(notes.narrative), max(_LEAST_NARRATIVE, size - tokens - 1))
        return msgspec.structs.replace(notes, narrative=rendered(lean))
    cut = next((place for place, pin in enumerate(notes.pins) if pin.cut), None)
    if cut is None:
        return notes
    pins = (*notes.pins[:cut], *notes.pins[cut + 1 :])
    return msgspec.structs.replace(notes, pins=pins, dropped=notes.dropped + 1)


def _grown(told: Compaction, made: Compaction) -> int:
    """By how many estimated tokens the notes of `told` are longer."""
    return estimate(notes_text(told)) - estimate(notes_text(made))


def _requests(
    messages: tuple[Message, ...], chain: Chain, made: Compaction, before: Compaction | None
) -> list[tuple[int, str]]:
    """What the user said in the turns that are covered, by turn; the opening of one that is covered in part stays.
    Beyond so much text nothing old is worth the time, but for the rules that were found in it before."""
    stop = chain.behind(made.covers)
    found: list[tuple[int, str]] = []
    for number, turn in enumerate(turns(messages), 1):
        if turn.first >= stop:
            break
        open_ = set(opening(messages, turn)) if ended(messages, turn) >= stop else set()
        for index in range(turn.first, min(turn.last + 1, stop)):
            if messages[index].by_user and index not in open_:
                found.append((number, messages[index].text))
    left = _LOOKED_THROUGH
    for place in range(len(found) - 1, -1, -1):
        left -= min(len(found[place][1]), rules.LOOKED_AT)
        if left < 0:
            known = before.notes.rules if before is not None else ()
            return [*((rule.turn, rule.text) for rule in known), *found[place + 1 :]]
    return found
