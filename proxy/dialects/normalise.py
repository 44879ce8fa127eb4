"""Repair a provider's chat answer where strict clients break on it; used only with `upstreams.X.normalise`.

Each repair answers one row of research/ecosystem.md 1.4 and touches nothing else: a frame that needs none comes back
as the same bytes. Unknown fields survive. What is no JSON object, or reports an error, passes unchanged; nothing here
raises and nothing here makes a broken stream look whole: without a finish reason no open call is closed.
Works on payloads: the `data: ` prefix, comments and `[DONE]` are the stream's.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

_CHUNK = "chat.completion.chunk"
_REPLY = "chat.completion"
_CUT = ("length", "max_tokens", "content_filter", "error")
"""Finish reasons after which a call without arguments may be one that was cut: it is left as it is."""


class _Call:
    """One tool call of a choice, as far as it was streamed."""

    __slots__ = ("argued", "id")

    def __init__(self, id: object) -> None:
        self.id = id
        self.argued = False


class _Choice:
    __slots__ = ("begun", "calls", "closed", "last")

    def __init__(self) -> None:
        self.begun = False
        self.closed = False
        self.calls: dict[int, _Call] = {}
        self.last = -1


class Normaliser:
    """The state of one answer. `id`, `created` (unix seconds) and `model` stand in for what the provider leaves out."""

    def __init__(self, *, id: str, created: int, model: str) -> None:
        self._id = id
        self._created = created
        self._model = model
        self._named = False
        self._choices: dict[int, _Choice] = {}
        self._finished = False
        self._usage: bytes | None = None
        self._usage_sent = False

    def frame(self, payload: bytes) -> tuple[bytes, ...]:
        """The frames to send for one that came: itself, a repaired one, several, or none (usage that is held)."""
        chunk = _decode(payload)
        if chunk is None or chunk.get("error") or not ("choices" in chunk or "usage" in chunk):
            return (payload,)
        changed = self._envelope(chunk)
        if not chunk["choices"]:
            return self._counted(chunk, _encode(chunk) if changed else payload)
        before: list[bytes] = []
        for position, choice in enumerate(chunk["choices"]):
            if isinstance(choice, dict):
                changed |= self._choice(chunk, choice, position, before)
        if chunk.get("usage"):
            self._usage = _encode({**self._head(chunk), "choices": [], "usage": chunk.pop("usage")})
            changed = True
        return (*before, _encode(chunk) if changed else payload)

    def finish(self) -> tuple[bytes, ...]:
        """What is left to send when the provider's stream has ended, before `[DONE]`: the usage that was held."""
        held, self._usage = self._usage, None
        if held is None or self._usage_sent:
            return ()
        self._usage_sent = True
        return (held,)

    def reply(self, body: bytes) -> bytes:
        """A whole JSON answer, repaired."""
        answer = _decode(body)
        if answer is None or answer.get("error") or not isinstance(answer.get("choices"), list):
            return body
        changed = self._fill(answer, _REPLY)
        for position, choice in enumerate(answer["choices"]):
            message = choice.get("message") if isinstance(choice, dict) else None
            if isinstance(message, dict):
                changed |= _default(choice, "index", position)
                changed |= _default(message, "role", "assistant")
                changed |= self._calls(message, whole=choice.get("finish_reason") not in _CUT)
        return _encode(answer) if changed else body

    def _fill(self, envelope: dict[str, Any], kind: str) -> bool:
        changed = envelope.get("object") != kind
        envelope["object"] = kind
        changed |= _default(envelope, "id", self._id)
        changed |= _default(envelope, "created", self._created)
        return _default(envelope, "model", self._model) or changed

    def _envelope(self, chunk: dict[str, Any]) -> bool:
        """Object, id, created, model and choices. The first frame's id holds for the whole stream."""
        if not self._named and isinstance(chunk.get("id"), str):
            self._id = chunk["id"] or self._id
        self._named = True
        changed = chunk.get("id") != self._id
        chunk["id"] = self._id
        if not isinstance(chunk.get("choices"), list):
            chunk["choices"] = []
            changed = True
        return self._fill(chunk, _CHUNK) or changed

    def _head(self, chunk: dict[str, Any]) -> dict[str, Any]:
        return {name: chunk[name] for name in ("id", "object", "created", "model")}

    def _counted(self, chunk: dict[str, Any], payload: bytes) -> tuple[bytes, ...]:
        """A frame without choices. Clients add usage up, so one frame of it goes out, when the answer is complete."""
        if not chunk.get("usage"):
            return (payload,)
        if self._usage_sent:
            return ()
        self._usage = payload
        return self.finish() if self._finished else ()

    def _choice(self, chunk: dict[str, Any], choice: dict[str, Any], position: int, before: list[bytes]) -> bool:
        changed = _default(choice, "index", position)
        index = choice["index"]
        state = self._choices.setdefault(index if isinstance(index, int) else position, _Choice())
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            delta = choice["delta"] = {}
            changed = True
        if not state.begun:
            state.begun = True
            if not delta.get("role"):
                choice["delta"] = delta = {**delta, "role": "assistant"}
                changed = True
        opened: dict[int, dict[str, Any]] = {}
        for call in _list(delta.get("tool_calls")):
            if isinstance(call, dict):
                changed |= self._delta(call, state, opened)
        if finish := choice.get("finish_reason"):
            self._finished = True
            if finish not in _CUT:
                changed |= self._close(chunk, index, state, opened, before)
        return changed

    def _delta(self, call: dict[str, Any], state: _Choice, opened: dict[int, dict[str, Any]]) -> bool:
        """One piece of a tool call: its index, and in the opening piece its type and id; arguments as text."""
        changed = not _is_index(call.get("index"))
        index = _place(call, state) if changed else call["index"]
        call["index"] = state.last = index
        known = state.calls.get(index)
        if known is None:
            known = state.calls[index] = _Call(call.get("id"))
            opened[index] = call
            changed |= _default(call, "type", "function") | _default(call, "id", f"call_{self._id}_{index}")
        function = call.get("function")
        if isinstance(function, dict):
            changed |= _as_text(function)
            known.argued = known.argued or bool(function.get("arguments"))
        return changed

    def _close(
        self,
        chunk: dict[str, Any],
        index: object,
        state: _Choice,
        opened: dict[int, dict[str, Any]],
        before: list[bytes],
    ) -> bool:
        """Calls that ended without arguments get "{}": in this frame where it opened them, else in one before it."""
        if state.closed:
            return False
        state.closed = True
        empty = [at for at, call in state.calls.items() if not call.argued]
        for at in empty:
            call = opened.get(at)
            if call is not None:
                function = call.get("function")
                call["function"] = {**(function if isinstance(function, dict) else {}), "arguments": "{}"}
                continue
            piece = {"tool_calls": [{"index": at, "function": {"arguments": "{}"}}]}
            choice = {"index": index, "delta": piece, "finish_reason": None}
            before.append(_encode({**self._head(chunk), "choices": [choice]}))
        return bool(empty)

    def _calls(self, message: dict[str, Any], *, whole: bool) -> bool:
        changed = False
        for position, call in enumerate(_list(message.get("tool_calls"))):
            if not isinstance(call, dict):
                continue
            changed |= _default(call, "type", "function") | _default(call, "id", f"call_{self._id}_{position}")
            function = call.get("function")
            if isinstance(function, dict):
                changed |= _as_text(function) | (whole and _default(function, "arguments", "{}"))
        return changed


def _default(value: dict[str, Any], name: str, default: object) -> bool:
    """Set a member that is missing, null or empty; tells whether it was."""
    if value.get(name) not in (None, ""):
        return False
    value[name] = default
    return True


def _as_text(function: dict[str, Any]) -> bool:
    """Arguments that came as JSON become its text."""
    arguments = function.get("arguments", "")
    if isinstance(arguments, str):
        return False
    function["arguments"] = "" if arguments is None else _encode(arguments).decode()
    return True


def _place(call: dict[str, Any], state: _Choice) -> int:
    """The index of a piece that states none: by its id, else a new one where it opens a call, else the last."""
    stated = call.get("id")
    if stated:
        for index, known in state.calls.items():
            if known.id == stated:
                return index
    function = call.get("function")
    opens = bool(stated) or (isinstance(function, dict) and bool(function.get("name")))
    return max(state.calls, default=-1) + 1 if opens or state.last < 0 else state.last


def _is_index(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _decode(payload: bytes) -> dict[str, Any] | None:
    try:
        value = msgspec.json.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        # msgspec is strict about half surrogate pairs, which streams that cut inside an emoji do contain.
        try:
            value = json.loads(payload)
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, dict) else None


def _encode(value: object) -> bytes:
    try:
        return msgspec.json.encode(value)
    except (ValueError, RecursionError):
        return json.dumps(value, separators=(",", ":")).encode()
