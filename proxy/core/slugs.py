"""`/refund-policy /tone How do I ...`: the skills that a user selects at the start of a message.

A slug is a slash and lower-case letters, digits or hyphens, followed by white space or the end; several may stand in a
row. The words stay in the message: it is sent on as it was written. `/compact` is the gateway's own command.
"""

from __future__ import annotations

import re
from typing import Final

RESERVED: Final = frozenset(("compact",))
WORDS: Final = 1000
"""Words of a row that are read: nobody writes more, and what is read must not grow with the message."""
LONGEST: Final = 256
"""Characters of a word that are read, its slash among them; a slug has 64."""
_BLANK: Final = re.compile(r"\s*")
_SLUG: Final = re.compile(r"/([a-z0-9-]+)(?!\S)")
_DISGUISED: Final = re.compile(
    r"/(?=[^\s/]*[a-z0-9])(?=[^\s/]*[^\x00-\x7f])"
    "[\\w\u0300-\u036f\u00ad\u200b-\u200f\u2060-\u2064\ufe00-\ufe0f\ufeff\u2010-\u2015\u2212\ufe58\ufe63\uff0d-]+(?!\\S)"
)
"""A word that could be taken for a slug: its letters are of two scripts, one of them only looks like a Latin one, or a
mark that nobody sees is among them, or another dash."""


def selected(text: str) -> tuple[str, ...]:
    """The distinct slugs that `text` begins with, in order. One in disguise is given back as it stands, of one that is
    too long its beginning: nothing has such a name, so it is refused as an unknown one."""
    found: dict[str, None] = {}
    at = _end_of_blank(text, 0)
    for _ in range(WORDS):
        word = text[at : at + LONGEST]
        match = _SLUG.match(word) or _DISGUISED.match(word)
        if match is None or match.group()[1:] in RESERVED:
            break
        found.setdefault(match.group()[1:])
        at = _end_of_blank(text, at + match.end())
    return tuple(found)


def _end_of_blank(text: str, start: int) -> int:
    blank = _BLANK.match(text, start)
    return blank.end() if blank is not None else start
