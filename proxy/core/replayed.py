"""How a call and its result read once their turn is closed: what is cut, and the words that stand for what is not told.

Belongs here: one call, one result. Never: which of them are told (`memory`). Arguments stay JSON and hold no mark of
ours, for a model writes its next call like the ones it reads: a cut string ends plainly, and the result says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, Literal

import msgspec

from proxy.core.agent import MemoryLimits
from proxy.core.chain import message
from proxy.core.conversation import Message, ToolCall, ToolResult
from proxy.core.groups import NO_RESULT

LOAD_SKILL: Final = "load_skill"
READ_TOOL_RESULT: Final = "read_tool_result"

Refer = Callable[[str], str]
"""Names a whole text, by which it can be asked for again."""
Ended = Literal["succeeded", "failed", "open"]
Age = Literal["recent", "older"]
"""Of a closed turn: whether its results are told."""

_WORDS: Final[Mapping[tuple[Age, Ended], str]] = MappingProxyType(
    {
        ("recent", "open"): NO_RESULT,
        ("older", "succeeded"): "(Succeeded; not shown.)",
        ("older", "failed"): "(Failed; not shown.)",
        ("older", "open"): NO_RESULT,
    }
)
"""What is told in place of a result."""
_SKILL: Final = "(No longer shown; load the skill again where it is needed.)"
_FETCH: Final = "[... {gone} characters were left out here by the gateway; read_tool_result has all of it: {name} ...]"
_AGAIN: Final = "[... {gone} characters were left out here by the gateway; the same call gets them again ...]"
_CUT: Final = "({count} of this call's arguments {are} cut short here.)"

_LITERAL: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"(?P<key>\s*:)?', re.DOTALL)
_HEAD: Final = 400
"""Characters at either end of a result in which a failure is looked for."""
_FAILED: Final = re.compile(
    r"\A[^\w{\"'<]{0,8}(?:<(?:tool_use_)?error\b|(?:tool |api |command |unexpected |internal )?error\b|errno\b"
    r"|traceback \(most|exception\b|fatal:|panic:|failed\b|failure\b|[\w.]{0,60}(?:Error|Exception)\b"
    r"|\{\s*[\"'](?:error|errors|exception)[\"']\s*:\s*+(?!null|false|\"\"|\[\]|none)"
    r"|(?:the )?(?:tool|command|call|request) (?:\w+ )?(?:failed|timed out|was rejected|was denied)"
    r"|unknown tool|permission denied|no such file|command not found)"
    r"|\bexit(?:ed with)?(?: code| status)?[:=]? ?(?:code )?-?[1-9]\d{0,2}\b|<returncode>[1-9]"
    r"|[\"'](?:is_?error|failed)[\"']\s*:\s*true|[\"'](?:success|ok)[\"']\s*:\s*false"
    r"|[\"']status[\"']\s*:\s*[\"'](?:error|failed)",
    re.IGNORECASE,
)


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """A result as it is told; `whole` is the reference of the text it was cut from, where it names one."""

    item: Message
    whole: str = ""


def ended(text: str) -> Ended:
    """How a call ended that returned `text`. Most providers say no more of it than its words do."""
    if text == NO_RESULT:
        return "open"
    return "failed" if _FAILED.search(text[:_HEAD]) or _FAILED.search(text[-_HEAD:], 1) else "succeeded"


def replayed_call(call: ToolCall, limit: int) -> tuple[ToolCall, int]:
    """`call` with the strings in its arguments cut to `limit` characters, and how many were. What its provider wanted
    back with it was for its own turn."""
    arguments, count = _shortened(call.arguments, limit)
    return ToolCall(id=call.id, name=call.name, arguments=arguments), count


def replayed_result(
    item: Message, call: ToolCall, age: Age, limits: MemoryLimits, refer: Refer | None, cut: int
) -> Replay:
    """The result `item` of `call`, of whose arguments `cut` were cut. `refer` is None where nobody could ask for a
    whole text again."""
    result = item.results[0]
    outcome = ended(result.text)
    note = _CUT.format(count=cut, are="is" if cut == 1 else "are") if cut else ""
    words = _WORDS.get((age, outcome))
    if call.name == LOAD_SKILL and outcome == "succeeded":
        # Whether it may still be seen is asked when it is loaded again; a reference would not ask.
        words = _SKILL
    if words is not None:
        return Replay(item=_written(item, result, " ".join((words, note)) if note else words))
    text = "\n".join((result.text, *(f"[{media.kind}]" for media in result.media)))
    room = limits.result_chars - (len(note) + 1 if note else 0)
    name = ""
    if len(text) > room:
        name = refer(result.text) if refer is not None else ""
        text = _ends(text, room, name)
    return Replay(item=_written(item, result, "\n".join((text, note)) if note else text), whole=name)


def _written(item: Message, result: ToolResult, text: str) -> Message:
    if text == result.text and not result.media and item.role == "tool":
        return item
    # The old function API had no ids: told again, its calls and results are of the new one.
    return message("tool", (ToolResult(call_id=result.call_id, text=text),))


def _ends(text: str, limit: int, name: str) -> str:
    """Head and tail of `text` with what lies between counted, in `limit` characters."""
    form = _FETCH if name else _AGAIN
    left = max(0, limit - len(form.format(gone=len(text), name=name)) - 2)
    head = left * 3 // 5
    tail = left - head
    mark = form.format(gone=len(text) - head - tail, name=name)
    return "\n".join((text[:head], mark, text[len(text) - tail :]))


def _shortened(arguments: str, limit: int) -> tuple[str, int]:
    """`arguments` with its long strings cut, every other byte as it was; what is no JSON becomes some."""
    try:
        json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return _string({"input": arguments[:limit]}), int(len(arguments) > limit)
    if len(arguments) <= limit:
        return arguments, 0
    count = 0

    def cut(found: re.Match[str]) -> str:
        nonlocal count
        literal = found[0]
        if found["key"] is not None or len(literal) <= limit + 2:
            return literal
        value = json.loads(literal)
        if len(value) <= limit:
            return literal
        count += 1
        return _string(value[:limit])

    return _LITERAL.sub(cut, arguments), count


def _string(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    # Half of a surrogate pair cannot be written as UTF-8, but as an escape.
    return text if text.isascii() or text.encode("utf-8", "replace").decode() == text else json.dumps(value)
