"""A chat completions request: bytes to a `Call`, and a `Prompt` back to the bytes that go upstream.

The body is opened one level deep: members and messages stay raw. What the gateway does not change is sent on as it
came; what it does not know survives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from proxy.core.conversation import Message
from proxy.core.errors import Malformed
from proxy.core.measure import estimate
from proxy.core.policy import Mode
from proxy.core.steps import Call, Caller, Prompt
from proxy.dialects.chat.messages import write_message
from proxy.dialects.members import open_members, present, ranged, refuse_routing, typed
from proxy.dialects.strict import fail

Read = Callable[[bytes, int], Message]
"""Decodes message `index` from its bytes; the gateway gives a caching one."""

_OUTPUT_FIELDS: Final = ("max_completion_tokens", "max_tokens")
_HEADER_LABELS: Final = (
    "x-session-id",
    "session-id",
    "thread-id",
    "session_id",
    "x-claude-code-session-id",
    "x-openwebui-chat-id",
)
_MODE: Final = "x-weirgate-mode"
HEADERS: Final = frozenset(name.encode() for name in (*_HEADER_LABELS, _MODE))
"""Names of the headers that `decode_call` reads."""
_METADATA_LABELS: Final = ("session_id", "conversation_id", "thread_id", "chat_id")


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one request (research/reliability.md 4.2 with DESIGN 13's changes)."""

    messages: int = 20_000
    tools: int = 128
    depth: int = 64
    choices: int = 8


def decode_call(
    body: bytes, caller: Caller, read: Read, headers: Mapping[str, str], bounds: Bounds | None = None
) -> Call:
    """The call that `body` makes. `headers` have lower-case names. Raises Malformed."""
    bounds = bounds or Bounds()
    fields, arrays = open_members(body, bounds.depth, ("messages", "tools"))
    raws = arrays.get("messages", ())
    model = typed(fields, "model", str)
    if not model:
        raise fail("The request names no model.", "model", "missing_required_parameter")
    if "messages" not in fields:
        raise fail("The request has no messages.", "messages", "missing_required_parameter")
    if not raws:
        raise fail("messages is empty.", "messages", "invalid_messages")
    if len(raws) > bounds.messages:
        raise fail(f"More than {bounds.messages} messages.", "messages", "out_of_range")
    refuse_routing(fields, but=("messages", "tools", "functions", "response_format"))
    tools = b"".join(bytes(fields[name]) for name in ("tools", "functions") if name in fields)
    if tools and len(arrays.get("tools", ())) > bounds.tools:
        raise fail(f"More than {bounds.tools} tools.", "tools", "out_of_range")
    output_field = next((name for name in _OUTPUT_FIELDS if present(fields, name)), "max_tokens")
    stream_options = typed(fields, "stream_options", dict) or {}
    end_user = typed(fields, "safety_identifier", str) or typed(fields, "user", str)
    messages = tuple(read(raw, index) for index, raw in enumerate(raws))
    return Call(
        caller=msgspec.structs.replace(caller, end_user=end_user[:256]) if end_user else caller,
        model=model,
        messages=messages,
        fields=fields,
        body=body,
        tools=tools,
        tools_tokens=estimate(tools.decode("utf-8", "replace")) if tools else 0,
        stream=bool(typed(fields, "stream", bool)),
        include_usage=stream_options.get("include_usage") is True,
        max_output=ranged(fields, output_field, 1, 1 << 31),
        output_field=output_field,
        choices=ranged(fields, "n", 1, bounds.choices) or 1,
        label=_label(headers, fields),
        mode=_mode(headers),
        store=typed(fields, "store", bool) is not False,
    )


def encode_prompt(call: Call, prompt: Prompt, model: str) -> bytes:
    """The body that goes upstream: the client's own bytes where nothing differs, else its members one by one."""
    ask_usage = call.stream and not call.include_usage and not prompt.verbatim
    same_output = prompt.max_output == call.max_output
    if prompt.untouched and model == call.model and same_output and not ask_usage:
        return call.body
    parts: list[bytes] = []
    for name, raw in call.fields.items():
        if name == "messages":
            value = raw if prompt.untouched else b"[" + b",".join(map(write_message, prompt.messages)) + b"]"
        elif name == "model":
            value = msgspec.json.encode(model)
        elif name == "stream_options" and ask_usage:
            continue
        elif name in _OUTPUT_FIELDS and not same_output:
            if prompt.max_output is None:
                continue
            value = str(min(prompt.max_output, _bound(raw))).encode()
        else:
            value = raw
        parts.append(msgspec.json.encode(name) + b":" + value)
    if ask_usage:
        options = dict(typed(call.fields, "stream_options", dict) or {})
        parts.append(b'"stream_options":' + msgspec.json.encode({**options, "include_usage": True}))
    return b"{" + b",".join(parts) + b"}"


def _bound(raw: bytes) -> int:
    """The limit that a member states; none where it is null."""
    return int(raw) if raw.isdigit() else 1 << 31


def _label(headers: Mapping[str, str], fields: Mapping[str, bytes]) -> str | None:
    """The conversation id that the client states, in DESIGN's order. It groups; it never keys state."""
    for name in _HEADER_LABELS:
        value = headers.get(name)
        if value:
            return value[:200]
    metadata = fields.get("metadata")
    if metadata is not None and metadata[:1] == b"{":
        values = typed(fields, "metadata", dict)
        for name in _METADATA_LABELS:
            value = values.get(name)
            if isinstance(value, str) and value:
                return value[:200]
    key = typed(fields, "prompt_cache_key", str)
    return key[:200] if key else None


def _mode(headers: Mapping[str, str]) -> Mode | None:
    value = headers.get(_MODE)
    if value is None:
        return None
    try:
        return Mode(value.strip().lower())
    except ValueError:
        raise Malformed(f"{_MODE} is enforce, observe or off.", code="out_of_range", param=_MODE) from None
