"""Which language notes should be in, told by the user's own latest passages; and whether they are in its script.

A script is what code can be sure of (Cyrillic is not Latin); which of two languages in one script it is, the model is
left to tell from the passages. Words are counted in scripts without blanks too.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping
from typing import Final

from proxy.core.boilerplate import spoken
from proxy.core.conversation import Message
from proxy.core.fence import SECTIONS

MOST: Final = 8
"""Passages in a sample."""
LEAST_WORDS: Final = 3
_CLIP: Final = 240
"""Characters of a passage that are quoted."""
_SLASH: Final = re.compile(r"/[A-Za-z][\w:.-]*(?=\s|$)")
_SHARE: Final = 1 / 3
"""Of the passages: a script that so many are written in is one the notes may be in."""
_ENOUGH: Final = 0.4
"""Of a narrative's words: so many in a right script make it right; names and terms of others are no language."""
_FEW: Final = 12.0
"""Words below which nothing is said about a text's script."""
_KANA: Final = 0.08
"""Of the words in Chinese characters and kana: from here on it is Japanese."""

# First code points of the blocks that letters of a script stand in; what is between them is no letter of any.
_BLOCKS: Final = (
    (0x0000, ""),
    (0x0041, "latin"),
    (0x0250, ""),
    (0x0370, "greek"),
    (0x0400, "cyrillic"),
    (0x0530, "armenian"),
    (0x0590, "hebrew"),
    (0x0600, "arabic"),
    (0x0700, ""),
    (0x0750, "arabic"),
    (0x0780, ""),
    (0x0900, "devanagari"),
    (0x0980, "bengali"),
    (0x0A00, "gurmukhi"),
    (0x0A80, "gujarati"),
    (0x0B00, "oriya"),
    (0x0B80, "tamil"),
    (0x0C00, "telugu"),
    (0x0C80, "kannada"),
    (0x0D00, "malayalam"),
    (0x0D80, "sinhala"),
    (0x0E00, "thai"),
    (0x0E80, "lao"),
    (0x0F00, "tibetan"),
    (0x1000, "myanmar"),
    (0x10A0, "georgian"),
    (0x1100, "hangul"),
    (0x1200, "ethiopic"),
    (0x13A0, ""),
    (0x1780, "khmer"),
    (0x1800, ""),
    (0x1C90, "georgian"),
    (0x1CC0, ""),
    (0x1E00, "latin"),
    (0x1F00, "greek"),
    (0x2000, ""),
    (0x3005, "han"),
    (0x3008, ""),
    (0x3041, "kana"),
    (0x3100, ""),
    (0x3130, "hangul"),
    (0x3190, ""),
    (0x3400, "han"),
    (0x4DC0, ""),
    (0x4E00, "han"),
    (0xA000, ""),
    (0xAC00, "hangul"),
    (0xD7B0, ""),
    (0xF900, "han"),
    (0xFB00, ""),
    (0xFB50, "arabic"),
    (0xFE00, ""),
    (0xFE70, "arabic"),
    (0xFEFF, ""),
    (0xFF21, "latin"),
    (0xFF5B, ""),
    (0xFF66, "kana"),
    (0xFFA0, "hangul"),
    (0xFFDD, ""),
    (0x20000, "han"),
    (0x32000, ""),
)
_STARTS: Final = tuple(start for start, _ in _BLOCKS)
_PER_WORD: Final[Mapping[str, float]] = {"han": 1.6, "kana": 2.6, "thai": 4.5, "lao": 4.5, "khmer": 5.0, "myanmar": 5.0}
"""Characters that make a word where words are not parted by blanks: averages of running text."""
_OTHERWISE: Final = 4.5
"""Letters of a word in running text of the other scripts."""

# What counts for no language: code, quotations, addresses, paths, names in code, references.
_COPIED: Final = re.compile(
    r"```.*?(?:```|\Z)|`[^`\n]{1,400}`"
    r"|\"[^\"\n]{1,400}\"|\u201c[^\u201d\n]{1,400}\u201d|\u00ab[^\u00bb\n]{1,400}\u00bb|\u300c[^\u300d\n]{1,400}\u300d"
    r"|\u201e[^\u201c\u201d\n]{1,400}[\u201c\u201d]|\u300e[^\u300f\n]{1,400}\u300f"
    r"|https?://\S{1,400}|\[[^\[\]\n]{0,200}\]|^>[^\n]*|(?=[^\s\u0080-\uffff]{0,400}[\d/\\_.@#=])[^\s\u0080-\uffff]{2,400}",
    re.DOTALL | re.MULTILINE,
)
_HEADINGS: Final = re.compile(r"^[#*\s\d.()]*(?:" + "|".join(map(re.escape, SECTIONS)) + r")[*:\s]*$", re.MULTILINE)


def sample(messages: tuple[Message, ...], skip: frozenset[int] = frozenset()) -> tuple[str, ...]:
    """Up to eight of the user's latest passages, oldest first, each at most a few lines long.

    Left out: the messages whose index is in `skip` (a `/compact` and its answer), what clients put there, slash
    commands, passages of fewer than three words.
    """
    found: list[str] = []
    for index in range(len(messages) - 1, -1, -1):
        if len(found) == MOST:
            break
        if messages[index].by_user and index not in skip:
            passage = _passage(messages[index])
            if passage:
                found.append(passage)
    return tuple(reversed(found))


def _passage(item: Message) -> str:
    text = spoken(item.text).text
    if _SLASH.match(text):
        return ""
    short = text if len(text) <= _CLIP else text[:_CLIP].rsplit(None, 1)[0] + " ..."
    return short if words(_prose(short)) >= LEAST_WORDS else ""


def words(text: str) -> float:
    """How many words `text` has. Scripts without blanks between words are counted by their characters."""
    total = 0.0
    for run in text.split():
        dense = [script for script in map(script_of, run) if script in _PER_WORD]
        if dense:
            total += sum(1 / _PER_WORD[script] for script in dense)
        elif any(map(script_of, run)):
            total += 1
    return total


def script_of(character: str) -> str:
    """The script of a letter; "" for what is no letter."""
    if not character.isalpha() and not "\u0300" <= character <= "\u1000":
        return ""
    return _BLOCKS[bisect_right(_STARTS, ord(character)) - 1][1]


def shares(text: str) -> tuple[tuple[str, float], ...]:
    """How many words of `text` are in each script, most first. Chinese characters among kana count as Japanese."""
    letters: dict[str, int] = {}
    for character in text:
        script = script_of(character)
        if script:
            letters[script] = letters.get(script, 0) + 1
    weights = {script: many / _PER_WORD.get(script, _OTHERWISE) for script, many in letters.items()}
    kana = weights.pop("kana", 0.0)
    if kana:
        name = "japanese" if kana > _KANA * (kana + weights.get("han", 0.0)) else "han"
        weights[name] = kana + weights.pop("han", 0.0)
    return tuple(sorted(weights.items(), key=lambda item: (-item[1], item[0])))


def scripts(passages: tuple[str, ...]) -> tuple[str, ...]:
    """The scripts that notes may be written in: those that a third of the passages, or most words, are in. Empty where
    the passages tell nothing."""
    votes: dict[str, int] = {}
    for passage in passages:
        for script, _ in shares(_prose(passage))[:1]:
            votes[script] = votes.get(script, 0) + 1
    total = sum(votes.values())
    return tuple(sorted(script for script, many in votes.items() if many >= _SHARE * total))


def written_in(narrative: str, allowed: tuple[str, ...]) -> bool:
    """Whether `narrative` is in one of the scripts `allowed` (any, where there are none).

    The English titles, code, quotations, paths and ids do not count; a text that has hardly any other words passes.
    """
    weights = shares(_prose(_HEADINGS.sub("", narrative)))
    total = sum(weight for _, weight in weights)
    if not allowed or total < _FEW:
        return True
    right = sum(weight for script, weight in weights if script in allowed)
    return right >= _ENOUGH * total


def _prose(text: str) -> str:
    return _COPIED.sub(" ", text)
