"""The members of a JSON body, one level deep and raw: what a gateway forwards it must not re-encode.

Opened strictly (UTF-8, one object, no member twice, bounded depth), so that what is forwarded unread is what we took
it for. Members that would steer the gateway's own call (addresses, keys, headers) are refused at any depth.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from proxy.dialects.strict import check_depth, check_unique, check_utf8, fail, without_lone_surrogates

_FORBIDDEN: Final = frozenset(
    "api_base base_url api_key api_version headers extra_headers default_headers host custom_llm_provider "
    "organization_key proxy proxies user_config litellm_params callbacks success_callback failure_callback".split()
)
_TOP: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LIST: Final = msgspec.json.Decoder(list[msgspec.Raw])
_ANY: Final = msgspec.json.Decoder()
_DECODERS: Final[Mapping[type, msgspec.json.Decoder[Any]]] = MappingProxyType(
    {kind: msgspec.json.Decoder(kind) for kind in (str, bool, int, dict)}
)
_PROBE: Final = 256
_NESTED: Final = b"{["
_NAME: Final = re.compile(rb'[\s,{]*+"[^"\\]*+(?:\\.[^"\\]*+)*+"\s*+:\s*+', re.DOTALL)
"""A member's name, with what stands before it and the value after it."""


def open_members(
    body: bytes, depth: int, arrays: tuple[str, ...] = (), unread: tuple[str, ...] = ()
) -> tuple[dict[str, bytes], dict[str, tuple[bytes, ...]]]:
    """The members of `body`, and the elements of those named in `arrays`, all as they came. Raises Malformed.

    The depth and the duplicates in `arrays` and `unread` are left to whoever reads those.
    """
    check_utf8(body)
    shadow = body
    try:
        try:
            top = _TOP.decode(body)
        except msgspec.ValidationError:
            raise fail("The body is not a JSON object.") from None
        except msgspec.DecodeError:
            shadow = without_lone_surrogates(body)
            if shadow is body:
                raise
            top = _TOP.decode(shadow)
        fields = {name: bytes(raw) for name, raw in top.items()}
        listed = {}
        for name in arrays:
            if present(fields, name):
                listed[name] = elements(fields[name], name)
    except (msgspec.DecodeError, RecursionError):
        raise fail("The body is not valid JSON.") from None
    _check(shadow, fields, depth, (*arrays, *unread))
    return (fields, listed) if shadow is body else _original(body, shadow, fields, listed)


def present(fields: Mapping[str, bytes], name: str) -> bool:
    """Whether a member is there and not null."""
    return name in fields and fields[name] != b"null"


def typed(fields: Mapping[str, bytes], name: str, kind: type) -> Any:
    """The value of a member, None where it is absent or null. Raises Malformed on another type."""
    raw = fields.get(name)
    if raw is None or raw == b"null":
        return None
    return _read(raw, name, _DECODERS[kind])


def elements(raw: bytes, name: str) -> tuple[bytes, ...]:
    """The elements of an array, raw. Raises Malformed where it is none."""
    try:
        return tuple(map(bytes, _LIST.decode(raw)))
    except msgspec.ValidationError:
        raise fail(f"{name} is not an array.", name, "invalid_type") from None


def stated(fields: Mapping[str, bytes], kinds: Mapping[str, type]) -> dict[str, Any]:
    """The values of those members of `kinds` that are there and not null. Raises Malformed on another type."""
    found: dict[str, Any] = {}
    for name, raw in fields.items():
        kind = kinds.get(name)
        if kind is not None and raw != b"null":
            found[name] = _read(raw, name, _DECODERS[kind])
    return found


def ranged(value: int | None, name: str, least: int, most: int) -> int | None:
    """`value`, a whole number between `least` and `most` where it is stated. Raises Malformed."""
    if value is not None and not least <= value <= most:
        raise fail(f"{name} is out of range.", name, "out_of_range")
    return value


def refuse_routing(fields: Mapping[str, bytes], but: Collection[str]) -> None:
    """Raises Malformed where a member says where or as whom the gateway should call (research/reliability.md I-13).

    Members named in `but` are content and may hold any name.
    """
    for name, raw in fields.items():
        if name in but:
            continue
        found = name if name in _FORBIDDEN else None
        if found is None and raw[0] in _NESTED:
            found = _forbidden_inside(_value(raw, name))
        if found is not None:
            raise fail("A request may not say where or as whom it is sent.", found, "unknown_parameter")


def _read(raw: bytes, name: str, decoder: msgspec.json.Decoder[Any]) -> Any:
    try:
        return decoder.decode(without_lone_surrogates(raw))
    except msgspec.DecodeError:
        raise fail(f"{name} has the wrong type.", name, "invalid_type") from None


def _value(raw: bytes, name: str) -> Any:
    try:
        return _ANY.decode(without_lone_surrogates(raw))
    except (msgspec.DecodeError, RecursionError):  # a number that no double holds
        raise fail("The body is not valid JSON.", name) from None


def _original(
    body: bytes, shadow: bytes, fields: dict[str, bytes], listed: dict[str, tuple[bytes, ...]]
) -> tuple[dict[str, bytes], dict[str, tuple[bytes, ...]]]:
    """The same slices out of the body as it came: `shadow` differs from it in no length."""
    found: dict[str, bytes] = {}
    place = 0
    for name, raw in fields.items():
        named = _NAME.match(shadow, place)
        start = named.end() if named else place
        place = start + len(raw)
        found[name] = body[start:place]
    elements: dict[str, tuple[bytes, ...]] = {}
    for name, raws in listed.items():
        inner = 0
        slices: list[bytes] = []
        for raw in raws:
            inner = fields[name].find(raw, inner)
            slices.append(found[name][inner : inner + len(raw)])
            inner += len(raw)
        elements[name] = tuple(slices)
    return found, elements


def _check(body: bytes, fields: dict[str, bytes], depth: int, but: Collection[str]) -> None:
    """Depth and duplicates of everything but the members named in `but`, which are checked where they are read."""
    exact = 1
    for name, raw in fields.items():
        exact += len(name) + len(raw) + 4
        if raw[0] in _NESTED and name not in but:
            check_depth(raw, depth, name)
            check_unique(raw, name)
    if len(body) == exact or not fields:
        return
    # Blanks between members, a name with escapes, or a member given twice: look closely, a long member left out.
    longest = max(fields.values(), key=len)
    if len(longest) < _PROBE or longest[0] not in _NESTED:
        check_unique(body)
        return
    start = body.find(longest[:_PROBE])
    if not body.startswith(longest, start):
        start = body.find(longest)
    check_unique(body[:start] + b"0" + body[start + len(longest) :])


def _forbidden_inside(value: Any) -> str | None:
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            for name, inner in item.items():
                if name in _FORBIDDEN:
                    return str(name)
                stack.append(inner)
        elif isinstance(item, list):
            stack.extend(item)
    return None
