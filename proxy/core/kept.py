"""What leaves a prompt for good and is still to be had: whole results, cut requests, and where things were named.

Notes cannot list everything; what they leave out stands behind a reference. One compaction keeps one *page*: a text
that begins with the references of those before it and lists, turn by turn, the results by tool (long ones by a
reference of their own, as facts in a narrative cite them), the requests that are not whole in the notes, and those
lines of the model that name something. So notes carry a handful of references however long the conversation grows,
and each text is stored once: a page holds what its compaction covers for the first time, and no request that is still
told whole.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Final

from proxy.core.chain import canonical_text
from proxy.core.conversation import SYSTEM, Message
from proxy.core.groups import turns
from proxy.core.identifiers import identifiers
from proxy.core.notes import Compaction
from proxy.core.past import Chain
from proxy.core.quoting import LEAST_CITED
from proxy.core.steps import Stored

PAGES: Final = 64
"""References of pages that stored notes hold, and that each page begins with: any of them is two steps away, older ones
a few more. Of these a prompt shows the newest (`render`)."""
BEFORE: Final = "What was kept before this, the newest first: "
"""The beginning of a page."""
_PAGE: Final = 60_000
"""Characters of a page; more are several."""
_REQUEST: Final = 2_000
"""Characters of a request that stands on the page itself; longer ones are kept apart."""
_LINE: Final = 400
"""Characters of a line that is kept because it names something; of longer ones the sentences that do."""
_SENTENCE: Final = re.compile(r"(?<=[.!?])[ \t]+|(?<=[。！？])")

Refer = Callable[[str], str]
Redact = Callable[[str], str]


def kept(
    messages: tuple[Message, ...],
    chain: Chain,
    made: Compaction,
    before: Compaction | None,
    refer: Refer,
    redact: Redact = str,
) -> tuple[tuple[str, ...], tuple[Stored, ...]]:
    """The references that the notes of `made` should carry, newest first, and what must be stored before they do.

    `before` is the compaction whose pages `made` goes on from (None: the first). `refer` names a whole text,
    `redact` takes secrets out of what is stored, of each text whole: a part of a secret looks like anything.
    """
    apart: dict[str, Stored] = {}
    lines = tuple(_lines(messages, chain, made, before, refer, apart, redact))
    known = before.notes.kept if before is not None else ()
    for text in _pages(lines):
        page = (f"{BEFORE}{', '.join(known)}\n" if known else "") + text
        reference = refer(page)
        apart.setdefault(reference, Stored(reference=reference, text=page))
        known = (reference, *known)[:PAGES]
    return known, tuple(apart.values())


def _lines(
    messages: tuple[Message, ...],
    chain: Chain,
    made: Compaction,
    before: Compaction | None,
    refer: Refer,
    apart: dict[str, Stored],
    redact: Redact,
) -> Iterator[str]:
    """What `made` covers for the first time or clips, and requests that were whole in the notes before and no longer
    are."""
    cut, clips = chain.behind(made.covers), {counted for counted, _ in made.clips}
    fresh = chain.behind(before.covers) if before is not None else 0
    whole = _whole(made)
    were = _whole(before) if before is not None else frozenset()
    names: dict[str, str] = {}
    numbers = _turns(messages)
    for index, item in enumerate(messages):
        names.update({call.id: call.name for call in item.calls})
        if item.role in SYSTEM or (index >= cut and chain.counted[index] not in clips):
            continue
        turn, text = numbers[index], item.text
        if item.by_user:
            words = canonical_text(redact(text))
            if words and words not in whole and (index >= fresh or words in were):
                told = words if len(words) <= _REQUEST else _apart(words, refer, apart, str)
                yield f"[turn {turn}, the user] {told}"
        elif index >= fresh and item.results:
            for result in item.results:
                if result.text.strip():
                    whole_text = len(result.text) >= LEAST_CITED
                    told = _apart(result.text, refer, apart, redact) if whole_text else redact(result.text)
                    yield f"[turn {turn}, {names.get(result.call_id) or 'a tool'}] {told}"
        elif index >= fresh:
            yield from (f"[turn {turn}, the model] {line}" for line in _naming(redact(text)))


def _whole(made: Compaction) -> frozenset[str]:
    return frozenset(canonical_text(pin.text) for pin in made.notes.pins if not pin.cut)


def _turns(messages: tuple[Message, ...]) -> list[int]:
    numbers = [1] * len(messages)
    for number, turn in enumerate(turns(messages), 1):
        numbers[turn.first : turn.last + 1] = [number] * (turn.last + 1 - turn.first)
    return numbers


def _apart(text: str, refer: Refer, apart: dict[str, Stored], redact: Redact) -> str:
    """The reference of `text`, as facts cite it; what is stored under it has its secrets taken out."""
    reference = refer(text)
    if reference not in apart:
        apart[reference] = Stored(reference=reference, text=redact(text))
    return reference


def _naming(text: str) -> Iterator[str]:
    """The lines of `text` that name something, each once; of a long line the sentences."""
    for line in dict.fromkeys(text.splitlines()):
        for piece in (line,) if len(line) <= _LINE else _SENTENCE.split(line):
            for part in (piece,) if len(piece) <= _LINE else textwrap.wrap(piece, _LINE):
                if next(identifiers(part), None) is not None:
                    yield part.strip()


def _pages(lines: tuple[str, ...]) -> Iterator[str]:
    page: list[str] = []
    size = 0
    for line in lines:
        if page and size + len(line) > _PAGE:
            yield "\n".join(page)
            page, size = [], 0
        page.append(line)
        size += len(line) + 1
    if page:
        yield "\n".join(page)
