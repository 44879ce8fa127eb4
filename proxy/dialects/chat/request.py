"""A chat completions request: bytes to a `Call`, and a `Prompt` back to the bytes that go upstream.

The body is opened one level deep: members and messages stay raw. What the gateway does not change is sent on as it
came; what it does not know survives.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping
from functools import partial
from hashlib import blake2b
from types import MappingProxyType
from typing import Final, Protocol

import msgspec

from proxy.core.conversation import Message
from proxy.core.errors import Malformed
from proxy.core.measure import estimate
from proxy.core.past import Past
from proxy.core.policy import Mode
from proxy.core.steps import Call, Caller, Prompt
from proxy.dialects.chat.messages import write_message
from proxy.dialects.members import elements, open_members, ranged, refuse_routing, stated, typed
from proxy.dialects.strict import check_depth, check_unique, fail, without_lone_surrogates

Read = Callable[[bytes, int], Message]
"""Decodes message `index` from its bytes; the gateway gives a caching one."""

Decoding = Generator[None, None, Call]
"""A call being read; it returns it."""

_STEP: Final = 64 * 1024
"""Bytes of messages that are read without a pause: about half a millisecond."""
_MESSAGE: Final = 1024
"""What a message costs beside its own, as bytes."""

_COMPLETION: Final = "max_completion_tokens"
_TOKENS: Final = "max_tokens"
_OUTPUT_FIELDS: Final = (_COMPLETION, _TOKENS)
_HEADER_LABELS: Final = (
    "x-session-id",
    "session-id",
    "thread-id",
    "session_id",
    "x-claude-code-session-id",
    "x-openwebui-chat-id",
)
_REASONING: Final = re.compile(r"(?:^|/)(?:o[1-9]|gpt-5)")
_LABELS: Final = frozenset(_HEADER_LABELS)
_MODE: Final = "x-weirgate-mode"
_CHANNEL: Final = "x-weirgate-channel"
_LANGUAGE: Final = "accept-language"
HEADERS: Final = frozenset(name.encode() for name in (*_HEADER_LABELS, _MODE, _CHANNEL, _LANGUAGE))
"""Names of the headers that `decode_call` reads."""
_KINDS: Final[Mapping[str, type]] = MappingProxyType(
    {
        "model": str,
        "stream": bool,
        "stream_options": dict,
        "max_completion_tokens": int,
        "max_tokens": int,
        "n": int,
        "store": bool,
        "user": str,
        "safety_identifier": str,
    }
)
"""The members that are read beside the messages and the tools."""
_ARRAYS: Final = ("messages",)
_UNREAD: Final = ("tools",)
_CONTENT: Final = frozenset(("messages", "tools", "functions", "response_format"))
_USER: Final = 256
_LABEL: Final = 200
"""Characters of an end user's name and of a label that are kept."""
_METADATA_LABELS: Final = ("session_id", "conversation_id", "thread_id", "chat_id")


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one request (research/reliability.md 4.2 with DESIGN 13's changes)."""

    messages: int = 20_000
    tools: int = 128
    depth: int = 64
    choices: int = 8


class Tools(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Tool definitions as they came, checked: their estimated size and their identity."""

    wire: bytes
    tokens: int
    digest: bytes


_NO_TOOLS: Final = Tools(wire=b"", tokens=0, digest=b"")


class Beginning(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The messages that a body begins with, known from an earlier one: `body[start:end]` are their bytes, the comma
    behind the last included. `mark` is a JSON string that no client can know."""

    past: Past
    start: int
    end: int
    mark: bytes


class Remembers(Protocol):
    """What earlier calls of the same caller left known; a gateway has it, and no result depends on it."""

    def tools(self, wire: bytes, read: Callable[[bytes], Tools]) -> Tools:
        """`read`, or what it made of the same bytes before."""

    def beginning(self, body: bytes) -> Beginning | None:
        """What of the messages is known; never all of them."""


def decode_call(
    body: bytes,
    caller: Caller,
    read: Read,
    headers: Mapping[str, str],
    bounds: Bounds | None = None,
    memory: Remembers | None = None,
) -> Call:
    """The call that `body` makes. `headers` have lower-case names. Raises Malformed."""
    work = decoding(body, caller, read, headers, bounds, memory)
    while True:
        try:
            next(work)
        except StopIteration as end:
            call: Call = end.value
            return call


def decoding(
    body: bytes,
    caller: Caller,
    read: Read,
    headers: Mapping[str, str],
    bounds: Bounds | None = None,
    memory: Remembers | None = None,
) -> Decoding:
    """`decode_call`, in steps short enough to have others served between them. A body that takes no longer than one
    of them has a single step."""
    bounds = bounds or Bounds()
    known = None if memory is None else memory.beginning(body)
    fields, raws, history = _opened(body, bounds, known)
    if known is not None and raws[:1] != (known.mark,):
        known = None  # what looked like the messages was something else
        fields, raws, history = _opened(body, bounds, None)
    values = stated(fields, _KINDS)
    get = values.get
    model = get("model")
    if not model:
        raise fail("The request names no model.", "model", "missing_required_parameter")
    refuse_routing(fields, but=_CONTENT)
    tools = _tools(fields, memory, bounds)
    messages = yield from _messages(fields, raws, known, read, bounds)
    output_field = _COMPLETION if _COMPLETION in values else _TOKENS
    options = get("stream_options")
    end_user = get("safety_identifier") or get("user")
    # In two steps: with more than fifteen keywords Python makes a dictionary of them, at four times the price.
    call = Call(
        caller=msgspec.structs.replace(caller, end_user=_kept(end_user, _USER)) if end_user else caller,
        model=model,
        messages=messages,
        fields=fields,
        body=body,
        history=history,
        known=None if known is None else known.past,
        tools=tools.wire,
        tools_tokens=tools.tokens,
        tools_digest=tools.digest,
        stream=get("stream") is True,
        label=_label(headers, fields),
        channel=_channel(headers, fields),
        language=headers.get(_LANGUAGE, ""),
        mode=_mode(headers),
    )
    return msgspec.structs.replace(
        call,
        include_usage=options is not None and options.get("include_usage") is True,
        max_output=ranged(get(output_field), output_field, 1, 1 << 31),
        output_field=output_field,
        choices=ranged(get("n"), "n", 1, bounds.choices) or 1,
        store=get("store") is not False,
    )


def _opened(
    body: bytes, bounds: Bounds, known: Beginning | None
) -> tuple[dict[str, bytes], tuple[bytes, ...], bytes | memoryview]:
    """The members, the messages, and the array of all of them.

    Known messages are left out of what is read, and a mark stands for them. Where it comes out as the first element of
    the messages, the rest was read as it would have been with them: they were whole values when they were first seen.
    """
    if known is None:
        fields, arrays = open_members(body, bounds.depth, _ARRAYS, _UNREAD)
        return fields, arrays.get("messages", ()), fields.get("messages", b"[]")
    start, end = known.start, known.end
    rest = body[:start] + known.mark + b"," + body[end:]
    fields, arrays = open_members(rest, bounds.depth, _ARRAYS, _UNREAD)
    opened = body.rfind(b"[", 0, start)
    closed = opened + len(fields.get("messages", b"")) + len(body) - len(rest)
    fields["messages"] = b""  # never to be sent: its place only
    return fields, arrays.get("messages", ()), memoryview(body)[opened:closed]


def _messages(
    fields: Mapping[str, bytes], raws: tuple[bytes, ...], known: Beginning | None, read: Read, bounds: Bounds
) -> Generator[None, None, tuple[Message, ...]]:
    if "messages" not in fields:
        raise fail("The request has no messages.", "messages", "missing_required_parameter")
    if not raws:
        raise fail("messages is empty.", "messages", "invalid_messages")
    before: tuple[Message, ...] = ()
    if known is not None:
        before, raws = known.past.messages, raws[1:]
    first = len(before)
    if first + len(raws) > bounds.messages:
        raise fail(f"More than {bounds.messages} messages.", "messages", "out_of_range")
    fresh: list[Message] = []
    size = _STEP if sum(map(len, raws)) > _STEP else 0  # a large body was opened just now
    for index, raw in enumerate(raws, first):
        size += len(raw) + _MESSAGE
        if size > _STEP:
            size = len(raw) + _MESSAGE
            yield
        fresh.append(read(raw, index))
    return (*before, *fresh)


def _tools(fields: Mapping[str, bytes], memory: Remembers | None, bounds: Bounds) -> Tools:
    wire = fields.get("tools", b"null")
    if "functions" in fields and fields["functions"] != b"null":
        # The old API's, which have been looked at already.
        legacy = fields["functions"]
        return _measured(wire + legacy if _checked(wire, bounds) else legacy)
    if wire == b"null":
        return _NO_TOOLS
    read = partial(_read_tools, bounds=bounds)
    return read(wire) if memory is None else memory.tools(wire, read)


def _read_tools(wire: bytes, bounds: Bounds) -> Tools:
    _checked(wire, bounds)
    return _measured(wire)


def _checked(wire: bytes, bounds: Bounds) -> bool:
    """Whether there are tools. Raises Malformed where they are not what may be passed on."""
    if wire == b"null":
        return False
    check_depth(wire, bounds.depth, "tools")
    check_unique(wire, "tools")
    if len(elements(without_lone_surrogates(wire), "tools")) > bounds.tools:
        raise fail(f"More than {bounds.tools} tools.", "tools", "out_of_range")
    return True


def _measured(wire: bytes) -> Tools:
    digest = blake2b(wire, digest_size=16).digest()
    return Tools(wire=wire, tokens=estimate(wire.decode("utf-8", "replace")), digest=digest)


def encode_prompt(call: Call, prompt: Prompt, model: str) -> bytes:
    """The body that goes upstream: the client's own bytes where nothing differs, else its members one by one."""
    ask_usage = call.stream and not call.include_usage and not prompt.verbatim
    same_output = prompt.max_output == call.max_output
    members = prompt.members
    if prompt.untouched and model == call.model and same_output and not ask_usage and not members:
        return call.body
    parts: list[bytes | memoryview] = []
    for name, raw in call.fields.items():
        value: bytes | memoryview = raw
        if name in members:
            set_to = members[name]
            if set_to is None:
                continue
            value = set_to
        elif name == "messages":
            value = call.history if prompt.untouched else b"[" + b",".join(map(write_message, prompt.messages)) + b"]"
        elif name == "model":
            value = msgspec.json.encode(model)
        elif name == "stream_options" and ask_usage:
            continue
        elif name in _OUTPUT_FIELDS and not same_output:
            if prompt.max_output is None:
                continue
            value = str(min(prompt.max_output, _bound(raw))).encode()
        parts += (b",", msgspec.json.encode(name), b":", value)
    for name, ours in members.items():
        if ours is not None and name not in call.fields:
            parts += (b",", msgspec.json.encode(name), b":", ours)
    if ask_usage:
        options = dict(typed(call.fields, "stream_options", dict) or {})
        parts += (b',"stream_options":', msgspec.json.encode({**options, "include_usage": True}))
    parts[0] = b"{"
    return b"".join((*parts, b"}"))


def _bound(raw: bytes) -> int:
    """The limit that a member states; none where it is null."""
    return int(raw) if raw.isdigit() else 1 << 31


def _channel(headers: Mapping[str, str], fields: Mapping[str, bytes]) -> bool:
    """Whether the client says that this conversation is a chat channel's: by header, or by metadata.channel."""
    if headers.get(_CHANNEL, "").strip():
        return True
    metadata = fields.get("metadata", b"")
    # An escape may hide the name.
    if metadata[:1] != b"{" or (b"channel" not in metadata and b"\\" not in metadata):
        return False
    value = typed(fields, "metadata", dict).get("channel")
    return isinstance(value, str) and bool(value.strip())


def _label(headers: Mapping[str, str], fields: Mapping[str, bytes]) -> str | None:
    """The conversation id that the client states, in DESIGN's order. It groups; it never keys state."""
    if not _LABELS.isdisjoint(headers):
        for name in _HEADER_LABELS:
            value = headers.get(name)
            if value:
                return _kept(value, _LABEL)
    metadata = fields.get("metadata")
    if metadata is not None and metadata[:1] == b"{":
        values = typed(fields, "metadata", dict)
        for name in _METADATA_LABELS:
            value = values.get(name)
            if isinstance(value, str) and value:
                return _kept(value, _LABEL)
    key = typed(fields, "prompt_cache_key", str)
    return _kept(key, _LABEL) if key else None


def _kept(name: str, most: int) -> str:
    """`name` in at most `most` characters. Two that only begin alike stay two: each keys what is one caller's."""
    if len(name) <= most:
        return name
    mark = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"{name[: most - len(mark) - 1]}~{mark}"


def _mode(headers: Mapping[str, str]) -> Mode | None:
    value = headers.get(_MODE)
    if value is None:
        return None
    try:
        return Mode(value.strip().lower())
    except ValueError:
        raise Malformed(f"{_MODE} is enforce, observe or off.", code="out_of_range", param=_MODE) from None
