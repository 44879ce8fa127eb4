"""Unwrap a provider's answer into what may be searched: one normalised text, codes, statuses and numbers by name.

Here stands where providers put an error text (research/overflow_errors.md, steps 1 and 2), and what is never looked at:
the content of a success, and echoed user input. No judgement: that is `overflow`. Every step is bounded (bytes parsed,
nesting, strings, characters searched), because a body may be hostile, huge or both; nothing here raises.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Iterator, Mapping

import msgspec

PARSED = 1 << 20
"""Bytes of a body that are parsed as JSON; of a longer one the ends are searched as text."""
SEARCHED = 16_000
"""Characters of text that the patterns see in all."""
_HEAD, _TAIL = 6_000, 2_000
_LEAVES = 300
_DEPTH = 12
_INNER = 3
_STARTS = 6

_CONTENT = frozenset(
    "arguments candidates choices content delta generated_text input instructions item messages output part prompt "
    "results text thinking tool_calls tools".split()
)
"""Members that hold what people and models said."""
_STATUS_KEYS = frozenset(
    "code http_code http_status http_status_code originalstatuscode status status_code statuscode".split()
)
_CODE_KEYS = frozenset({"code", "err_code", "error_code", "errorcode", "status_code"})
_SPACE = re.compile(r"\s+")
_URL = re.compile(r"https?://[^\s\"'<>)\]}]{1,400}")
_TAG = re.compile(r"<[a-z/!][^<>]{0,300}>", re.IGNORECASE)
_SSE = re.compile(r"(?:data|event|error|id|retry)?:", re.IGNORECASE)
_SSE_LINE = re.compile(r"^(?:data|error):[ \t]?(.*)$", re.IGNORECASE | re.MULTILINE)
_QUOTES = str.maketrans(dict.fromkeys("`\"'\\*\u2018\u2019\u201c\u201d\u2032"))
_JSON = json.JSONDecoder()


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What may be searched. `text` is lower case, without quotes, URLs and markup, one line per string found.

    `codes` are short strings without blanks (codes, types, reasons) and the numbers of code members, `statuses` HTTP
    statuses stated inside the body, `numbers` integers by the lower-case name of their member.
    """

    text: str = ""
    codes: frozenset[str] = frozenset()
    statuses: frozenset[int] = frozenset()
    numbers: Mapping[str, int] = msgspec.field(default_factory=dict)

    @property
    def empty(self) -> bool:
        return not self.text.strip()


def gather(body: bytes, *, failed: bool) -> Evidence:
    """The evidence in `body`. `failed` tells whether the status said failure; without it only stated errors count."""
    if len(body) > PARSED:
        body = body[:_HEAD] + b"\n" + body[-_TAIL:]
    text = body.decode("utf-8", "replace").lstrip("\ufeff").strip()
    value = _parse(text)
    collector = _Collector()
    if value is None and _SSE.match(text):
        for payload in _SSE_LINE.findall(text)[:_LEAVES]:
            frame = _parse(payload)
            collector.take(frame if failed or frame is None else _stated(frame), loose=payload if failed else "")
    elif failed:
        collector.take(value, loose=text)
    elif value is not None:
        collector.take(_stated(value))
    return collector.evidence()


def normalise(text: str) -> str:
    """Lower case, without URLs, markup and quotes, white space collapsed: what all patterns are written for."""
    text = _URL.sub(" ", text)
    if "<" in text:
        text = html.unescape(_TAG.sub(" ", text))
    return _SPACE.sub(" ", text.translate(_QUOTES).lower()).strip()


def _parse(text: str) -> object:
    """JSON of `text` as a container, else None."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value


def _stated(value: object) -> object:
    """The parts of a body with a success status that report an error; all else is content and stays unread."""
    if isinstance(value, list):
        return [_stated(item) for item in value[:_LEAVES] if isinstance(item, dict)]
    if not isinstance(value, dict):
        return None
    found: list[object] = [
        item for key, item in value.items() if item and key.lower().endswith(("error", "errors", "exception"))
    ]
    found += [value[key] for key in ("base_resp", "header") if isinstance(value.get(key), dict)]
    response = value.get("response")
    if isinstance(response, dict):
        found.append(response.get("error"))
    choices = value.get("choices")
    if isinstance(choices, list):
        found += [choice.get("error") for choice in choices[:8] if isinstance(choice, dict)]
    if _flat(value):
        found.append(value)
    return found


def _flat(value: Mapping[str, object]) -> bool:
    """A flat error object: a message beside a code, and nothing that an answer would have."""
    if "response" in value or not _CONTENT.isdisjoint(value):
        return False
    says = any(isinstance(value.get(key), str) for key in ("message", "error_msg", "msg", "detail"))
    coded = any(key in value for key in ("code", "error_code", "status"))
    return says and (coded or "error" in (value.get("object"), value.get("type")))


class _Collector:
    """Fills an Evidence within the bounds above."""

    def __init__(self) -> None:
        self._texts: dict[str, None] = {}
        self._room = SEARCHED
        self._left = _LEAVES
        self._codes: set[str] = set()
        self._statuses: set[int] = set()
        self._numbers: dict[str, int] = {}

    def evidence(self) -> Evidence:
        return Evidence(
            text="\n".join(self._texts),
            codes=frozenset(self._codes),
            statuses=frozenset(self._statuses),
            numbers=self._numbers,
        )

    def take(self, value: object, *, loose: str = "") -> None:
        """Collect from `value`, or where it is None from the text `loose`."""
        leaves: Iterable[tuple[str, object]] = [("", loose)] if value is None else _leaves(value)
        self._take(leaves, _INNER)

    def _take(self, leaves: Iterable[tuple[str, object]], inner: int) -> None:
        for key, leaf in leaves:
            self._left -= 1
            if self._left < 0:
                return
            if isinstance(leaf, str):
                self._string(key, leaf, inner)
            elif isinstance(leaf, int) and not isinstance(leaf, bool):
                self._number(key, leaf)

    def _number(self, key: str, value: int) -> None:
        if key in _CODE_KEYS:
            self._codes.add(str(min(abs(value), 10**9)))
        if key in _STATUS_KEYS and 400 <= value < 600:
            self._statuses.add(value)
        self._numbers.setdefault(key, value)

    def _string(self, key: str, value: str, inner: int) -> None:
        if not value:
            return
        if len(value) <= 80 and not _SPACE.search(value):
            self._codes.add(value.lower())
            if value.isascii() and value.isdecimal() and len(value) == 3 and key in _STATUS_KEYS:
                self._number(key, int(value))
        parsed = list(_embedded(value)) if inner else []
        for item in parsed:
            self._take(_leaves(item), inner - 1)
        # A string that is JSON through and through was read above; its raw form would only repeat it.
        if not (parsed and value.lstrip()[:1] in ("{", "[")) or value.rstrip()[-1:] not in ("}", "]"):
            self._text(value)

    def _text(self, value: str) -> None:
        if self._room <= 0:
            return
        if len(value) > _HEAD + _TAIL:
            value = value[:_HEAD] + " \n" + value[-_TAIL:]
        text = normalise(value)[: self._room]
        if text not in self._texts:
            self._texts[text] = None
            self._room -= len(text) + 1


def _embedded(text: str) -> Iterator[object]:
    """JSON containers inside a string: relays wrap the provider's body in prose, before it and behind it."""
    position, tries = 0, 0
    while tries < _STARTS:
        starts = [at for at in (text.find("{", position), text.find("[", position)) if at >= 0]
        if not starts:
            return
        tries += 1
        start = min(starts)
        try:
            value, position = _JSON.raw_decode(text, start)
        except (ValueError, RecursionError):
            position = start + 1
        else:
            if value and not (isinstance(value, list) and all(isinstance(item, int) for item in value)):
                yield value


def _leaves(value: object) -> Iterator[tuple[str, object]]:
    """Strings and numbers below `value` with the lower-case name of their member, in order, echoed input left out."""
    stack: list[tuple[str, object, int]] = [("", value, 0)]
    while stack:
        key, item, depth = stack.pop()
        if isinstance(item, dict):
            if depth < _DEPTH:
                members = [(str(k).lower(), v, depth + 1) for k, v in list(item.items())[:_LEAVES]]
                stack.extend(m for m in reversed(members) if m[0] not in _CONTENT)
        elif isinstance(item, list):
            if depth < _DEPTH:
                stack.extend((key, v, depth + 1) for v in reversed(item[:_LEAVES]))
        else:
            yield key, item
