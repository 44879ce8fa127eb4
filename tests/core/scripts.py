"""What the scripts of an exchange share: histories around a window, and lines that are written again and again."""

from __future__ import annotations

from typing import Any

from proxy.core.conversation import Message
from proxy.core.exchange import exchange
from proxy.core.notes import Compaction
from proxy.core.steps import (
    Claim,
    Count,
    Memory,
    Prompt,
    Recall,
    Remember,
    Report,
    Send,
)
from tests.core.histories import loop, system, user
from tests.playbook import Played, a_call, a_reply, a_snap, estimates, like, play, that

WINDOW = 8000
LONG = (system("Be brief."), *loop(50), user("And now?"))
"""About twice the window."""
NEAR = (*loop(23), user("And now?"))
"""Near the trigger of the window."""
SHORT = (system("Be brief."), *loop(2), user("And now?"))


def size(messages: tuple[Message, ...]) -> int:
    return 3 + sum(item.tokens for item in messages)


def compacted(**more: Any) -> Any:
    return like(Remember, compaction=that(lambda made: type(made) is Compaction), request=None, **more)


def remembered(**more: Any) -> Any:
    return like(Remember, compaction=None, request=that(lambda digest: type(digest) is bytes), **more)


def whole(**more: Any) -> Any:
    return like(Prompt, report=like(Report, compaction="none"), **more)


def notes(done: str = "auto", **more: Any) -> Any:
    return like(Prompt, untouched=False, report=like(Report, compaction=done), **more)


def first_compaction(call_: Any = None, snap: Any = None) -> Played:
    """A call that is over the trigger, played to its end."""
    return play(
        exchange(call_ or a_call(LONG), snap or a_snap(WINDOW)),
        (like(Recall), Memory()),
        (like(Claim), True),
        (like(Count), estimates),
        (compacted(), None),
        (like(Send, purpose="chat", prompt=notes()), lambda step: a_reply(input=step.prompt.report.tokens)),
        (remembered(), None),
    )


def memory_of(played: Played) -> Memory:
    """What the store would know afterwards."""
    *_, last = played[Remember]
    made = tuple(step.compaction for step in played[Remember] if step.compaction is not None)
    return Memory(conversation=last.conversation, compactions=made, anchor=last.anchor)
