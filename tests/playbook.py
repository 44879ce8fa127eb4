"""Plays a call like a script: a list of (expected step, answer), without an event loop and without mocks.

    played = play(exchange(call, snap),
        (like(Recall), Memory()),
        (like(Send, purpose="chat"), reply("hello", input=20)),
        (like(Remember, conversation="conv_1"), None))
    played.outcome, played[Send][0].prompt

An answer is a value, an exception (thrown in at the place that asked) or a function of the step. The flow must ask for
exactly these steps in this order, and end, or raise, behind the last one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from proxy.core import chain
from proxy.core.conversation import Message, Text
from proxy.core.errors import Overflow, TooLong
from proxy.core.policy import ModelCard, Policy
from proxy.core.steps import (
    Call,
    Caller,
    Count,
    Flow,
    Limits,
    Outcome,
    Ratio,
    Reply,
    Snapshot,
    Step,
)
from proxy.core.usage import Usage

S = TypeVar("S")
Line = tuple[Any, Any]
SCOPE = b"s" * 32


class Like:
    """Equal to a value of `kind` whose named fields are equal to these; the others may be anything."""

    def __init__(self, kind: type, fields: dict[str, Any]) -> None:
        self._kind = kind
        self._fields = fields

    def __eq__(self, other: object) -> bool:
        return type(other) is self._kind and all(getattr(other, name) == value for name, value in self._fields.items())

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{self._kind.__name__}({', '.join(f'{name}={value!r}' for name, value in self._fields.items())}, ...)"


class That:
    """Equal to whatever fulfils a condition."""

    def __init__(self, holds: Callable[[Any], bool]) -> None:
        self._holds = holds

    def __eq__(self, other: object) -> bool:
        return self._holds(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "That(...)"


def like(kind: type, **fields: Any) -> Like:
    return Like(kind, fields)


that = That


class Played:
    """How a flow ended, and every step that it asked for: `played[Send]` are the sends, in order."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.result: Any = None

    def __getitem__(self, kind: type[S]) -> list[S]:
        return [step for step in self.steps if type(step) is kind]

    @property
    def outcome(self) -> Outcome:
        assert isinstance(self.result, Outcome)
        return self.result


def play(flow: Flow[Any], *lines: Line, into: Played | None = None) -> Played:
    """Play `lines`. What the flow raises behind the last line is raised; `into` keeps the steps then too."""
    played = Played() if into is None else into
    advance: Callable[[], Step] = lambda: next(flow)  # noqa: E731
    for number, (expected, answer) in enumerate(lines):
        try:
            step = advance()
        except StopIteration:
            raise AssertionError(f"the flow ended before line {number}: {expected!r}") from None
        except Exception as error:
            raise AssertionError(f"the flow raised before line {number}: {expected!r}") from error
        played.steps.append(step)
        if step != expected:
            raise AssertionError(f"line {number} should be {expected!r}, is {_short(step)}")
        given = answer(step) if callable(answer) else answer
        if isinstance(given, BaseException):
            advance = lambda given=given: flow.throw(given)  # noqa: E731
        else:
            advance = lambda given=given: flow.send(given)  # noqa: E731
    try:
        step = advance()
    except StopIteration as end:
        played.result = end.value
        return played
    raise AssertionError(f"the flow goes on behind the last line: {_short(step)}")


def _short(step: object) -> str:
    """Whole histories say nothing."""
    shown = repr(step)
    return shown if len(shown) < 600 else f"{shown[:250]} ... {shown[-350:]}"


# -- what calls and answers are made of --------------------------------------------------------------------------------


def a_call(messages: tuple[Message, ...], **more: Any) -> Call:
    return Call(
        **(
            {"caller": Caller(tenant="t", key="k"), "model": "m", "messages": messages, "fields": {}, "body": b""}
            | more
        )
    )


def a_snap(window: int | None = None, **more: Any) -> Snapshot:
    limits = Limits(total=window, source="policy" if window else "unknown")
    known: dict[str, Any] = {
        "policy": Policy(),
        "card": ModelCard(name="m"),
        "limits": limits,
        "ratio": Ratio(),
        "exact_ratio": Ratio(),
        "upstream": "main",
        "agent": "m",
        "scope": SCOPE,
        "start": chain.begin(SCOPE),
        "fresh": "conv_new",
    }
    return Snapshot(**(known | more))


def a_reply(text: str = "Done.", input: int | None = None, output: int = 2, finish: str = "stop") -> Reply:
    usage = None if input is None else Usage(input=input, output=output)
    return Reply(message=chain.message("assistant", (Text(text=text),)), finish=finish, usage=usage)


def estimates(step: Count) -> tuple[int, ...]:
    """Counts that agree with our own estimates."""
    return tuple(item.tokens - 4 for item in step.messages)


def too_long(said: bool = False, **numbers: Any) -> TooLong:
    return TooLong(Overflow(**numbers), said=said)


def changed(value: S, **fields: Any) -> S:
    return msgspec.structs.replace(value, **fields)  # type: ignore[type-var]
