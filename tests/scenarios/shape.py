"""What a strict provider finds wrong with a prompt, and how large it is. Written for the tests alone: it shares no line
with the code that it judges.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from tests.scenarios.gate import Wire, shown

ROLES = {"system", "developer", "user", "assistant", "tool"}

Size = Callable[[Wire], int]


def faults(messages: Sequence[Wire], *, alternate: bool = False) -> list[str]:
    """What OpenAI, Anthropic or a strict template would refuse: unknown roles, results without their call right before
    them, calls without a result, one id used twice in one message, messages without content."""
    found: list[str] = []
    waiting: list[str] = []
    before = ""
    for place, message in enumerate(messages):
        role = message.get("role")
        if role not in ROLES:
            found.append(f"{place}: role {role!r}")
        if role == "tool":
            if message.get("tool_call_id") in waiting:
                waiting.remove(message["tool_call_id"])
            else:
                found.append(f"{place}: result of a call that is not open")
        elif waiting:
            found.append(f"{place}: {len(waiting)} calls have no result")
            waiting = []
        if role == "assistant":
            waiting = [call["id"] for call in message.get("tool_calls") or ()]
            if len(set(waiting)) != len(waiting):
                found.append(f"{place}: two calls have one id")
        if not message.get("content") and not message.get("tool_calls"):
            found.append(f"{place}: empty")
        if alternate and role == before and role in ("user", "assistant"):
            found.append(f"{place}: two messages of {role}")
        before = str(role)
    if waiting:
        found.append(f"end: {len(waiting)} calls have no result")
    return found


def quarter(message: Wire) -> int:
    """Tokens of a message at four characters each, and four around it."""
    return len(shown(message)) // 4 + 4


def size(body: Wire, measure: Size = quarter) -> int:
    """Tokens of a whole request, its tools included."""
    tools = body.get("tools")
    return sum(map(measure, body["messages"])) + (len(json.dumps(tools)) // 4 if tools else 0)
