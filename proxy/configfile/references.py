"""References in configuration files: `${env:NAME}`, `${env:NAME:-default}`, `${file:/path}`, `os.environ/NAME`.

Belongs here: replacing them by what they name, once, while the file is loaded. Never: references from a request, a
header or an environment variable; those stay text. What a reference names is never repeated in a problem.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from proxy.configfile import Document, Place, Problem, did_you_mean

MAX_FILE_BYTES = 64 * 1024

_REFERENCE = re.compile(r"(?P<escape>\$)?\$\{(?P<kind>[a-zA-Z]*):(?P<name>[^}]*)\}")
_VARIABLE = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<default>:-.*)?", re.DOTALL)
_LITELLM = "os.environ/"


class _Missing(Exception):
    """The reference cannot be followed; the text says why."""


def resolve(document: Document, environ: Mapping[str, str]) -> tuple[dict[str, Any], dict[Place, Problem]]:
    """`document`'s values with every reference followed, and a problem for each place where that was not possible.

    `$${env:NAME}` is the literal text `${env:NAME}`. A relative file is looked up beside the configuration file.
    """
    problems: dict[Place, Problem] = {}
    folder = Path(document.file).parent

    def follow(value: Any, place: Place) -> Any:
        if isinstance(value, dict):
            return {key: follow(each, (*place, key)) for key, each in value.items()}
        if isinstance(value, list):
            return [follow(each, (*place, position)) for position, each in enumerate(value)]
        if not isinstance(value, str):
            return value
        try:
            return _text(value, environ, folder)
        except _Missing as error:
            problems[place] = document.problem(place, str(error))
            return value

    return follow(document.values, ()), problems


def is_reference(text: str) -> bool:
    """Whether `text` names a value elsewhere (and so holds no secret itself)."""
    match = _REFERENCE.search(text)
    return text.startswith(_LITELLM) or (match is not None and not match["escape"])


def _text(text: str, environ: Mapping[str, str], folder: Path) -> str:
    if text.startswith(_LITELLM):
        return _variable(text.removeprefix(_LITELLM), environ)

    def one(match: re.Match[str]) -> str:
        if match["escape"]:
            return match[0][1:]
        if match["kind"] == "env":
            return _variable(match["name"], environ)
        if match["kind"] == "file":
            return _file(folder / match["name"])
        raise _Missing(f'unknown reference "{match["kind"]}:"' + did_you_mean(match["kind"], ("env", "file")))

    return _REFERENCE.sub(one, text)


def _variable(text: str, environ: Mapping[str, str]) -> str:
    match = _VARIABLE.fullmatch(text)
    if match is None:
        raise _Missing("a reference to the environment needs the name of a variable")
    value = environ.get(match["name"], "")
    if value:
        return value
    if match["default"] is not None:
        return match["default"][2:]
    state = "is empty" if match["name"] in environ else "is not set"
    raise _Missing(f"environment variable {match['name']} {state}")


def _file(path: Path) -> str:
    try:
        if not path.is_file():
            raise _Missing(f"file {path} does not exist")
        with path.open("rb") as source:
            data = source.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise _Missing(f"file {path} cannot be read: {getattr(error, 'strerror', 'not a file name')}") from None
    if len(data) > MAX_FILE_BYTES:
        raise _Missing(f"file {path} is larger than {MAX_FILE_BYTES} bytes")
    try:
        value = data.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise _Missing(f"file {path} is not UTF-8 text") from None
    if not value:
        raise _Missing(f"file {path} is empty")
    return value
