"""The skills of every organisation, read from folders, watched, and swapped whole.

Belongs here: whose a skill is, which of several hides the others, and when to read again. Never: what a file means
(`skill_files`) and how a folder is walked (`skill_folders`), nor a timer: the app asks `SkillWatch` when it likes.

    <root>/<organisation>/<slug>/SKILL.md      its own            <root>/shared/<slug>/SKILL.md      everybody's

A skill that is refused is left out and told, the others stay. A root that cannot be read keeps the whole set that was.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec

from proxy.configfile import ConfigError, Problem
from proxy.core.agent import EMPTY, Shelf, Skill
from proxy.tools.skill_files import read_skill
from proxy.tools.skill_folders import MAX_SKILLS, SHARED, Candidate, Print, Walked, print_of, shown, walk

MAX_TOLD: Final = 2000
"""Problems, and warnings, of a library."""
_OWNER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
"""What a tenant can be called; a folder of another name is nobody's."""


class Library(msgspec.Struct, frozen=True, kw_only=True):
    """All skills. `problems` are refusals, `warnings` what was loaded nevertheless; `files` tells a skill's id where
    it was read. `hash` changes with any skill and is the same on every machine that reads the same."""

    shared: Shelf = EMPTY
    shelves: Mapping[str, Shelf] = MappingProxyType({})
    files: Mapping[str, str] = MappingProxyType({})
    problems: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()
    hash: str = ""

    def of(self, tenant: str) -> Shelf:
        """What an organisation may select from: its own skills and the shared ones, of which its own hide equals."""
        return self.shelves.get(tenant, self.shared)

    def skills(self) -> tuple[Skill, ...]:
        """Each of them once, by id."""
        every = {skill.id: skill for shelf in (self.shared, *self.shelves.values()) for skill in shelf.values()}
        return tuple(every[id] for id in sorted(every))


class Reload(msgspec.Struct, frozen=True, kw_only=True):
    """What a reload did: `current` is in force now. `kept`: a root could not be read, so it is the old set, and
    `problems` says why; else they are the new set's own."""

    current: Library
    changed: bool
    kept: bool = False
    problems: tuple[Problem, ...] = ()


def load(folders: Iterable[Path]) -> Library:
    """The skills of `folders`; a later one hides what has the same id in an earlier one.

    Raises ConfigError where a folder itself cannot be read. No skill is so broken that it raises.
    """
    return _load(tuple(folders))[0]


class SkillWatch:
    """The library in force, and its replacement. Not a timer: `poll` says whether a folder changed.

    It looks at times, sizes and inodes of the folders that were walked and of each SKILL.md, and opens nothing unless
    one differs. Both `poll` and `reload` touch the disk: call them outside the event loop.
    """

    def __init__(self, folders: Iterable[Path]) -> None:
        """Reads the folders. Raises ConfigError: a server does not start without a folder that it was promised."""
        self._folders = tuple(folders)
        self._current, self._seen = _load(self._folders)

    @property
    def current(self) -> Library:
        return self._current

    def poll(self) -> Reload | None:
        """Reload if a folder looks other than when last read; None if not. Never raises."""
        return self.reload() if self._look() != self._seen else None

    def reload(self) -> Reload:
        """Read the folders again and swap the whole set, or keep the old one and say why. Never raises."""
        before = self._look()
        try:
            found, seen = _load(self._folders)
        except ConfigError as error:
            self._seen = before
            return Reload(current=self._current, changed=False, kept=True, problems=error.problems)
        except Exception as error:  # a bug in reading must not end a server that has good skills
            self._seen = before
            unexpected = Problem(file="skills", message=f"cannot be read: {type(error).__name__}")
            return Reload(current=self._current, changed=False, kept=True, problems=(unexpected,))
        changed = found.hash != self._current.hash
        self._current, self._seen = found, seen
        return Reload(current=found, changed=changed, problems=found.problems)

    def _look(self) -> dict[str, Print]:
        roots = {str(folder) for folder in self._folders}
        return {path: print_of(path, follow=path in roots) for path in self._seen}


def _load(folders: tuple[Path, ...]) -> tuple[Library, dict[str, Print]]:
    """The library, and how everything looked right before it was read."""
    shelves: dict[str, dict[str, Skill]] = {}
    files: dict[str, str] = {}
    problems: list[Problem] = []
    warnings: list[Problem] = []
    unreadable: list[Problem] = []
    prints: dict[str, Print] = {}
    for folder in folders:
        prints[str(folder)] = print_of(str(folder), follow=True)
        try:
            walked = walk(folder)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            reason = getattr(error, "strerror", None) or "not the name of a folder"
            message = f"the folder of skills cannot be read: {reason}"
            unreadable.append(Problem(file=shown(str(folder)), message=message))
            continue
        prints.update({path: each for path, each in walked.prints.items() if path not in prints})
        problems += walked.problems
        _Root(walked, shelves, files, problems, warnings).shelve()
    if unreadable:
        raise ConfigError(unreadable)
    return _library(shelves, files, problems, warnings), prints


class _Root:
    """Puts what one root holds on the shelves, over what earlier roots put there."""

    def __init__(
        self,
        walked: Walked,
        shelves: dict[str, dict[str, Skill]],
        files: dict[str, str],
        problems: list[Problem],
        warnings: list[Problem],
    ) -> None:
        self._walked = walked
        self._shelves = shelves
        self._files = files
        self._problems = problems
        self._warnings = warnings

    def shelve(self) -> None:
        taken: dict[tuple[str, str], str] = {}
        strange: dict[str, None] = {}
        for each in self._walked.found:
            owner = SHARED if self._walked.flat else each.at[0]
            slug = each.at[-1]
            if not _OWNER.fullmatch(owner):
                if owner not in strange:
                    self._refuse(each.file, "stands in the folder of an organisation that nobody can be called")
                strange.setdefault(owner)
            elif (owner, slug) in taken:
                self._refuse(each.file, f'there is another skill "{slug}" of "{owner}": {taken[owner, slug]}')
            else:
                taken[owner, slug] = each.file
                self._put(owner, slug, each)

    def _put(self, owner: str, slug: str, each: Candidate) -> None:
        shelf = self._shelves.setdefault(owner, {})
        if slug not in shelf and len(shelf) >= MAX_SKILLS:
            self._refuse(each.file, f'"{owner}" has {MAX_SKILLS} skills already')
            return
        reading = read_skill(each.data, owner=owner, slug=slug, file=each.file, files=each.files)
        self._problems += reading.problems
        self._warnings += reading.warnings
        if reading.skill is None:
            return
        hidden = self._files.get(reading.skill.id)
        if hidden is not None:
            self._warnings.append(Problem(file=each.file, message=f"hides {hidden}"))
        self._files[reading.skill.id] = each.file
        shelf[slug] = reading.skill

    def _refuse(self, file: str, message: str) -> None:
        self._problems.append(Problem(file=file, message=message))


def _library(
    shelves: Mapping[str, Mapping[str, Skill]],
    files: Mapping[str, str],
    problems: list[Problem],
    warnings: list[Problem],
) -> Library:
    shared = shelves.get(SHARED, {})
    every = sorted((skill for shelf in shelves.values() for skill in shelf.values()), key=lambda skill: skill.id)
    return Library(
        shared=_shelf(shared),
        shelves=MappingProxyType(
            {owner: _shelf({**shared, **own}) for owner, own in shelves.items() if owner != SHARED}
        ),
        files=MappingProxyType(dict(files)),
        problems=_bounded(problems, "problems"),
        warnings=_bounded(warnings, "warnings"),
        hash=hashlib.blake2b(msgspec.json.encode(every), digest_size=8).hexdigest(),
    )


def _bounded(found: list[Problem], what: str) -> tuple[Problem, ...]:
    if len(found) <= MAX_TOLD:
        return tuple(found)
    more = Problem(file="skills", message=f"{len(found) - MAX_TOLD} more {what} are not told")
    return (*found[:MAX_TOLD], more)


def _shelf(skills: Mapping[str, Skill]) -> Shelf:
    return MappingProxyType(dict(sorted(skills.items())))
