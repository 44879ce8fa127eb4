"""Agents and the operator's prompt: read from weirgate.yaml and from the files that it names or that lie beside it.

An agent stands under `agents:` in weirgate.yaml or in a file of its own, `agents/NAME.yaml` beside it. Belongs here:
putting both together with the texts of their files, and every mistake with file and line. Never: what a single key may
say (`keys`), noticing changes (`watch`), what an agent does (`core.layers` decides), and skills. Prompt text is
literal: an agent's file and an instruction file hold no references, and braces are braces.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec
from pydantic import ValidationError

from proxy.agents.keys import MAX_TEXT, AgentSettings, MemorySettings, PromptSettings
from proxy.configfile import ConfigError, Place, Problem, did_you_mean, dotted, explain, read, states
from proxy.configfile.folders import print_of, yaml_files
from proxy.core.agent import Agent, MemoryLimits
from proxy.core.policy import matches

MAX_FILES: Final = 500
FOLDER: Final = "agents"

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,127}")


class Agents(msgspec.Struct, frozen=True, kw_only=True):
    """All agents of one reading, and the operator's prompt for every call ("": none); `hash` changes with any."""

    agents: Mapping[str, Agent] = MappingProxyType({})
    base: str = ""
    hash: str = ""

    def named(self, name: str) -> Agent | None:
        return self.agents.get(name)

    def visible_to(self, tenant: str, user: str | None) -> tuple[str, ...]:
        """The names that this caller may know, in order."""
        return tuple(sorted(name for name, agent in self.agents.items() if agent.seen_by(tenant, user)))


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """What the settings say: agents by name, the operator's prompt, the patterns of `models` ((): every name leads
    somewhere), and weirgate.yaml itself (None: there is none, nor a folder of agents)."""

    agents: Mapping[str, AgentSettings] = MappingProxyType({})
    base: PromptSettings | None = None
    models: tuple[str, ...] = ()
    file: Path | None = None


def memory_of(settings: MemorySettings | None) -> MemoryLimits | None:
    """What a key `memory` says; None: everything is told word for word."""
    return None if settings is None else MemoryLimits(**settings.model_dump())


def load(given: Given) -> Agents:
    """The agents and the prompt, with the texts of their files. Raises ConfigError with every problem of every file."""
    return Reading(given).agents()


def misled(agents: Mapping[str, object], models: Collection[str]) -> Iterator[tuple[Place, str]]:
    """What is wrong with the names of `agents` and with where they lead, each with its place below `agents`.

    Works on unchecked values, so that one load reports everything.
    """
    for name, stated in agents.items():
        model = stated.get("model") if isinstance(stated, Mapping) else getattr(stated, "model", None)
        yield from (((name, *place), message) for place, message in _misled(name, model, agents, models))


def remark(given: Given, name: str, key: str, message: str) -> Problem:
    """Something to say of a key of the agent `name`, with the place where it is stated, or where it could be."""
    if name in given.agents or given.file is None:
        return _blamed(given, (FOLDER, name, key), message)
    folder = given.file.parent / FOLDER
    try:
        file = next((each for each in yaml_files(folder) if each.stem == name), folder)
        return read(file).problem((key,), message)
    except (ConfigError, OSError):
        return Problem(file=str(folder), key=name, message=message)


class _Stated(msgspec.Struct, frozen=True, kw_only=True):
    """One agent as it was stated: `blame` makes a problem at a place in it, `where` names its file for others."""

    settings: AgentSettings
    folder: Path
    blame: Callable[[Place, str], Problem]
    where: Callable[[], str]


class Reading:
    """One reading of everything. `seen` is how the folder and each prompt's file looked just before it was read."""

    def __init__(self, given: Given) -> None:
        self._given = given
        self._home = Path() if given.file is None else given.file.parent
        self._problems: list[Problem] = []
        self.seen: tuple[object, dict[Path, object]] = (listing(given), {})

    def agents(self) -> Agents:
        """Raises ConfigError with all that was found."""
        stated = {name: self._of_settings(name, each) for name, each in self._given.agents.items()}
        for file in self._files():
            self._add(file, stated)
        named = {name: each.settings for name, each in stated.items()}
        for place, message in misled(named, self._given.models):
            self._report(stated[str(place[0])].blame(place[1:], message))
        agents = {name: self._agent(name, stated[name]) for name in sorted(stated)}
        base = self._text(self._given.base, self._home, lambda place, text: self._blame(("base_prompt", *place), text))
        if self._problems:
            raise ConfigError(self._problems)
        return Agents(agents=MappingProxyType(agents), base=base, hash=_digest((*agents.values(), base)))

    def _report(self, problem: Problem) -> None:
        if problem not in self._problems:
            self._problems.append(problem)

    def _of_settings(self, name: str, settings: AgentSettings) -> _Stated:
        place: Place = (FOLDER, name)
        return _Stated(
            settings=settings,
            folder=self._home,
            blame=lambda below, message: self._blame((*place, *below), message),
            where=lambda: _place_of(self._blame(place, "")),
        )

    def _blame(self, place: Place, message: str) -> Problem:
        return _blamed(self._given, place, message)

    def _files(self) -> list[Path]:
        """The files of the folder beside weirgate.yaml; none where there is no such folder."""
        if self._given.file is None:
            return []
        folder = self._home / FOLDER
        try:
            files = yaml_files(folder)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            self._report(Problem(file=str(folder), message=f"cannot be read: {error.strerror}"))
            return []
        if len(files) > MAX_FILES:
            self._report(Problem(file=str(folder), message=f"holds more than {MAX_FILES} agents"))
            return []
        return files

    def _add(self, file: Path, stated: dict[str, _Stated]) -> None:
        """The agent of one file, unless somebody else is called so."""
        try:
            document = read(file)
            settings = AgentSettings.model_validate(document.values)
        except ConfigError as error:
            self._problems += error.problems
            return
        except ValidationError as error:
            for problem in explain(error, AgentSettings.model_json_schema(), document.problem):
                self._report(problem)
            return
        other = stated.get(file.stem)
        if other is not None:
            self._report(document.problem((), f'the agent "{file.stem}" is also stated in {other.where()}'))
            return
        stated[file.stem] = _Stated(
            settings=settings, folder=file.parent, blame=document.problem, where=lambda: str(file)
        )

    def _agent(self, name: str, stated: _Stated) -> Agent:
        settings = stated.settings

        def blame(place: Place, message: str) -> Problem:
            return stated.blame(("instructions", *place), message)

        return Agent(
            name=name,
            model=settings.model,
            instructions=self._text(settings.instructions, stated.folder, blame),
            client_system=settings.client_system,
            skills=settings.skills,
            place=settings.skills_place,
            effort=settings.effort,
            tools=settings.tools,
            memory=memory_of(settings.memory),
            tenants=settings.visible_to.tenants,
            users=settings.visible_to.users,
        )

    def _text(self, prompt: PromptSettings | None, folder: Path, blame: Callable[[Place, str], Problem]) -> str:
        if prompt is None or prompt.file is None:
            return _tidy((prompt and prompt.text) or "")
        try:
            return _tidy(self._read(folder / prompt.file))
        except _Unreadable as error:
            self._report(blame(("file",), f"{prompt.file} {error}"))
            return ""

    def _read(self, path: Path) -> str:
        self.seen[1].setdefault(path, print_of(path))
        try:
            # Asked before it is opened: a pipe would keep us waiting for whoever writes to it.
            if not path.is_file():
                raise _Unreadable("is not a file" if path.exists() else "does not exist")
            with path.open("rb") as source:
                data = source.read(MAX_TEXT + 1)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            reason = getattr(error, "strerror", None) or "not a file name"
            raise _Unreadable(f"cannot be read: {reason}") from None
        if len(data) > MAX_TEXT:
            raise _Unreadable(f"is larger than {MAX_TEXT} bytes")
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise _Unreadable(f"is not UTF-8 text (line {line})") from None
        if not text.strip():
            # Most likely caught while an editor was writing it.
            raise _Unreadable("is empty")
        return text


class _Unreadable(Exception):
    """A prompt's file cannot be used; the text says why, to be read behind the file's name."""


def _blamed(given: Given, place: Place, message: str) -> Problem:
    """A problem of the settings: with its line where weirgate.yaml still says it."""
    if given.file is not None:
        try:
            document = read(given.file)
        except ConfigError:
            return Problem(file=str(given.file), key=dotted(place), message=message)
        if states(document.values, place[:2]):
            return document.problem(place, message)
    return Problem(file="environment or command line", key=dotted(place), message=message)


def _misled(name: str, model: object, agents: Collection[str], models: Collection[str]) -> Iterator[tuple[Place, str]]:
    if not _NAME.fullmatch(name):
        yield (), "an agent is named with letters, digits and . _ : / @ -, without wildcards"
    elif name in models:
        yield (), "is also the name of an entry of models"
    if not isinstance(model, str) or not models:
        return
    if not any(matches(pattern, model) for pattern in models):
        exact = [pattern for pattern in models if not _wild(pattern)]
        yield ("model",), "no entry of models leads to it" + did_you_mean(model, exact)
    elif model in agents and model != name and model not in models:
        yield ("model",), "is an agent; an agent leads to a model"


def _wild(pattern: str) -> bool:
    return "*" in pattern or "?" in pattern


def _tidy(text: str) -> str:
    """One text for one prompt, whoever saved it: line ends unified, no blank ends."""
    return text.replace("\r\n", "\n").replace("\r", "\n").strip()


def _digest(value: object) -> str:
    return hashlib.blake2b(msgspec.json.encode(value), digest_size=8).hexdigest()


def _place_of(problem: Problem) -> str:
    return problem.file if problem.line is None else f"{problem.file}:{problem.line}"


def listing(given: Given) -> object:
    """How the folder of agents looks, with all its files."""
    if given.file is None:
        return None
    folder = given.file.parent / FOLDER
    try:
        return (str(folder.resolve()), *(print_of(file) for file in yaml_files(folder)[: MAX_FILES + 1]))
    except (OSError, ValueError) as error:
        return ("unreadable", getattr(error, "errno", None))
