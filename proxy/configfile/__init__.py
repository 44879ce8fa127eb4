"""A file that an operator wrote: read with its line numbers, and told exactly what is wrong with it.

Belongs here: YAML into plain values, where each value stands, and problems as values. Never: what a key means, the
environment, defaults. `settings` and `policies` both rest on it, so it knows neither.

The reader is narrower than YAML 1.1 on purpose. Types are those of YAML 1.2's core schema (`off`, `12:30` and
`1_000` are what they look like: text, text, a number), keys are never doubled, tags and second documents are refused,
and size, depth and the *expanded* number of nodes are bounded, so that no file can fill the memory.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
import yaml

if TYPE_CHECKING:
    from pydantic import ValidationError

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 32
MAX_NODES = 50_000

Place = tuple[str | int, ...]
"""The way to a value: names of mappings, positions in lists."""

_INTEGER = re.compile(r"[-+]?(?:0|[0-9][0-9_]*)")
_HEXADECIMAL = re.compile(r"0x[0-9a-fA-F]+")
_DECIMAL = re.compile(r"[-+]?(?:[0-9][0-9_]*)?\.?[0-9]+(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+\.")
_WORDS: Mapping[str, object] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_STRING_TAG = "tag:yaml.org,2002:str"


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong. `file` may be "environment" or "command line"; `line` counts from 1."""

    file: str
    line: int | None = None
    key: str = ""
    message: str

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return ": ".join(part for part in (place, self.key, self.message) if part)


class ConfigError(Exception):
    """The configuration cannot be used; `problems` holds everything that was found, not only the first."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """What a file says (`values`, plain data) and on which line each value stands."""

    file: str
    values: dict[str, Any]
    lines: dict[Place, int]

    def line(self, place: Place) -> int:
        """The line of `place`, or of the nearest thing around it that stands in the file."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place, 1)

    def problem(self, place: Place, message: str) -> Problem:
        return Problem(file=self.file, line=self.line(place), key=dotted(place), message=message)


def dotted(place: Place) -> str:
    """`("keys", 0, "id")` as `keys[0].id`."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return "".join(parts).removeprefix(".")


def read(path: Path) -> Document:
    """The file at `path`. Raises ConfigError if it is not one readable, bounded YAML mapping."""
    file = str(path)
    try:
        if not path.is_file():
            reason = "is not a file" if path.exists() else "does not exist"
            raise ConfigError([Problem(file=file, message=reason)])
        with path.open("rb") as source:
            data = source.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError([Problem(file=file, message=f"cannot be read: {error.strerror}")]) from None
    return parse(data, file)


def parse(data: bytes, file: str) -> Document:
    """`data` as YAML; `file` is what problems call it. Raises ConfigError."""
    if len(data) > MAX_BYTES:
        raise ConfigError([Problem(file=file, message=f"is larger than {MAX_BYTES} bytes")])
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError([Problem(file=file, line=line, message="is not UTF-8 text")]) from None
    return _Builder(text, file).document()


def merge(over: Mapping[str, Any], under: Mapping[str, Any]) -> dict[str, Any]:
    """`under` with every key that `over` states; mappings are merged, everything else is replaced."""
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            merged[key] = merge(value, below)
        else:
            merged[key] = value
    return merged


def states(values: object, place: Place) -> bool:
    """Whether `values` says anything at `place`."""
    for part in place:
        try:
            values = values[part]  # type: ignore[index]
        except (KeyError, IndexError, TypeError):
            return False
    return True


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean "port"?` where a known word is near, else nothing."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f'; did you mean "{near[0]}"?' if near else ""


def explain(
    error: ValidationError, schema: Mapping[str, Any], locate: Callable[[Place, str], Problem]
) -> Iterator[Problem]:
    """pydantic's findings as problems. `locate` knows which source a place comes from. Values are never repeated."""
    for found in error.errors(include_url=False, include_context=False, include_input=False):
        place: Place = found["loc"]
        kind, message = found["type"], found["msg"]
        if kind == "extra_forbidden":
            message = "unknown key" + did_you_mean(str(place[-1]), _names_at(schema, place[:-1]))
        elif kind == "missing":
            message = "is required"
        elif kind in ("model_type", "model_attributes_type", "dict_type", "mapping_type"):
            message = "must be a mapping of keys"
        message = message.removeprefix("Value error, ").replace("Input should", "should")
        yield locate(place, message)


def _names_at(schema: Mapping[str, Any], place: Place) -> tuple[str, ...]:
    """The keys that a JSON Schema allows at `place`."""
    node: Mapping[str, Any] = schema
    for part in (*place, None):
        while "properties" not in node:
            choices = [*node.get("anyOf", ()), *node.get("allOf", ())]
            if "$ref" in node:
                node = schema["$defs"][node["$ref"].rpartition("/")[2]]
            elif choices:
                node = next((choice for choice in choices if choice.get("type") != "null"), {})
            else:
                break
        if part is None:
            break
        under = node.get("properties", {}).get(part)
        under = under or (node.get("items") if isinstance(part, int) else node.get("additionalProperties"))
        node = under if isinstance(under, Mapping) else {}
    return tuple(node.get("properties", ()))


class _Refused(Exception):
    """Reading cannot go on."""


class _Builder:
    """Builds values from parser events, counting as it goes."""

    def __init__(self, text: str, file: str) -> None:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        self._events: Iterator[Any] = yaml.parse(text, Loader=loader)
        self._file = file
        self._lines: dict[Place, int] = {}
        self._anchors: dict[str, tuple[object, int]] = {}
        self._nodes = 0
        self._problems: list[Problem] = []

    def document(self) -> Document:
        values: object = {}
        try:
            values = self._root()
        except _Refused:
            pass
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark
            self._note(None if mark is None else mark.line, f"is not valid YAML: {error.problem or error.context}")
        except yaml.YAMLError:
            self._note(None, "is not valid YAML: it holds control characters")
        if not self._problems and not isinstance(values, dict):
            self._note(0, "must be a mapping of keys at its top level")
        if self._problems or not isinstance(values, dict):
            raise ConfigError(self._problems)
        return Document(file=self._file, values=values, lines=self._lines)

    def _root(self) -> object:
        values: object = {}
        documents = 0
        for event in self._events:
            line = event.start_mark.line
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self._refuse(line, "holds more than one YAML document")
                values = self._node(next(self._events), (), 0)
        return {} if values is None else values

    def _note(self, line: int | None, message: str, place: Place = ()) -> None:
        shown = None if line is None else line + 1
        self._problems.append(Problem(file=self._file, line=shown, key=dotted(place), message=message))

    def _refuse(self, line: int, message: str) -> NoReturn:
        self._note(line, message)
        raise _Refused

    def _node(self, event: Any, place: Place, depth: int) -> object:
        line = event.start_mark.line
        self._lines.setdefault(place, line + 1)
        before = self._nodes
        self._count(1, line)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, line)
        if depth > MAX_DEPTH:
            self._refuse(line, f"is nested more than {MAX_DEPTH} levels deep")
        value: object
        if isinstance(event, yaml.ScalarEvent):
            value = self._scalar(event, place)
        elif event.tag is not None:
            self._refuse(line, f"YAML tags are not allowed ({event.tag})")
        elif isinstance(event, yaml.SequenceStartEvent):
            value = self._sequence(place, depth)
        else:
            value = self._mapping(place, depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = (value, self._nodes - before)
        return value

    def _count(self, nodes: int, line: int) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            self._refuse(line, f"holds more than {MAX_NODES} values once its aliases are followed")

    def _alias(self, event: Any, line: int) -> object:
        if event.anchor not in self._anchors:
            self._refuse(line, f'unknown alias "*{event.anchor}"')
        value, nodes = self._anchors[event.anchor]
        self._count(nodes, line)
        return value

    def _sequence(self, place: Place, depth: int) -> list[object]:
        items: list[object] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            items.append(self._node(event, (*place, len(items)), depth + 1))
        return items

    def _mapping(self, place: Place, depth: int) -> dict[str, object]:
        values: dict[str, object] = {}
        inherited: list[object] = []
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            line = event.start_mark.line
            if not isinstance(event, yaml.ScalarEvent):
                self._refuse(line, "a key must be plain text")
            key: str = event.value
            if key == "<<" and event.implicit[0]:
                inherited.append(self._node(next(self._events), (*place, key), depth + 1))
                continue
            if key in values:
                self._note(line, f"is stated twice (first on line {self._lines[(*place, key)]})", (*place, key))
            self._lines.setdefault((*place, key), line + 1)
            values[key] = self._node(next(self._events), (*place, key), depth + 1)
        return self._inherit(values, inherited, place)

    def _inherit(self, values: dict[str, object], inherited: list[object], place: Place) -> dict[str, object]:
        """YAML's merge key: what `<<` names, where the mapping itself says nothing."""
        for source in inherited:
            for each in source if isinstance(source, list) else [source]:
                if isinstance(each, dict):
                    values = {**each, **values}
                else:
                    self._note(self._lines[(*place, "<<")] - 1, 'only a mapping can be merged with "<<"', place)
        return values

    def _scalar(self, event: Any, place: Place) -> object:
        text: str = event.value
        if event.tag is not None and event.tag != _STRING_TAG:
            self._note(event.start_mark.line, f"YAML tags are not allowed ({event.tag})", place)
        if event.tag is not None or not event.implicit[0]:
            return text
        if text in _WORDS:
            return _WORDS[text]
        if len(text) > 40:  # first: to see that a long run of digits is no decimal takes time by its square
            return text
        if _INTEGER.fullmatch(text):
            return int(text.replace("_", ""))
        if _HEXADECIMAL.fullmatch(text):
            return int(text, 16)
        if _DECIMAL.fullmatch(text):
            return float(text.replace("_", ""))
        return text


def described(schema: Mapping[str, Any], source: Path) -> dict[str, Any]:
    """`schema`, of a model in the file `source`, with the string below each field as its description.

    pydantic would do it too, but whenever the models are made: it reads their source at every start.
    """
    made = dict(schema)
    models = {made["title"]: made, **made.get("$defs", {})}
    for node in ast.parse(source.read_text("utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name in models:
            properties = models[node.name]["properties"]
            for name, text in _attribute_strings(node):
                properties[name] = dict(sorted({**properties[name], "description": text}.items()))
    return made


def _attribute_strings(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, below in pairwise(node.body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str() as text)):
                yield name, inspect.cleandoc(text)
            case _:
                pass


def render_schema(schema: Mapping[str, Any]) -> str:
    """The committed form of a JSON Schema."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
