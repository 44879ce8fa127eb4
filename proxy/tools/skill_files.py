"""One SKILL.md: its bytes to a `core.agent.Skill`, or the reason why not.

Belongs here: what the Agent Skills convention says a file and a folder's name must be, read leniently, and the text
that a model is given. Never: opening anything (`skill_folders`), nor which organisation sees it (`skills`). Where the
convention is missed and the meaning is clear, the skill is loaded with a warning; who may see it is never guessed.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from proxy.configfile import ConfigError, Document, Place, Problem, parse, states
from proxy.core.agent import ANYBODY, Skill
from proxy.core.fence import SKILL, unfenced
from proxy.core.slugs import RESERVED

MAX_FILE: Final = 128 * 1024
"""Bytes of a SKILL.md; the longest real one that we met has 72,000 characters. A longer one is refused, never cut."""
TOO_LARGE: Final = f"is larger than {MAX_FILE // 1024} KiB, and a skill is never cut"
MAX_FRONT: Final = 16 * 1024
"""Bytes of its front matter."""
MAX_NAME: Final = 64
MAX_WHEN: Final = 1024
"""Characters of a name and of a description in the convention."""
MAX_FILE_NAME: Final = 120
MAX_USERS: Final = 100
MAX_PATTERN: Final = 256

_SLUG: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_OPENING: Final = re.compile(r"-{3,}[ \t]*")
_CLOSING: Final = re.compile(r"(?:-{3,}|\.{3})[ \t]*")
_KNOWN: Final = ("users", "published", "disable-model-invocation")
_FLAGS: Final[Mapping[str, bool]] = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


class Files(msgspec.Struct, frozen=True, kw_only=True):
    """The other files of a skill's folder: some names, and how many `more` there are."""

    names: tuple[str, ...] = ()
    more: int = 0


NO_FILES: Final = Files()


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """A skill, perhaps with warnings; or none, and the problems that say why."""

    skill: Skill | None = None
    problems: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()


def unfit(name: str) -> str | None:
    """Why a folder of this name cannot be a skill; None where it can: its name is the slug."""
    if name in RESERVED:
        return f'"{name}" is the gateway\'s own command'
    if _SLUG.fullmatch(name):
        return None
    rule = "a slug is made of a-z, 0-9 and hyphens, up to 64"
    foreign = next((each for each in name if not "!" <= each <= "~"), None)
    if foreign is not None:
        if "\ud800" <= foreign <= "\udfff":
            return f"the folder's name is not UTF-8; {rule}"
        called = unicodedata.name(foreign, "a control or unassigned character")
        return f"the folder's name holds U+{ord(foreign):04X} ({called}); {rule}"
    if name != name.lower():
        return f"the folder's name has capital letters; {rule}"
    wrong = next((each for each in name if not (each.isalnum() or each == "-")), None)
    if wrong is not None:
        return f'the folder\'s name holds "{wrong}"; {rule}'
    if len(name) > MAX_NAME:
        return f"the folder's name has {len(name)} characters; {rule}"
    return f"the folder's name begins with a hyphen or is empty; {rule}"


def read_skill(data: bytes, *, owner: str, slug: str, file: str, files: Files = NO_FILES) -> Reading:
    """The skill that `data` describes, of the organisation's folder `owner`. `file` is what problems call it."""
    try:
        text = _text(data, file)
        document, body, repaired = _parts(text, file)
        made = _Made(document)
        skill = made.skill(owner, slug, body, files)
    except ConfigError as refused:
        return Reading(problems=refused.problems)
    if repaired:
        made.warn((), "is not valid YAML; it was read as if its texts stood in quotes")
    return Reading(skill=skill, warnings=tuple(made.warnings))


def line(text: str, most: int = MAX_WHEN) -> str:
    """`text` in one line of at most `most` characters, without what nobody sees and without a tag of ours."""
    seen = "".join(
        each
        for each in text
        if each in "\u200c\u200d" or each.isspace() or unicodedata.category(each) not in ("Cc", "Cf", "Cs")
    )
    safe = unfenced(" ".join(seen.split()))
    if len(safe) <= most:
        return safe
    kept = safe[: most - 1]
    return (kept.rpartition(" ")[0] or kept) + "…"


def _refuse(file: str, message: str, at: int | None = None) -> ConfigError:
    return ConfigError([Problem(file=file, line=at, message=message)])


def _text(data: bytes, file: str) -> str:
    if len(data) > MAX_FILE:
        raise _refuse(file, TOO_LARGE)
    at = data.find(b"\0")
    if at >= 0:
        raise _refuse(file, "holds NUL bytes: it is not a text", data.count(b"\n", 0, at) + 1)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _refuse(file, "is not UTF-8 text", data.count(b"\n", 0, error.start) + 1) from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _parts(text: str, file: str) -> tuple[Document, str, bool]:
    """Front matter, body, and whether the front matter had to be repaired."""
    lines = text.split("\n")
    first = next((number for number, each in enumerate(lines) if each.strip()), None)
    if first is None:
        raise _refuse(file, "is empty")
    if not _OPENING.fullmatch(lines[first]):
        raise _refuse(file, "has no front matter: its first line must be ---, then name and description", first + 1)
    last = next((number for number in range(first + 1, len(lines)) if _CLOSING.fullmatch(lines[number])), None)
    if last is None:
        raise _refuse(file, "its front matter never ends: a line --- must follow it", first + 1)
    front = "\n".join(lines[first + 1 : last]) + "\n"
    if len(front.encode()) > MAX_FRONT:
        raise _refuse(file, f"its front matter is larger than {MAX_FRONT // 1024} KiB", first + 1)
    document, repaired = _front(front, first + 1, file)
    return document, "\n".join(lines[last + 1 :]), repaired


def _front(front: str, above: int, file: str) -> tuple[Document, bool]:
    """The front matter; where it is no YAML, once more with its texts quoted. `above`: the lines before it."""
    blank = "\n" * above  # so that lines are those of the file
    try:
        return parse((blank + front).encode(), file), False
    except ConfigError as first:
        # Not where it is YAML, but too deep, too large or of forbidden tags: that is no slip of a pen.
        slip = first.problems[0].message.startswith(("is not valid YAML", "unknown alias"))
        quoted = _quoted(front) if slip else front
        if quoted == front:
            raise
        try:
            return parse((blank + quoted).encode(), file), True
        except ConfigError:
            raise first from None


_KEY: Final = re.compile(r"([A-Za-z][\w-]*:)[ \t]+(\S.*)")
_BLOCK: Final = re.compile(r"[|>][-+0-9]{0,2}[ \t]*(?:#.*)?")
_STRING: Final = re.compile(r"""(?:"(?:[^"\\]|\\.)*"|'(?:[^']|'')*')[ \t]*(?:#.*)?""")


def _quoted(front: str) -> str:
    """`front` with quotes around the values at its top level that YAML would stumble over; as many lines as before."""
    made: list[str] = []
    lines = front.split("\n")
    at = 0
    while at < len(lines):
        end = at + 1
        match = _KEY.fullmatch(lines[at])
        if match is None:
            made.append(lines[at])
        else:
            while end < len(lines) and lines[end][:1] in (" ", "\t") and lines[end].strip():
                end += 1
            value = " ".join(each.strip() for each in (match[2], *lines[at + 1 : end]))
            if _stumbles(match[2], value):
                made += [f"{match[1]} '" + value.replace("'", "''") + "'", *[""] * (end - at - 1)]
            else:
                made += lines[at:end]
        at = end
    return "\n".join(made)


def _stumbles(first: str, value: str) -> bool:
    """Whether a value is no YAML as it stands; `first` is its first line."""
    if value[0] in "|>":
        return _BLOCK.fullmatch(first) is None
    if value[0] in "\"'":
        return _STRING.fullmatch(value) is None
    if value[0] in "[{":
        return not value.endswith("]" if value[0] == "[" else "}")
    return value[0] in "*&!@`%,]}" or value[:2] in ("- ", "? ") or ": " in value or ":\t" in value or value[-1] == ":"


class _Made:
    """Reads the front matter's keys. What is wrong is raised as ConfigError, what is odd is a warning."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self.warnings: list[Problem] = []

    def warn(self, place: Place, message: str) -> None:
        self.warnings.append(self._document.problem(place, message))

    def _refused(self, place: Place, message: str) -> ConfigError:
        return ConfigError([self._document.problem(place, message)])

    def skill(self, owner: str, slug: str, body: str, files: Files) -> Skill:
        metadata = self._document.values.get("metadata")
        if metadata is not None and not isinstance(metadata, dict):
            raise self._refused(("metadata",), "must be a mapping of keys")
        made = Skill(
            id=f"{owner}/{slug}",
            slug=slug,
            when=self._when(),
            text=_wrapped(slug, self._body(body), files),
            users=self._users(),
            published=self._flag("published", True),
            offered=not self._flag("disable-model-invocation", False),
        )
        self._name(slug)
        self._slips()
        return made

    def _when(self) -> str:
        description = self._document.values.get("description")
        if description is not None and not isinstance(description, str):
            raise self._refused(("description",), "must be text (put it in quotes)")
        told = line(description or "")
        if not told.strip("\u200c\u200d "):
            raise self._refused(("description",), "is missing or empty, so nobody could know when to use the skill")
        if len(description or "") > MAX_WHEN:
            self.warn(("description",), f"has {len(description or '')} characters, of which {MAX_WHEN} are used")
        return told

    def _body(self, body: str) -> str:
        lines = body.rstrip().split("\n")
        first = next((number for number, each in enumerate(lines) if each.strip()), None)
        if first is None:
            self.warn((), "holds no instructions below its front matter")
            return ""
        return unfenced("\n".join(lines[first:]))

    def _name(self, slug: str) -> None:
        name = self._document.values.get("name")
        if name is None:
            self.warn((), f'states no name; the folder\'s counts, "{slug}"')
            return
        if len(str(name)) > MAX_NAME:
            self.warn(("name",), f"has more than {MAX_NAME} characters")
        if name != slug:
            self.warn(("name",), f'is not the folder\'s, which counts: "{slug}"')

    def _slips(self) -> None:
        """Keys that are nearly one of those that decide who sees a skill."""
        metadata: dict[str, object] = self._document.values.get("metadata") or {}
        for place in (*((key,) for key in self._document.values), *(("metadata", key) for key in metadata)):
            key = place[-1]
            near = difflib.get_close_matches(key.lower(), _KNOWN, n=1, cutoff=0.8) if len(key) <= 40 else []
            if near and key not in _KNOWN:
                self.warn(place, f'unknown key; did you mean "{near[0]}"?')

    def _stated(self, key: str) -> tuple[Place, object] | None:
        """Where `key` stands, at the top or below `metadata`, and its value."""
        places: list[Place] = [each for each in ((key,), ("metadata", key)) if states(self._document.values, each)]
        if len(places) > 1:
            raise self._refused(places[1], f'"{key}" stands at the top as well: which one counts?')
        if not places:
            return None
        values = self._document.values
        return places[0], values[key] if len(places[0]) == 1 else values["metadata"][key]

    def _flag(self, key: str, default: bool) -> bool:
        found = self._stated(key)
        if found is None:
            return default
        place, value = found
        means = _FLAGS.get(value.strip().lower()) if isinstance(value, str) else value
        if not isinstance(means, bool):
            raise self._refused(place, "must be true or false")
        return means

    def _users(self) -> tuple[str, ...]:
        found = self._stated("users")
        if found is None:
            return ANYBODY
        place, value = found
        parts: Iterable[object] = value.split(",") if isinstance(value, str) else value if type(value) is list else ()
        patterns: list[str] = []
        for each in parts:
            if not isinstance(each, str):
                raise self._refused(place, "each user must be text (put it in quotes)")
            if each.strip():
                patterns.append(each.strip())
        if not patterns:
            raise self._refused(place, 'must name users or patterns, separated by commas; "*" is everybody')
        if len(patterns) > MAX_USERS or not all(len(each) <= MAX_PATTERN and each.isprintable() for each in patterns):
            raise self._refused(place, f"takes up to {MAX_USERS} names of up to {MAX_PATTERN} printable characters")
        return tuple(dict.fromkeys(patterns))


def _wrapped(slug: str, body: str, files: Files) -> str:
    """What a model is given: the body in a wrapper that nothing in it can close."""
    parts = [f'<{SKILL} name="{slug}">', *([body] if body else [])]
    if files.names or files.more:
        named = [f"- {line(each, MAX_FILE_NAME)}" for each in files.names]
        more = [f"(and {files.more} more)"] if files.more else []
        parts += ["", "Files that come with this skill; these are their names, they cannot be opened here:"]
        parts += [*named, *more]
    return "\n".join([*parts, f"</{SKILL}>"])
