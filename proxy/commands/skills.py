"""`weirgate skills`: the skills that the folders hold, as a table, and what is wrong with any of them.

Belongs here: showing what `tools.skills` reads. Never: a rule of its own about a skill, nor a skill's text, which can
be long and is a file away.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from proxy.commands.outcome import DONE, FAILED, WRONG, NotDone, say
from proxy.commands.table import Column, number, show
from proxy.commands.where import configuration
from proxy.configfile import Problem
from proxy.core.agent import ANYBODY, Skill
from proxy.settings import load_part
from proxy.tools.skill_files import line
from proxy.tools.skills import Library, load

_WHEN = 72
"""Characters of a description in the table."""


def found(folders: Sequence[Path] | None, config: Path | None, environ: Mapping[str, str]) -> Library:
    """The library of the named folders, else of the configured ones. Raises ConfigError where one cannot be read."""
    named = tuple(folders or ()) or load_part(configuration(config), environ, ("skills",)).skills.folders
    if not named:
        raise NotDone("no folder of skills: name one, or set skills.folders in the configuration", WRONG)
    return load(named)


def show_list(library: Library, tenant: str | None, as_json: bool) -> int:
    """Every skill, or those that one organisation may select from."""
    skills = library.skills() if tenant is None else tuple(library.of(tenant).values())
    if as_json:
        listed = [_told(skill, library) for skill in skills]
        _write({"object": "list", "hash": library.hash, "data": listed})
    elif skills:
        texts = [Column(name=name, right=False) for name in ("when to use it", "for")]
        show([Column(name="skill", right=False, whole=True), *texts, Column(name="chars")], map(_cells, skills))
    else:
        say("there are no skills" + (f" for {tenant}" if tenant is not None else ""))
    if library.problems:
        say(f"{_count(library.problems, 'refusal')}; `weirgate skills check` says why")
    return DONE


def check_all(library: Library, as_json: bool) -> int:
    """What is refused or odd; 1 where something is refused."""
    skills = library.skills()
    if as_json:
        ok = not library.problems
        told = {"ok": ok, "skills": len(skills), "problems": library.problems, "warnings": library.warnings}
        _write(told)
    elif library.problems or library.warnings:
        columns = [Column(name=name, right=False) for name in ("", "file", "reason")]
        rows = [*(("error", each) for each in library.problems), *(("warning", each) for each in library.warnings)]
        show(columns, ((word, _place(each), _reason(each)) for word, each in rows))
    say(
        f"{_count(skills, 'skill')} fit to be used, {_count(library.problems, 'refusal')}, "
        f"{_count(library.warnings, 'warning')}"
    )
    return FAILED if library.problems else DONE


def _cells(skill: Skill) -> list[str]:
    return [skill.id, line(skill.when, _WHEN), _audience(skill), number(len(skill.text))]


def _audience(skill: Skill) -> str:
    if not skill.published:
        return "nobody yet"
    users = "everybody" if skill.users == ANYBODY else ", ".join(skill.users)
    return users if skill.offered else f"{users}, by name"


def _told(skill: Skill, library: Library) -> dict[str, object]:
    return {
        "id": skill.id,
        "slug": skill.slug,
        "when": skill.when,
        "users": skill.users,
        "published": skill.published,
        "offered": skill.offered,
        "characters": len(skill.text),
        "file": library.files[skill.id],
    }


def _place(problem: Problem) -> str:
    return problem.file if problem.line is None else f"{problem.file}:{problem.line}"


def _reason(problem: Problem) -> str:
    return f"{problem.key}: {problem.message}" if problem.key else problem.message


def _count(things: Sequence[object], name: str) -> str:
    return f"{number(len(things))} {name}{'' if len(things) == 1 else 's'}"


def _write(value: object) -> None:
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")
