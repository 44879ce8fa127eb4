"""A narrative: seven sections under English titles, kept up to date section by section, and bounded.

A model rewrites it at each compaction; what it leaves out stays as it was, so a careless summariser loses nothing. Each
section has its share of the size, unused shares are lent, and trimming takes whole lines from the oldest end: after any
number of passes the size is that of one. A model's text is read by `headings`; `read` and `rendered` are exact.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from proxy.core.fence import SECTIONS
from proxy.core.identifiers import identifiers
from proxy.core.measure import estimate

REQUESTS, CONSTRAINTS, DECISIONS, WORK, OPEN, FACTS, NEXT = range(7)

NONE: Final = "None."
"""The body of a section that the model says is empty, as against one it left out."""
REFERENCE: Final = re.compile(r"\bres_[a-p]{24}\b")
_SHARES: Final = (0.12, 0.17, 0.15, 0.2, 0.13, 0.17, 0.06)
"""Of the size of a full narrative, by section."""
_SQUEEZES: Final = (1.0, 0.97, 0.93, 0.85, 0.7, 0.4, 0.0)
_CARRIED: Final = "Named in earlier notes: "
_CARRIED_SHARE: Final = 0.06
_KINDS: Final = frozenset({"path", "url", "id"})
_CITED: Final = re.compile(
    r"[ \t]*[\[(\uff08\u3010][^\[\]()\n]{0,24}\bres_[a-p]{24}\b(?:[ \t,;]*res_[a-p]{24}\b)*"
    r"[ \t]*[\])\uff09\u3011]"
    r"|[ \t]*\bres_[a-p]{24}\b"
)


class Narrative(msgspec.Struct, frozen=True, kw_only=True):
    """The seven bodies in order; "" where there is nothing to say."""

    bodies: tuple[str, ...] = ("",) * 7


def read(text: str) -> Narrative:
    """Read a narrative of ours (see `rendered`)."""
    bodies: list[list[str]] = [[] for _ in SECTIONS]
    current: list[str] | None = None
    own = {f"## {title}": place for place, title in enumerate(SECTIONS)}
    for line in text.split("\n"):
        if line in own:
            current = bodies[own[line]]
        elif current is not None:
            current.append(line)
    return Narrative(bodies=tuple("\n".join(body).strip("\n") for body in bodies))


def rendered(narrative: Narrative) -> str:
    """`narrative` as text: each section that says something under its title. "" where none does."""
    return "\n\n".join(
        f"## {title}\n{body}" for title, body in zip(SECTIONS, narrative.bodies, strict=True) if body and body != NONE
    )


def updated(before: Narrative, after: Narrative) -> Narrative:
    """`after`, with the sections of `before` that it left out or empty.

    Only open work and the next step may be said to be none, and only where work was done since: else a summariser that
    has nothing to say would end what goes on.
    """
    bodies = list(after.bodies)
    progressed = bodies[WORK] not in ("", NONE, before.bodies[WORK])
    for section, body in enumerate(bodies):
        if body == NONE and section in (OPEN, NEXT) and progressed:
            bodies[section] = ""
        elif body in ("", NONE):
            bodies[section] = before.bodies[section]
    return Narrative(bodies=tuple(bodies))


def carried(before: Narrative, after: Narrative, most_tokens: int, present: frozenset[str] = frozenset()) -> Narrative:
    """`after`, with one line of facts that names the identifiers of `before` which are nowhere in it any more.

    References and the newest come first; the line never takes more than its small share of `most_tokens`. What is
    `present` elsewhere in the prompt need not be named.
    """
    facts = [line for line in after.bodies[FACTS].split("\n") if not line.startswith(_CARRIED)]
    copied = [line for line in after.bodies[FACTS].split("\n") if line.startswith(_CARRIED)]
    kept = _with(after, FACTS, "\n".join(facts))
    told = rendered(kept)
    names = dict.fromkeys(_names(rendered(before)) + _names("\n".join(copied)))
    lost = [name for name in names if name not in told and name not in present]
    lost.sort(key=lambda name: REFERENCE.fullmatch(name) is not None)
    line = ""
    for start in range(len(lost)):
        line = _CARRIED + ", ".join(lost[start:])
        if estimate(line) <= _CARRIED_SHARE * most_tokens:
            break
    else:
        return kept
    return _with(kept, FACTS, "\n".join([*filter(None, facts), line]))


def fitted(narrative: Narrative, most_tokens: int) -> Narrative:
    """`narrative` within `most_tokens` (estimated). Sections over their share are trimmed, the oldest lines first; what
    others leave of theirs is lent to them. What fits comes back unchanged."""
    if estimate(rendered(narrative)) <= most_tokens:
        return narrative
    frame = sum(estimate(f"\n\n## {title}\n") for title in SECTIONS)
    tried = (_squeezed(narrative, max(0, most_tokens - frame) * squeeze) for squeeze in _SQUEEZES)
    return next(made for made in tried if estimate(rendered(made)) <= most_tokens)


def references(text: str) -> tuple[str, ...]:
    """The references that `text` holds, in order, each once."""
    return tuple(dict.fromkeys(REFERENCE.findall(text)))


def known_only(text: str, known: Iterable[str]) -> str:
    """`text` without references that nobody gave: an invented one leads nowhere."""
    right = frozenset(known)

    def checked(found: re.Match[str]) -> str:
        cited = references(found.group())
        real = [each for each in cited if each in right]
        if len(real) == len(cited):
            return found.group()
        return f" [{', '.join(real)}]" if real else ""

    return _CITED.sub(checked, text)


def display(text: str) -> str:
    """`text` for people: without references (`summary_display`)."""
    return _CITED.sub("", text)


# -- bounding --------------------------------------------------------------------------------------------------------


def _squeezed(narrative: Narrative, left: float) -> Narrative:
    return Narrative(bodies=tuple(map(_trimmed, narrative.bodies, _caps(narrative, left))))


def _caps(narrative: Narrative, left: float) -> list[float]:
    """What each body may take of `left`: what it needs within its share, and of what others do not need a part."""
    needs = [estimate(body) for body in narrative.bodies]
    over = set(range(len(needs)))
    rest, whole = left, 1.0
    for _ in SECTIONS:
        over = {section for section in over if needs[section] > rest * _SHARES[section] / whole}
        rest = left - sum(need for section, need in enumerate(needs) if section not in over)
        whole = sum(_SHARES[section] for section in over)
    return [
        max(0.0, rest) * _SHARES[section] / whole if section in over else need for section, need in enumerate(needs)
    ]


def _trimmed(body: str, most: float) -> str:
    """The newest lines of `body` within `most`; a last line that is too long alone keeps its beginning."""
    if estimate(body) <= most:
        return body
    lines = body.split("\n")
    start = len(lines)
    while estimate("\n".join(lines[start - 1 :])) <= most:
        start -= 1
    kept = "\n".join(lines[start:])
    if kept.strip():
        return _whole_lines(kept)
    last = lines[-1]
    while last and estimate(last + " ...") > most:
        last = last[: len(last) * 9 // 10].rstrip()
    return last + " ..." if last else ""


def _whole_lines(text: str) -> str:
    """`text` without what continues a line that is gone, and without one half of a code fence."""
    lines = text.split("\n")
    while len(lines) > 1 and (not lines[0] or lines[0][0].isspace()):
        lines.pop(0)
    if sum(line.lstrip().startswith("```") for line in lines) % 2:
        lines = [line for line in lines if not line.lstrip().startswith("```")]
    return "\n".join(lines)


def _names(text: str) -> list[str]:
    """The identifiers of `text`, and the references, which are words to look at."""
    found: list[str] = []
    for piece in text.replace(", ", "\n").split("\n"):
        found += REFERENCE.findall(piece)
        found += [name for kind, name in identifiers(piece) if kind in _KINDS]
    return found


def _with(narrative: Narrative, section: int, body: str) -> Narrative:
    bodies = list(narrative.bodies)
    bodies[section] = body
    return Narrative(bodies=tuple(bodies))
