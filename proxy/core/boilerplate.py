"""What clients put into a user's message that the user did not type: reminders, wrappers, notes of earlier sessions.

Recognised by shape where there is one (a block between tags whose name is compound, as in `<system-reminder>`), else by
what the clients known today open it with (seen on the wire or in recorded sessions, research/real-parts.md 5.3). A
client that is not known keeps its words: they then count as the user's.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

LONGEST: Final = 200_000
"""Characters of a message that are looked at; nobody types more."""
_MOST_TAGS: Final = 200
_OPENING: Final = re.compile(r"<([A-Za-z][A-Za-z0-9]*(?:[-_][A-Za-z0-9_-]{1,40})+)(?:[ \t][^<>\n]{0,400})?>")
_WRAPPERS: Final = re.compile(
    r"</?(?:task|feedback|user_message|user_query|user_input|user-request|userRequest|userPrompt)>", re.IGNORECASE
)
_FILES: Final = re.compile(r"file|attach|document|image|upload|context_?item", re.IGNORECASE)
_IMAGE: Final = re.compile(r"\[Image(?: #\d{1,4}|: source: [^\]\n]{1,400})\]")
_REPLAYED: Final = re.compile(
    r"\s*(?:<conversation-notes\b|This session is being continued from a previous conversation"
    r"|The conversation history before this point was compacted"
    r"|Another language model started to solve this problem"
    r"|\[Request interrupted by user|\^C KeyboardInterrupt|Caveat: The messages below were generated"
    r"|# AGENTS\.md instructions|I interrupted the previous)"
)
"""A whole message of the client's, though it stands in the user's role."""
_APPENDED: Final = re.compile(r"\n[ \t]*\n(?:To suggest changes to a file|# \*SEARCH/REPLACE block\* Rules)")
"""Where a reminder begins that a client puts behind the user's words."""


class Spoken(msgspec.Struct, frozen=True, kw_only=True):
    """What the user typed in a message, and whether files or images were put beside it as text."""

    text: str
    files: bool = False


def spoken(text: str) -> Spoken:
    """The user's own words in `text`; "" where all of it is a client's. Of a very long text the beginning decides."""
    text = text[:LONGEST]
    if _REPLAYED.match(text):
        return Spoken(text="")
    text = _WRAPPERS.sub("", text)
    text, files = _without_blocks(text)
    text, images = _IMAGE.subn("", text)
    found = _APPENDED.search(text)
    if found is not None:
        text = text[: found.start()]
    text = text.strip()
    if _REPLAYED.match(text):
        text = ""
    return Spoken(text=text, files=files or images > 0)


def _without_blocks(text: str) -> tuple[str, bool]:
    """`text` without the blocks between compound tags, and whether one of those held a file."""
    kept: list[str] = []
    files = False
    place = 0
    unclosed: set[str] = set()
    for found in _OPENING.finditer(text):
        name = found.group(1)
        if found.start() < place or name in unclosed or len(unclosed) > _MOST_TAGS:
            continue
        end = text.find(f"</{name}>", found.end())
        if end < 0:
            unclosed.add(name)
            continue
        files = files or _FILES.search(name) is not None
        kept.append(text[place : found.start()])
        place = end + len(name) + 3
    return "".join((*kept, text[place:])), files
