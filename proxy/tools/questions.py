"""`ask_user` and `request_approval`: how a model asks its user, and what becomes of a call.

Belongs here: the tools' definitions, and reading what a model wrote as arguments, which is lenient: a question in
another member, options as one text, numbers. Never: what the user is shown (`core.pauses`), and nothing is ever done on
approval: what the user says goes back to the model, which does the next step itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from proxy.core.agent import Spec
from proxy.core.conversation import Approval, Clarification
from proxy.core.pauses import ASK_USER, PAUSING, REQUEST_APPROVAL, Pause
from proxy.core.steps import Ran

_LONGEST: Final = 8_000
"""Characters of a question, an action or a reason."""
_OPTION: Final = 400
_OPTIONS: Final = 20
"""Characters of an option, and how many there may be."""
_NUMBERED: Final = re.compile(r"\A(?:\(?\d{1,2}[.):]|[-*\u2022])\s+")
"""What a model puts in front of an option, which is numbered anyway."""
_ASK: Final = (
    "Ask the user a question that only the user can answer, when you cannot go on without it. The turn pauses; the "
    "user's next message, whatever it says, comes back as the result. Ask one question at a time."
)
_APPROVE: Final = (
    "Ask the user to approve an action before you take it, where it cannot be undone or costs something. The turn "
    "pauses; the user's next message comes back as the result. Nothing is done for you: take the action yourself once "
    "it is approved."
)
_NO_QUESTION: Final = (
    'The user was not asked: the arguments must be a JSON object such as {"question": "...", "options": ["..."]}.'
)
_NO_ACTION: Final = (
    'The user was not asked: the arguments must be a JSON object such as {"action": "...", "reason": "..."}.'
)
_ONE: Final = "The user was not asked this: one question at a time. Ask again once the other one is answered."
_FIRST: Final = "The user was not asked: your other tool calls run first. Ask again once you have their results."


def specs(names: Iterable[str]) -> tuple[Spec, ...]:
    """The tools among `names` that ask the user."""
    return tuple([_spec(name) for name in names if name in PAUSING])


def _spec(name: str) -> Spec:
    properties: dict[str, Any]
    if name == ASK_USER:
        options = {"type": "array", "items": {"type": "string"}, "description": "Answers to choose from, if any."}
        properties = {"question": {"type": "string", "description": "The question."}, "options": options}
        return _written(ASK_USER, _ASK, properties, ["question"])
    properties = {
        "action": {"type": "string", "description": "What you are about to do, exactly."},
        "reason": {"type": "string", "description": "Why."},
    }
    return _written(REQUEST_APPROVAL, _APPROVE, properties, ["action", "reason"])


def _written(name: str, told: str, properties: dict[str, Any], required: list[str]) -> Spec:
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return Spec(name=name, description=told, parameters=msgspec.json.encode(schema))


def answer(id: str, name: str, arguments: str, *, alone: bool, first: bool) -> Ran:
    """What becomes of the call `id` of the tool `name`: the user is asked, or the model is told why not. `alone`: the
    reply calls no tool of the client's; `first`: it has asked nothing else. Never raises."""
    pause = asked(id, name, arguments)
    if pause is None:
        return Ran(text=_NO_QUESTION if name == ASK_USER else _NO_ACTION)
    if not alone:
        return Ran(text=_FIRST)
    return Ran(pause=pause) if first else Ran(text=_ONE)


def asked(id: str, name: str, arguments: str) -> Pause | None:
    """What a call with these arguments asks the user; None where it asks nothing."""
    given = _given(arguments)
    if name == ASK_USER:
        question = _text(given, "question", "text", "message", "prompt")
        return Clarification(id=id, question=question, options=_options(given.get("options"))) if question else None
    action = _text(given, "action", "question", "text", "message")
    return Approval(id=id, action=action, reason=_text(given, "reason", "why")) if action else None


def _given(arguments: str) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(arguments)
    except (ValueError, RecursionError):  # no JSON, a lone surrogate; too deep
        return {}
    return value if isinstance(value, dict) else {}


def _text(given: dict[str, Any], *names: str) -> str:
    values = (_said(given.get(name), _LONGEST) for name in names)
    return next((value for value in values if value), "")


def _said(value: object, most: int) -> str:
    """`value` as text of at most `most` characters; "" for what is none."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    text = str(value).strip()
    return text if len(text) <= most else f"{text[:most]} ..."


def _options(value: object) -> tuple[str, ...]:
    """The options, each one line; one text holds one in each of its lines."""
    listed = value.splitlines() if isinstance(value, str) else value if isinstance(value, list) else []
    found = (_option(each) for each in listed)
    return tuple(dict.fromkeys(each for each in found if each))[:_OPTIONS]


def _option(value: object) -> str:
    if isinstance(value, dict):
        value = next((value[name] for name in ("label", "text", "title", "value") if name in value), None)
    return _NUMBERED.sub("", " ".join(_said(value, _OPTION).split()))
