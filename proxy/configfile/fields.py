"""Kinds of single values in configuration: secrets, sizes, seconds, shares, addresses.

Belongs here: what one value must look like, whichever file holds it, and how it shows itself. Never: names of keys,
defaults, or rules between several values. Each refusal says what is expected and never repeats what was given.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema
from pydantic_core import core_schema

_UNITS: Mapping[str, int] = {"": 1, "b": 1, "kib": 1024, "mib": 1024**2, "gib": 1024**3, "kb": 10**3, "mb": 10**6}
_SIZE = re.compile(r"\s*([0-9][0-9_]*)\s*([A-Za-z]*)\s*")
_POSTGRES = re.compile(r"postgres(?:ql)?://(?:[^\s/?#@]+@)?[^\s/?#@]*/[^\s/?#@]+(?:\?[^\s#]*)?", re.ASCII)
"""Several hosts may stand in it, as `host1:5432,host2:5432`. What has a meaning in addresses is written as %XX."""
_FIELD_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_OWN_HEADERS = frozenset(
    {
        "accept-encoding",
        "authorization",
        "connection",
        "content-length",
        "content-type",
        "host",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)


class Secret:
    """A text that shows itself as `***` wherever it is printed, logged or encoded. `reveal` gives it away."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __str__(self) -> str:
        return "***"

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return format("***", spec)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a secret is not copied to disk or to another process")

    def __deepcopy__(self, memo: object) -> Secret:
        return self

    @classmethod
    def read(cls, value: object) -> Secret:
        if isinstance(value, Secret):
            return value
        if not isinstance(value, str):
            raise ValueError("must be text (put it in quotes)")
        if not value.strip():
            raise ValueError("is empty")
        if not value.isascii() or not value.isprintable() or value != value.strip():
            raise ValueError("must be printable ASCII without spaces around it")
        return cls(value)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> core_schema.CoreSchema:
        shown = core_schema.plain_serializer_function_ser_schema(str)
        return core_schema.no_info_plain_validator_function(cls.read, serialization=shown)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: object, handler: object) -> dict[str, Any]:
        return {"type": "string", "minLength": 1, "writeOnly": True}


def number(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("should be a number, not true or false")
    return value


def switch(section: type[BaseModel]) -> BeforeValidator:
    """What may be switched: on is `section` with its defaults, off is None."""

    def switched(value: object) -> object:
        # YAML 1.1 reads the words as truth values.
        if value is True or value == "on":
            return {}
        return None if value is False or value == "off" else value

    return BeforeValidator(switched, json_schema_input_type=section | Literal["on", "off"] | bool | None)


def _size(value: object) -> object:
    if not isinstance(value, str):
        return number(value)
    match = _SIZE.fullmatch(value)
    if match is None or match[2].lower() not in _UNITS:
        raise ValueError('should be a number of bytes, or a number with KiB, MiB or GiB, such as "64 MiB"')
    return int(match[1].replace("_", "")) * _UNITS[match[2].lower()]


def base_url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or not value.isascii() or not value.isprintable():
        raise ValueError("should be an http:// or https:// address")
    if parts.username is not None or parts.password is not None:
        raise ValueError("must not hold a user name or password; use api_key or headers")
    if parts.query or parts.fragment or " " in value:
        raise ValueError("must not hold spaces, a query or a fragment")
    _ = parts.port  # raises ValueError where it is out of range
    return value.rstrip("/")


def store_url(value: str) -> str:
    if value.startswith(("postgresql://", "postgres://")):
        if not _POSTGRES.fullmatch(value) or not value.isascii():
            raise ValueError("should be postgresql://user:password@host/database, special characters as %XX")
    elif not value.startswith("sqlite:///") or value == "sqlite:///":
        raise ValueError(
            "should be sqlite:///path (relative to the working directory), sqlite:////absolute/path or "
            "postgresql://user:password@host/database"
        )
    return value


def header_names(value: Mapping[str, Secret]) -> Mapping[str, Secret]:
    if not all(map(_FIELD_NAME.fullmatch, value)):
        raise ValueError("holds something that is not a header name")
    return value


def upstream_headers(value: Mapping[str, Secret]) -> Mapping[str, Secret]:
    for name in header_names(value):
        if name.lower() in _OWN_HEADERS:
            raise ValueError(f"{name.lower()} is the gateway's own to set (a key belongs in api_key)")
    return value


T = TypeVar("T")
Table = Annotated[Mapping[str, T], AfterValidator(MappingProxyType), PlainSerializer(dict)]
Seconds = Annotated[float, Field(ge=0, le=604_800, allow_inf_nan=False), BeforeValidator(number)]
Positive = Annotated[float, Field(gt=0, le=604_800, allow_inf_nan=False), BeforeValidator(number)]
Count = Annotated[int, Field(ge=1, le=1_000_000_000), BeforeValidator(number)]
Port = Annotated[int, Field(ge=0, le=65_535), BeforeValidator(number)]
Tries = Annotated[int, Field(ge=1, le=5), BeforeValidator(number)]
Size = Annotated[
    int,
    BeforeValidator(_size),
    Field(ge=1),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": "^\\s*[0-9_]+\\s*[A-Za-z]*\\s*$"}]}
    ),
]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False), BeforeValidator(number)]
Factor = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False), BeforeValidator(number)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$")]
Pattern = Annotated[str, Field(min_length=1, max_length=256)]


def nothing() -> Mapping[str, Any]:
    """The empty table, as a default (a default written as a value would be copied, which a frozen table refuses)."""
    return MappingProxyType({})


class Section(BaseModel):
    """A frozen group of keys that refuses unknown ones; the string below a field is its description (`described`)."""

    # defer_build: most sections are only ever checked as part of the whole, and need no check of their own.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, defer_build=True)
