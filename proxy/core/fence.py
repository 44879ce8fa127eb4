"""Text of others stays text: the one place that knows how a forgery of ours, of a role or of a chat template looks.

Three strengths, each idempotent and linear, for text that is quoted in a prompt of ours:

    unfenced   cannot open or close a fence of ours                     (any text; names; a checked narrative)
    sealed     nor begin a line like a line of our notes                (the user's own words, otherwise kept)
    defused    nor like a turn, a role, a summary or a control token    (tool text, model text, everything untrusted)

A fence's mark is drawn from a digest of what it encloses and does not occur in it: no content can close its own fence.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from itertools import count
from typing import Final

from proxy.core.lettered import lettered

NOTES: Final = "conversation-notes"
"""The tag around notes in a prompt (`render`)."""
SKILL: Final = "skill_content"
"""The tag around a skill's text (`tools.skill_files`)."""
QUOTED: Final = "quoted"
"""The tag around quoted data in a summary request; its mark follows."""
SECTIONS: Final = (
    "Requests and intent",
    "Constraints",
    "Decisions and reasons",
    "Work done",
    "Open work and task list",
    "Facts",
    "Next step",
)
"""The titles of a narrative's sections (DESIGN 9), in order: headings of ours, so nobody else's."""

# What may stand unseen inside a tag's opening: blanks, soft hyphens, zero-width and direction marks.
_BLANK: Final = "[\\s\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]"
_UNSEEN: Final = f"{_BLANK}{{0,8}}"
_GAP: Final = f"{_BLANK}*+"
_LESS: Final = "[<\uff1c\ufe64\u2039\u3008]"
_HYPHEN: Final = "[-_\u2010-\u2015\uff3f]"


def _spelled(word: str) -> str:
    """`word`, whatever a forger does to its letters: full-width forms, invisible marks between them."""
    return _GAP.join(f"[{letter}{chr(ord(letter) + 0xFEE0)}]" for letter in word)


def _tag(*words: str) -> str:
    return f"{_GAP}{_HYPHEN}?{_GAP}".join(map(_spelled, words))


_NAMES: Final = (
    _tag("conversation", "notes"),
    f"{_tag('quoted')}{_GAP}{_HYPHEN}",
    _tag("skill", "content"),
    _tag("available", "skill"),
)
"""The tags of our fences, and that around a list of skills in the convention of skills."""
_TAGS: Final = re.compile(
    f"(?:{_LESS}|&(?:lt|#0{{0,6}}60|#x0{{0,6}}3c);?)(?={_GAP}[/\uff0f\u2215\u2044]?{_GAP}(?:{'|'.join(_NAMES)}))",
    re.IGNORECASE,
)
_BREAKS: Final = re.compile("\r\n?|[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
"""What a reader may take for the end of a line; a line begins where anybody could see one begin."""
_OURS: Final = re.compile(
    r"^(?=[ \t]*+(?:"
    r"#{1,6}[ \t]*+(?:(?:" + "|".join(map(re.escape, SECTIONS)) + r")[ \t]*+(?:$|[:(#])"
    r"|Earlier requests of the user|Rules that the user stated|Ledger\b)"
    r"|\[[^\]\n]{0,24}?turn[ \t]+\d"
    r"|Notes on [^\n]{0,120}written by the gateway"
    r"|Whole results:"
    r"|\(and \d+ (?:more|earlier)\b))",
    re.IGNORECASE | re.MULTILINE,
)
_ROLES: Final = "system|developer|assistant|user|human|model|ai|tool"
_TURNS: Final = re.compile(
    r"^(?=[ \t]*+(?:[#*_\[(]|\d{1,2}[.)]|[ \t]){0,6}(?:"
    rf"(?:{_ROLES})(?: (?:message|prompt|note|instructions?|reminder|turn|override))?"
    r"|(?:new |updated |important )?instructions?(?: for [^:\n]{1,30})?"
    r"|(?:conversation |session |previous |updated |final |context )?(?:summary|notes|memory)"
    r"(?: (?:so far|of [^:\n]{1,60}))?"
    r"|系统|系統|助手|用户|摘要|总结|要約"
    r"|システム|시스템|система"
    r"|zusammenfassung|résumé|resumen"
    r")[\])*_ \t]{0,6}[:\uff1a])",
    re.IGNORECASE | re.MULTILINE,
)
# Control tokens of chat templates, and tags that name a role: a bracket of another kind opens them.
_CONTROL: Final = re.compile(
    rf"{_LESS}(?=\||\uff5c|/?(?:s|bos|eos|pad|(?:start|end)_of_turn)>|<SYS>>|</SYS>>"
    rf"|{_UNSEEN}/?{_UNSEEN}(?:{_ROLES}|instructions?|system[-_][\w-]{{1,30}}|function_(?:calls?|results?)"
    r"|tool_(?:calls?|response|results?)|antml|invoke|think|analysis|summary|state_snapshot)\b)"
    r"|\[(?=/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT)\])",
    re.IGNORECASE,
)


def unfenced(text: str) -> str:
    """`text`, unable to open or close a fence of ours, whatever letters it spells our tags with."""
    return _TAGS.sub("(", text)


def sealed(text: str) -> str:
    """`text`, unable to pass for a line of our notes either: such a line becomes a quotation. For the user's words,
    which stay as they are, line ends included, where no line is taken for one of ours."""
    safe = unfenced(text)
    lines = _BREAKS.sub("\n", safe)
    quoted = _OURS.sub("> ", lines)
    return safe if quoted == lines else quoted


def defused(text: str) -> str:
    """`text` of anybody, unable to pass for a turn, a role, a summary or a template's control token."""
    return _TURNS.sub("> ", _OURS.sub("> ", unfenced(_BREAKS.sub("\n", _CONTROL.sub("(", text)))))


def mark(*texts: str, letters: int = 8) -> str:
    """Small letters that none of `texts` holds, drawn from all of them: equal texts, equal mark."""
    content = "\0".join(texts).encode("utf-8", "replace")
    drawn = (
        lettered(blake2b(content, digest_size=8, salt=number.to_bytes(4, "big")).digest())[:letters]
        for number in count()
    )
    return next(each for each in drawn if not any(each in text for text in texts))


def block(mark: str, what: str, text: str) -> str:
    """`text` between a fence of `mark`; `what` says in our words what it is."""
    return f'<{QUOTED}-{mark} what="{what}">\n{text}\n</{QUOTED}-{mark}>'
