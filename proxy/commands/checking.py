"""`weirgate check`: what is wrong with the configuration, its policies, agents and skills, each with its place.

Belongs here: printing what `proxy.check` finds. Never: a rule of its own. Warnings alone leave the exit code at 0: the
gateway would start.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from proxy.catalogue import Catalogue
from proxy.check import Report, check
from proxy.commands.outcome import DONE, FAILED, say
from proxy.commands.where import HERE, configuration
from proxy.configfile import Problem
from proxy.tools import skills


def run(config: Path | None, environ: Mapping[str, str], form: str) -> int:
    """0 where the gateway would start, 1 where it would not."""
    path = configuration(config)
    report = _nothing() if path is None else check(path, environ, catalogue=Catalogue(), skills=skills.load)
    if form == "json":
        told = msgspec.json.encode({"ok": report.ok, "problems": report.problems, "warnings": report.warnings})
        sys.stdout.write(msgspec.json.format(told, indent=2).decode() + "\n")
    else:
        _print(report)
    if report.ok:
        found = f", {len(report.warnings)} to look at" if report.warnings else ""
        say(f"{path} is fit to serve{found}")
    return DONE if report.ok else FAILED


def _nothing() -> Report:
    missing = Problem(file=str(HERE), message="does not exist in this folder; name a file with --config")
    return Report(problems=(missing,), warnings=())


def _print(report: Report) -> None:
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.text import Text

        console = Console()
        for word, problem in _lines(report):
            style = "bold red" if word == "error" else "yellow"
            console.print(Text.assemble((f"{word:7} ", style), str(problem)), soft_wrap=True)
    else:
        for word, problem in _lines(report):
            sys.stdout.write(f"{word:7} {problem}\n")


def _lines(report: Report) -> Iterator[tuple[str, Problem]]:
    yield from (("error", problem) for problem in report.problems)
    yield from (("warning", problem) for problem in report.warnings)
