"""Frames of one stream that differ in their text alone.

Nearly every frame of an answer repeats all bytes of the one before it but for a word. What is known to be around that
word is compared and not read again. Here: telling such frames, and making sure of it. Never: what a frame means
(`reply` reads it); nothing is believed that was not read that way before.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import msgspec

from proxy.core.errors import InvalidReply
from proxy.core.events import Event, Said

_PADDING: Final = re.compile(rb'[ !#-\[\]-~]*+"\}')
_PADDED: Final = b'"obfuscation":"'
"""OpenAI's name for a string that hides how long a piece of text is."""
_STRING: Final = msgspec.json.Decoder(str)


class Like(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A data frame that says a piece of text (`thought`: of reasoning), and nothing else: the bytes around that text.
    `padded`: what follows `behind` is the end of a random string, which some servers put into each frame."""

    before: bytes
    behind: bytes
    choice: int
    thought: bool
    padded: bool

    def read(self, raw: bytes, data: bytes) -> Said | None:
        """What a frame says that differs from this one in nothing else; None where it does, or may."""
        before, behind = self.before, self.behind
        if not data.startswith(before):
            return None
        start = len(before)
        if self.padded:
            end = data.find(behind, start)
            if end < 0 or _PADDING.fullmatch(data, end + len(behind)) is None:
                return None
        elif data.endswith(behind):
            end = len(data) - len(behind)
        else:
            return None
        try:
            text = _STRING.decode(data[start - 1 : end + 1])  # with its quotes, which `before` and `behind` hold
        except msgspec.DecodeError:
            return None
        if not text:
            return None
        if self.thought:
            return Said(raw=raw, choice=self.choice, reasoning=text)
        return Said(raw=raw, choice=self.choice, text=text)


def likeness(said: Said, data: bytes, read: Callable[[bytes, bytes], Event]) -> Like | None:
    """What other frames will have in common with the frame `data`, if all that it says is a text; `said` is what `read`
    made of it. Where in it the text stands is not believed before another one in its place was read as that."""
    thought = not said.text
    text = (said.reasoning if thought else said.text).encode("utf-8", "replace")
    before, found, behind = data.partition(b':"%b"' % text)
    if not found:
        before, found, behind = data.partition(b': "%b"' % text)
    if not found:
        return None
    common, padding, rest = behind.partition(_PADDED)
    padded = bool(padding) and _PADDING.fullmatch(rest) is not None
    like = Like(
        before=before + found[: found.find(b'"') + 1],
        behind=b'"' + (common + padding if padded else behind),
        choice=said.choice,
        thought=thought,
        padded=padded,
    )
    raw = said.raw or b""
    other = like.before + (b"1" if text == b"0" else b"0") + like.behind + (b'"}' if padded else b"")
    try:
        sure = like.read(raw, data) == said and like.read(raw, other) == read(raw, other)
    except InvalidReply:  # what was taken for the text stands between two others
        return None
    return like if sure else None
