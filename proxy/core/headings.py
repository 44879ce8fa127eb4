"""A model's notes, read whatever style their headings have: `## X`, `**X**`, `1. X:`, or bare, in any order.

Tolerant where models vary (style, numbering, order, wrappers, an outer code fence, a preamble), strict in what a title
is: the seven English ones with few other wordings. Bodies come out sealed: nothing in them can pass for ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from proxy.core.fence import SECTIONS, sealed
from proxy.core.narrative import CONSTRAINTS, DECISIONS, FACTS, NEXT, NONE, OPEN, REQUESTS, WORK, Narrative

_CLEAR: Final = 3
"""So many different headings of one style make that the style of the text."""
_MOST_THOUGHTS: Final = 8
_TITLES: Final[Mapping[str, int]] = MappingProxyType(
    {title.casefold(): place for place, title in enumerate(SECTIONS)}
    | {
        "requests": REQUESTS,
        "request and intent": REQUESTS,
        "user requests and intent": REQUESTS,
        "constraint": CONSTRAINTS,
        "decisions": DECISIONS,
        "decisions and reasoning": DECISIONS,
        "work completed": WORK,
        "completed work": WORK,
        "open work": OPEN,
        "open work and tasks": OPEN,
        "open work and task lists": OPEN,
        "task list": OPEN,
        "fact": FACTS,
        "key facts": FACTS,
        "next steps": NEXT,
    }
)
_SHAPE: Final = re.compile(
    r"[ \t]{0,3}(?P<lead>(?:#{1,6}|\*{1,3}|__|[-\u2022]|\(?\d{1,2}[.):]|[ \t]){0,8})"
    r"(?P<title>[A-Za-z][A-Za-z ,&/]{2,40})(?:\([^()\n]{0,80}\)[ \t]*)?"
    r"(?P<after>(?:\*{1,3}|__|[ \t#:\uff1a])*)(?P<rest>.*)"
)
_WRAPPING: Final = re.compile(
    r"</?(?:summary|narrative|output|result|answer|[\w-]{0,30}notes[\w-]{0,30})>", re.IGNORECASE
)
_THOUGHT: Final = re.compile(r"\s*<(think|thinking|analysis|scratchpad|reasoning)>", re.IGNORECASE)
_RULE: Final = re.compile(r"[ \t]*(?:-{3,}|\*{3,}|_{3,})[ \t]*")
_NOTHING: Final = frozenset(
    """none nothing n/a na nil empty unknown unchanged keine keines nichts aucun aucune rien ninguno ninguna nada nenhum
    nenhuma nessuno nessuna niente geen inga inget ingen žádné нет отсутствует
    无 無 没有 沒有 暂无 なし 特になし 없음 ไม่มี""".split()
)


class Parsed(msgspec.Struct, frozen=True, kw_only=True):
    """What a model's text holds: its sections, how many different headings it has, and the characters before them."""

    narrative: Narrative
    headings: int
    preamble: int = 0


def parse(text: str) -> Parsed:
    """Read a model's text; what comes before the first heading is dropped.

    A heading that comes twice continues its section. Headings inside code are code, unless all of them are.
    """
    text = _WRAPPING.sub("", thoughtless(text) or "").strip()
    lines = text.split("\n")
    found = _headings(lines, _outside(lines)) or _headings(lines, [True] * len(lines))
    bodies: list[list[str]] = [[] for _ in SECTIONS]
    places = [place for place, _, _ in found]
    for (place, section, rest), end in zip(found, [*places[1:], len(lines)], strict=False):
        bodies[section].extend([rest] if rest else [])
        bodies[section].extend(lines[place + 1 : end])
    return Parsed(
        narrative=Narrative(bodies=tuple(_body(body) for body in bodies)),
        headings=len({section for _, section, _ in found}),
        preamble=sum(len(line) + 1 for line in lines[: places[0]]) if places else len(text),
    )


def thoughtless(text: str) -> str | None:
    """`text` without the thinking that some servers leave in front of an answer; None where it never ends."""
    for _ in range(_MOST_THOUGHTS):
        found = _THOUGHT.match(text)
        if found is None:
            break
        end = text.find(f"</{found.group(1)}>", found.end())
        if end < 0:
            return None
        text = text[end + len(found.group(1)) + 3 :]
    return text


def _outside(lines: list[str]) -> list[bool]:
    """For each line whether it is outside of code; where the fences do not pair, all are."""
    marks = [_is_fence(line) for line in lines]
    inside = False
    outside: list[bool] = []
    for fence in marks:
        outside.append(not inside and not fence)
        inside ^= fence
    return [True] * len(lines) if inside else outside


def _is_fence(line: str) -> bool:
    return line.lstrip().startswith("```")


def _headings(lines: list[str], outside: list[bool]) -> list[tuple[int, int, str]]:
    """Line, section and the text beside each heading: of the clearest style that at least three of them have, or of
    any style where none has."""
    found: list[tuple[int, int, int, str]] = []
    for place, line in enumerate(lines):
        if outside[place] and (heading := _heading(line)) is not None:
            found.append((place, *heading))
    clear = next((style for style in (3, 2) if len({each[1] for each in found if each[2] >= style}) >= _CLEAR), 1)
    return [(place, section, rest) for place, section, style, rest in found if style >= clear]


def _heading(line: str) -> tuple[int, int, str] | None:
    """Section, clearness of style (3: `#`; 2: bold or numbered; 1: plain) and the text beside a heading."""
    match = _SHAPE.match(line)
    if match is None:
        return None
    title = " ".join(match["title"].replace("&", " and ").casefold().split()).rstrip(" ,")
    section = _TITLES.get(title)
    if section is None or (match["rest"] and not {":", "\uff1a"} & set(match["after"])):
        return None
    lead = match["lead"]
    style = 3 if "#" in lead else 2 if set(lead) & set("*_0123456789") else 1
    return section, style, match["rest"].strip()


def _body(lines: list[str]) -> str:
    """The lines of a section, sealed, without what is around them; NONE where they say that there is nothing."""
    if sum(map(_is_fence, lines)) % 2:
        lines = [line for line in lines if not _is_fence(line)]
    while lines and (not lines[-1].strip() or _RULE.fullmatch(lines[-1])):
        lines = lines[:-1]
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(line.rstrip() for line in lines)).strip("\n")
    said = text.strip(" \t\n-*_.()[]\u3002\u2022").casefold()
    if said in _NOTHING:
        return NONE
    return sealed(text).strip("\n") if any(map(str.isalnum, said)) else ""
