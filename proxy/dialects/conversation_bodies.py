"""Requests of OpenAI's Conversations API: what is asked for, and items as the chat messages that they are kept as.

Belongs here: the bodies, read strictly, and the way from items to messages. Never: the way back
(`conversation_items`), or whether anything may be done now. Bounds are that API's.
https://platform.openai.com/docs/api-reference/conversations
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from proxy.core.account import NAME
from proxy.dialects.strict import fail, read_object

MOST_ITEMS: Final = 20
_PAIRS: Final = 16
_KEY: Final = 64
_VALUE: Final = 512
_TURNS: Final = 1_000_000
_WISH: Final = 2_000
_DEPTH: Final = 64
_ROLES: Final = ("user", "assistant", "system", "developer")
_TEXTS: Final = ("input_text", "output_text", "text")
_LEFT_ASIDE: Final = ("reasoning",)
"""Items that clients give back with an answer, and that no model is told again."""


class Wire(msgspec.Struct, frozen=True, kw_only=True):
    """A message that items make, as the chat dialect writes it."""

    role: str
    wire: bytes


class Creation(msgspec.Struct, frozen=True, kw_only=True):
    """What a new conversation is to be. `end_user` None: its first turn says whose it is."""

    metadata: Mapping[str, str]
    messages: tuple[Wire, ...]
    end_user: str | None


class Compacting(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be kept, in one line, and the model that is asked; None: that of the last answer."""

    keep: str
    model: str | None


def creation(body: bytes) -> Creation:
    """Raises Malformed, whose `param` is the member that is wrong."""
    value = _object(body, ("metadata", "items", "user")) if body.strip() else {}
    user = value.get("user")
    if user is not None and (not isinstance(user, str) or not 0 < len(user) <= NAME or "\0" in user):
        raise fail(f"user is one text of 1 to {NAME} characters.", "user", "out_of_range")
    said = value.get("items")
    messages = () if said is None else _messages(said, frozenset())
    return Creation(metadata=_metadata(value.get("metadata")), messages=messages, end_user=user)


def description(body: bytes) -> Mapping[str, str]:
    """The metadata that replace a conversation's. Raises Malformed."""
    value = _object(body, ("metadata",))
    if "metadata" not in value:
        raise fail("metadata is required.", "metadata", "missing_required_parameter")
    return _metadata(value["metadata"])


def addition(body: bytes, open: frozenset[str]) -> tuple[Wire, ...]:
    """The messages that are put behind a conversation, in which the calls `open` have no result yet. Raises
    Malformed."""
    value = _object(body, ("items",))
    if "items" not in value:
        raise fail("items is required.", "items", "missing_required_parameter")
    return _messages(value["items"], open)


def going_back(body: bytes) -> int:
    """How many turns are taken back. Raises Malformed."""
    turns = _object(body, ("turns",)).get("turns")
    if turns is None:
        raise fail("turns is required.", "turns", "missing_required_parameter")
    if isinstance(turns, bool) or not isinstance(turns, int):
        raise fail("turns is a whole number.", "turns", "invalid_type")
    if not 1 <= turns <= _TURNS:
        raise fail(f"turns is from 1 to {_TURNS}.", "turns", "out_of_range")
    return turns


def compacting(body: bytes) -> Compacting:
    """What is asked of a compaction. Raises Malformed."""
    value = _object(body, ("keep", "model")) if body.strip() else {}
    for name in ("keep", "model"):
        if value.get(name) is not None and not isinstance(value[name], str):
            raise fail(f"{name} is a text.", name, "invalid_type")
    keep = " ".join((value.get("keep") or "").split())
    if len(keep) > _WISH:
        raise fail(f"keep has at most {_WISH} characters.", "keep", "out_of_range")
    return Compacting(keep=keep, model=value.get("model") or None)


# -- members ----------------------------------------------------------------------------------------------------------


def _object(body: bytes, known: tuple[str, ...]) -> dict[str, Any]:
    return read_object(body, known, _DEPTH)


def _metadata(value: Any) -> Mapping[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        raise fail("metadata is an object of texts.", "metadata", "invalid_type")
    if len(value) > _PAIRS:
        raise fail(f"metadata has at most {_PAIRS} pairs.", "metadata", "out_of_range")
    if any(len(key) > _KEY or len(said) > _VALUE for key, said in value.items()):
        raise fail(f"metadata has keys of at most {_KEY} and values of at most {_VALUE} characters.", "metadata",
                   "out_of_range")  # fmt: skip
    return value


# -- items ------------------------------------------------------------------------------------------------------------


def _messages(value: Any, open: frozenset[str]) -> tuple[Wire, ...]:
    if not isinstance(value, list):
        raise fail("items is a list.", "items", "invalid_type")
    if len(value) > MOST_ITEMS:
        raise fail(f"At most {MOST_ITEMS} items are taken at a time.", "items", "out_of_range")
    reading = _Reading(open)
    for place, item in enumerate(value):
        reading.take(item, f"items[{place}]")
    return tuple(Wire(role=made["role"], wire=msgspec.json.encode(made)) for made in reading.made)


class _Reading:
    """Items become messages one by one: calls stand in the assistant's message before them, as the chat dialect has
    it, and a result answers a call that is open."""

    def __init__(self, open: frozenset[str]) -> None:
        self.made: list[dict[str, Any]] = []
        self._open = set(open)

    def take(self, item: Any, param: str) -> None:
        if not isinstance(item, dict):
            raise fail("An item is an object.", param, "invalid_type")
        kind = item.get("type", "message")
        if kind == "message":
            said = _message(item, param)
            if said["role"] != "developer" and said["role"] != "system":
                self._open.clear()
            self.made.append(said)
        elif kind == "function_call":
            self._call(item, param)
        elif kind == "function_call_output":
            self._result(item, param)
        elif kind not in _LEFT_ASIDE:
            raise fail(
                "Items are message, function_call, function_call_output and reasoning.",
                f"{param}.type",
                "invalid_items",
            )

    def _call(self, item: dict[str, Any], param: str) -> None:
        id, name = _text(item, "call_id", param), _text(item, "name", param)
        arguments = item.get("arguments", "{}")
        if not isinstance(arguments, str):
            raise fail("arguments is JSON as text.", f"{param}.arguments", "invalid_type")
        call = {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
        if not self.made or self.made[-1]["role"] != "assistant":
            self.made.append({"role": "assistant", "content": None})
            self._open.clear()
        if id in self._open:
            raise fail("Two calls have one id.", f"{param}.call_id", "invalid_items")
        self.made[-1].setdefault("tool_calls", []).append(call)
        self._open.add(id)

    def _result(self, item: dict[str, Any], param: str) -> None:
        id = _text(item, "call_id", param)
        if id not in self._open:
            raise fail("The call of this result is not open.", f"{param}.call_id", "invalid_items")
        self._open.discard(id)
        output = item.get("output")
        content = output if isinstance(output, str) else _content(output, "tool", f"{param}.output")
        self.made.append({"role": "tool", "tool_call_id": id, "content": content})


def _message(item: Mapping[str, Any], param: str) -> dict[str, Any]:
    role = item.get("role")
    if role not in _ROLES:
        raise fail(f"role is one of {', '.join(_ROLES)}.", f"{param}.role", "invalid_items")
    said = item.get("content")
    if isinstance(said, str):
        return {"role": role, "content": said}
    if role == "assistant" and isinstance(said, list):
        refused = [part for part in said if isinstance(part, dict) and part.get("type") == "refusal"]
        if refused and len(refused) == len(said) == 1:
            return {"role": role, "content": None, "refusal": _text(refused[0], "refusal", f"{param}.content[0]")}
    return {"role": role, "content": _content(said, role, f"{param}.content")}


def _content(value: Any, role: str, param: str) -> str | Sequence[Mapping[str, Any]]:
    """One text as a text, anything else as its parts."""
    if not isinstance(value, list) or not value:
        raise fail("What is said is a text, or a list of parts.", param, "invalid_type")
    parts = [_part(part, role, f"{param}[{place}]") for place, part in enumerate(value)]
    first: Any = parts[0]
    return first["text"] if len(parts) == 1 and first["type"] == "text" else parts


def _part(part: Any, role: str, param: str) -> Mapping[str, Any]:
    if not isinstance(part, dict):
        raise fail("A part is an object.", param, "invalid_type")
    kind = part.get("type")
    if kind in _TEXTS:
        if not isinstance(part.get("text"), str):
            raise fail("text is a text.", f"{param}.text", "invalid_type")
        return {"type": "text", "text": part["text"]}
    if kind == "refusal" and role == "assistant":
        return {"type": "refusal", "refusal": _text(part, "refusal", param)}
    if kind == "input_image" and role != "assistant":
        detail = part.get("detail")
        if detail is not None and not isinstance(detail, str):
            raise fail("detail is a text.", f"{param}.detail", "invalid_type")
        url = {"url": _text(part, "image_url", param), **({"detail": detail} if detail else {})}
        return {"type": "image_url", "image_url": url}
    if kind == "input_file" and role != "assistant":
        names = [name for name in ("file_data", "file_id", "filename") if part.get(name) is not None]
        file = {name: _text(part, name, param) for name in names}
        if "file_data" not in file and "file_id" not in file:
            raise fail("A file is given by file_data or file_id.", param, "invalid_items")
        return {"type": "file", "file": file}
    raise fail("A part is input_text, output_text, refusal, input_image or input_file.", f"{param}.type",
               "invalid_items")  # fmt: skip


def _text(item: Mapping[str, Any], name: str, param: str) -> str:
    value = item.get(name)
    if value is None or value == "":
        raise fail(f"{name} is required.", f"{param}.{name}", "missing_required_parameter")
    if not isinstance(value, str):
        raise fail(f"{name} is a text.", f"{param}.{name}", "invalid_type")
    return value
