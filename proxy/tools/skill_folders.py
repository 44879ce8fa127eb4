"""A root of skills on the disk, walked without ever leaving it.

Belongs here: which folders are looked into, which files are read, and every bound on that. Never: what a file means
(`skill_files`). The laws of the walk: a folder or file is opened by its one name relative to its open parent, with
O_NOFOLLOW, so that no link is followed however fast it is put in place; only a regular SKILL.md is opened at all, and
without blocking; each organisation's folder has bounds of its own, so that one cannot crowd out another.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

import msgspec

from proxy.configfile import Problem
from proxy.tools.skill_files import MAX_FILE, TOO_LARGE, Files, unfit

SKILL: Final = "SKILL.md"
SHARED: Final = "shared"
MAX_DEPTH: Final = 6
"""Folders below the root, the skill's own counted."""
MAX_ENTRIES: Final = 10_000
"""Names in one folder; a fuller one is refused."""
MAX_FOLDERS: Final = 2000
MAX_BYTES: Final = 16 * 1024 * 1024
MAX_SKILLS: Final = 1000
MAX_PROBLEMS: Final = 100
"""For each organisation's folder: folders opened, bytes read, skills, problems told."""
MAX_ALL_FOLDERS: Final = 200_000
MAX_ALL_BYTES: Final = 256 * 1024 * 1024
MAX_ALL_PROBLEMS: Final = 1000
"""For a whole root."""
MAX_FILES: Final = 40
"""Names of a skill's other files that are told."""
_FILES_DEPTH: Final = 3
_FILES_SEEN: Final = 400

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NONBLOCK
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_LINK: Final = "is a symbolic link; links are not followed"

Print = tuple[int, ...]
"""What a look from outside tells about a file or folder; it differs when that was changed."""
Where = tuple[str, ...]
"""Names of folders, from the root down."""
Kind = Literal["folder", "file", "link", "other"]


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A SKILL.md that was read whole. `at` is its folder; `file` is what a report calls the file."""

    at: Where
    file: str
    data: bytes
    files: Files


class Walked(msgspec.Struct, frozen=True, kw_only=True):
    """A root. In one that is `flat` the skills stand below it directly; else there is a folder per organisation."""

    flat: bool
    found: tuple[Candidate, ...]
    problems: tuple[Problem, ...]
    prints: Mapping[str, Print]


def walk(root: Path) -> Walked:
    """What `root` holds. Raises OSError, or ValueError (a NUL in its name), where the root itself cannot be read."""
    return _Walk(root).walked()


def print_of(path: str, *, follow: bool = False) -> Print:
    """Of what stands at `path`; of a link itself unless `follow`. Why there is nothing is a print as well."""
    try:
        return _print(os.stat(path, follow_symlinks=follow))
    except (OSError, ValueError) as error:
        return (getattr(error, "errno", None) or 0,)


def shown(name: str) -> str:
    """`name` as a report may hold it: text, whatever bytes it has on the disk."""
    text = name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return text if text.isprintable() else "".join(each if each.isprintable() else "\ufffd" for each in text)


def _print(state: os.stat_result) -> Print:
    return (state.st_dev, state.st_ino, state.st_mode, state.st_mtime_ns, state.st_ctime_ns, state.st_size)


class _Full(Exception):
    """A bound is reached: nothing more of this organisation's folder is read."""


class _Refused(Exception):
    """This file or folder is not read; the text says why."""


class _Budget:
    """What is left for one organisation's folder, and what was found wrong in it."""

    def __init__(self) -> None:
        self.folders = MAX_FOLDERS
        self.bytes = MAX_BYTES
        self.skills = MAX_SKILLS
        self.problems: list[Problem] = []
        self.untold = 0

    def refuse(self, file: str, message: str) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(Problem(file=file, message=message))
        else:
            self.untold += 1


class _Top:
    """A folder below the root: perhaps a skill (`marked`: it has a SKILL.md, readable or not), perhaps an
    organisation's, with skills below it (`nested`: some folder there has one)."""

    def __init__(self, name: str, budget: _Budget) -> None:
        self.name = name
        self.budget = budget
        self.marked = False
        self.nested = False
        self.own: list[Candidate] = []
        self.below: list[Candidate] = []


class _Names:
    """The other files of one skill, as far as they were looked at."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.more = 0
        self.seen = 0


class _Walk:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._prints: dict[str, Print] = {}
        self._common = _Budget()
        self._folders = MAX_ALL_FOLDERS
        self._bytes = MAX_ALL_BYTES
        self._conventional = False

    def walked(self) -> Walked:
        root = os.open(self._root, _FOLDER)
        try:
            ends = {Path(os.path.abspath(self._root)).parts[-2:], Path(os.path.realpath(self._root)).parts[-2:]}
            self._conventional = not ends.isdisjoint(((".agents", "skills"), (".claude", "skills")))
            names = _listing(root)
            tops = [top for name, kind in names.items() if (top := self._entry(root, name, kind)) is not None]
        except _Refused as refused:
            raise OSError(errno.E2BIG, str(refused)) from None
        finally:
            os.close(root)
        flat = self._conventional or not (
            SHARED in names or any(not top.marked and (top.below or top.nested) for top in tops)
        )
        found = [each for top in tops for each in self._kept(top, flat)]
        return Walked(flat=flat, found=tuple(found), problems=self._problems(tops), prints=self._prints)

    def _entry(self, root: int, name: str, kind: Kind) -> _Top | None:
        """One name in the root."""
        if kind == "folder":
            # In a root that is flat by its name all skills have one owner, and so one bound.
            top = _Top(name, self._common if self._conventional else _Budget())
            self._look(root, top)
            return top
        if kind == "link":
            self._common.refuse(self._file((name,)), _LINK)
        elif name.lower() == SKILL.lower():
            self._common.refuse(self._file((name,)), "stands in the root itself; a skill needs a folder of its own")
        return None

    def _look(self, root: int, top: _Top) -> None:
        at = (top.name,)
        try:
            with self._opened(root, at, top.budget) as (folder, names):
                top.marked = SKILL in names
                if top.marked and unfit(top.name) is None:
                    # Should the root turn out flat, these have one owner: they draw on what all have in common.
                    top.own += self._skill(folder, at, names, self._common)
                if not top.marked or not self._conventional:
                    for name, kind in names.items():
                        self._inner(folder, (*at, name), kind, top)
                if not top.marked:
                    self._misnamed(at, names, top.budget)
        except (_Full, _Refused) as reason:
            top.budget.refuse(self._file(at), str(reason))

    def _inner(self, parent: int, at: Where, kind: Kind, top: _Top) -> None:
        """A folder further below: a skill, or a group of them. Beside a SKILL.md no groups are looked into."""
        if kind == "link" and not top.marked:
            top.budget.refuse(self._file(at), _LINK)
        if kind != "folder":
            return
        if len(at) > MAX_DEPTH:
            top.budget.refuse(self._file(at), f"stands deeper than {MAX_DEPTH} folders and is not looked into")
            return
        try:
            with self._opened(parent, at, top.budget) as (folder, names):
                if SKILL in names:
                    top.nested = True
                    top.below += self._fit(folder, at, names, top.budget)
                elif not top.marked and not self._misnamed(at, names, top.budget):
                    for name, inner in names.items():
                        self._inner(folder, (*at, name), inner, top)
        except _Refused as refused:
            top.budget.refuse(self._file(at), str(refused))

    def _misnamed(self, at: Where, names: Mapping[str, Kind], budget: _Budget) -> bool:
        wrong = next((name for name in names if name.lower() == SKILL.lower()), None)
        if wrong is not None:
            budget.refuse(self._file((*at, wrong)), f"must be called {SKILL}")
        return wrong is not None

    def _fit(self, folder: int, at: Where, names: Mapping[str, Kind], budget: _Budget) -> list[Candidate]:
        reason = unfit(at[-1])
        if reason is None:
            return self._skill(folder, at, names, budget)
        budget.refuse(self._file((*at, SKILL)), reason)
        return []

    def _skill(self, folder: int, at: Where, names: Mapping[str, Kind], budget: _Budget) -> list[Candidate]:
        """The skill of an open folder, if its file is there to be read."""
        if budget.skills == 0:
            raise _Full(f"is left out, with what follows: there are more than {MAX_SKILLS} skills")
        budget.skills -= 1
        file = self._file((*at, SKILL))
        try:
            data = self._read(folder, at, budget)
        except _Refused as refused:
            budget.refuse(file, str(refused))
            return []
        told = _Names()
        self._files(folder, at, (), names, told, budget)
        files = Files(names=tuple(sorted(told.told)), more=told.more)
        return [Candidate(at=at, file=file, data=data, files=files)]

    def _read(self, folder: int, at: Where, budget: _Budget) -> bytes:
        try:
            state = os.stat(SKILL, dir_fd=folder, follow_symlinks=False)
            self._prints[self._path((*at, SKILL))] = _print(state)
            if stat.S_ISLNK(state.st_mode):
                raise _Refused(_LINK)
            if not stat.S_ISREG(state.st_mode):
                raise _Refused("is not a regular file")
            if state.st_size > MAX_FILE:
                raise _Refused(TOO_LARGE)
            if state.st_size > min(budget.bytes, self._bytes):
                raise _Full("is left out, with what follows: there are too many bytes of skills")
            data = _regular(os.open(SKILL, _FILE, dir_fd=folder))
        except OSError as error:
            raise _Refused(f"cannot be read: {error.strerror}") from None
        budget.bytes -= min(len(data), budget.bytes)
        self._bytes -= min(len(data), self._bytes)
        return data

    def _files(
        self, parent: int, at: Where, below: Where, names: Mapping[str, Kind], told: _Names, budget: _Budget
    ) -> None:
        """Gather the names of a skill's other files; none of them is opened."""
        for name, kind in names.items():
            told.seen += 1
            if told.seen > _FILES_SEEN:
                return
            path = (*below, name)
            if kind == "file" and path != (SKILL,):
                good = len(told.told) < MAX_FILES and "/".join(path).isprintable()
                told.told += ["/".join(path)] if good else []
                told.more += 0 if good else 1
            elif kind == "folder" and len(path) < _FILES_DEPTH:
                try:
                    with self._opened(parent, (*at, *path), budget) as (folder, inner):
                        self._files(folder, at, path, inner, told, budget)
                except (_Full, _Refused):
                    continue  # its names are not told; nothing in it would have been opened

    @contextmanager
    def _opened(self, parent: int, at: Where, budget: _Budget) -> Iterator[tuple[int, Mapping[str, Kind]]]:
        """A folder and what it holds. Raises _Refused, or _Full where no more folders may be opened."""
        if min(budget.folders, self._folders) == 0:
            raise _Full("is left out, with what follows: there are too many folders")
        budget.folders -= 1
        self._folders -= 1
        try:
            self._prints[self._path(at)] = _print(os.stat(at[-1], dir_fd=parent, follow_symlinks=False))
            folder = os.open(at[-1], _FOLDER | os.O_NOFOLLOW, dir_fd=parent)
        except OSError as error:
            raise _Refused(f"cannot be read: {error.strerror}") from None
        try:
            yield folder, _listing(folder)
        finally:
            os.close(folder)

    def _kept(self, top: _Top, flat: bool) -> list[Candidate]:
        """What counts of a folder, now that it is known which kind of root this is; the rest is refused."""
        file = self._file((top.name, SKILL))
        if not flat:
            if top.marked:
                said = f"stands where an organisation's folder is expected: move it to {SHARED}/ or below one"
                top.budget.refuse(file, said)
            return top.below
        if top.nested and top.marked:
            said = "is refused because its folder holds other skills: an organisation's folder has no skill of its own"
            top.budget.refuse(file, said)
            return []
        if top.marked and (reason := unfit(top.name)) is not None:
            top.budget.refuse(file, reason)
        return [*top.own, *top.below]

    def _problems(self, tops: list[_Top]) -> tuple[Problem, ...]:
        budgets = {id(each): each for each in (self._common, *(top.budget for top in tops))}.values()
        told = [problem for budget in budgets for problem in budget.problems]
        untold = sum(budget.untold for budget in budgets) + len(told[MAX_ALL_PROBLEMS:])
        if untold:
            more = Problem(file=shown(str(self._root)), message=f"{untold} more problems are not told")
            return (*told[:MAX_ALL_PROBLEMS], more)
        return tuple(told)

    def _path(self, at: Where) -> str:
        return os.path.join(self._root, *at)

    def _file(self, at: Where) -> str:
        return shown(self._path(at))


def _listing(folder: int) -> Mapping[str, Kind]:
    """The names in an open folder and what they are, sorted, without hidden ones."""
    found: dict[str, Kind] = {}
    try:
        with os.scandir(folder) as entries:
            for number, entry in enumerate(entries):
                if number >= MAX_ENTRIES:
                    raise _Refused(f"holds more than {MAX_ENTRIES} names")
                if not entry.name.startswith("."):
                    found[entry.name] = _kind(entry)
    except OSError as error:
        raise _Refused(f"cannot be read: {error.strerror}") from None
    return dict(sorted(found.items()))


def _kind(entry: os.DirEntry[str]) -> Kind:
    if entry.is_symlink():
        return "link"
    if entry.is_dir(follow_symlinks=False):
        return "folder"
    return "file" if entry.is_file(follow_symlinks=False) else "other"


def _regular(descriptor: int) -> bytes:
    """The bytes behind a descriptor, which is closed; refused where it is no regular file after all. Of one that grew
    since it was looked at, one byte more than allowed, so that it is refused when it is read."""
    with open(descriptor, "rb", buffering=0) as source:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _Refused("is not a regular file")
        data = bytearray()
        while len(data) <= MAX_FILE and (piece := source.read(MAX_FILE + 1 - len(data))):
            data += piece
    return bytes(data)
