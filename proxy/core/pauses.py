"""A turn that waits for its user: what he is shown, and how his next message takes the turn up again.

The client has a text of ours and an ordinary user message behind it; the model is told what it really said, and the
user's words as the result of its call. Both are put in place here, before anything is made of the history: so turns,
groups, pins and memory need no rule of their own for a pause. Identities stay those of what was shown. Never: what a
model wrote as arguments (`tools.questions` reads that).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_
from typing import Final

import msgspec

from proxy.core.chain import message
from proxy.core.conversation import SYSTEM, Approval, Clarification, Message, Text, ToolResult
from proxy.core.groups import opened
from proxy.core.hidden import Paused, Placed, Said, told
from proxy.core.ledger import leaves
from proxy.core.past import Chain, Past

ASK_USER: Final = "ask_user"
REQUEST_APPROVAL: Final = "request_approval"
PAUSING: Final = (ASK_USER, REQUEST_APPROVAL)

Pause = Clarification | Approval

LAPSED: Final = "The call timed out: the user did not answer before the question expired."
"""The result of a call that waited too long; `replayed.ended` reads it as a failure."""
_ATTACHED: Final = "(The answer is what is attached below.)"
_HOW: Final = "Reply yes to allow it; or say no, or what to do instead."
_QUESTION: Final = 200
"""Characters of a question that stand with its answer in notes."""


def shown(pause: Pause) -> str:
    """The text that a client shows its user."""
    if type(pause) is Clarification:
        options = "\n".join(f"{number}. {option}" for number, option in enumerate(pause.options, 1))
        return f"{pause.question}\n\n{options}" if options else pause.question
    assert type(pause) is Approval
    reason = f"\nReason: {pause.reason}" if pause.reason else ""
    return f"Approval needed: {pause.action}{reason}\n\n{_HOW}"


def asked(messages: Sequence[Message], index: int) -> str:
    """What the user was asked whose answer message `index` is, in one line."""
    wanted = messages[index].results[0].call_id
    calls = (call for before in range(index - 1, -1, -1) for call in messages[before].calls)
    call = next((call for call in calls if call.id == wanted), None)
    words = "" if call is None else " ".join(" ".join(text for _, text in leaves(call.arguments)).split())
    return words if len(words) <= _QUESTION else f"{words[:_QUESTION]} ..."


class TakenUp(msgspec.Struct, frozen=True, kw_only=True):
    """A history in which answered pauses are what they are to the model, its hidden state, and whether it ends with a
    question that is still open."""

    past: Past
    behind: tuple[Placed, ...]
    open: bool = False


def taken_up(past: Past, behind: tuple[Placed, ...], now: float, expires: float, *, answers: bool = True) -> TakenUp:
    """`past` with the pauses among `behind` taken up; nothing where there are none. At `now` (unix seconds) a pause
    older than `expires` seconds (0: never) is over, unless its answer was taken in time. `answers` is False where the
    newest message speaks to nobody in this conversation: it answers no question."""
    if all(each.state.pause is None for each in behind):
        return TakenUp(past=past, behind=behind)
    history = _History(past)
    states: list[Placed] = []
    waits = False
    for each in behind:
        pause, place = each.state.pause, each.reply
        if pause is None or place is None or each.state.shown != past.messages[place].digest:
            states.append(each)
            continue
        run = _run(past.messages, place)
        if not run and place + 1 < _end(past.messages):
            states.append(each)  # somebody spoke for the model: what was shown is all there is
            continue
        if _lapsed(pause, run, behind, now, expires):
            states.append(_closed(each, pause))
        elif run and (answers or run[-1] < _end(past.messages) - 1):
            states.append(msgspec.structs.replace(each, answer=history.take(each, pause, run)))
        else:
            waits = waits or not run
            states.append(each)
    made = history.past()
    first = opened(made.messages)
    return TakenUp(
        past=made,
        behind=tuple([msgspec.structs.replace(each, opened=each.index >= first) for each in states]),
        open=waits,
    )


def unmarked(past: Past, plain: Callable[[Message], Message]) -> Past:
    """`past` with its answers as `plain` makes them: without what we put beside a question for clients to read."""
    made = [plain(item) if item.role == "assistant" and not item.calls else item for item in past.messages]
    if all(map(is_, made, past.messages)):
        return past
    return msgspec.structs.replace(past, messages=tuple(made))


def just_answered(messages: Sequence[Message]) -> bool:
    """Whether the newest thing said is the answer to a question."""
    for item in reversed(messages):
        if item.answer:
            return True
        if item.role != "user" and item.role not in SYSTEM:
            return False
    return False


def attached(answer: Message) -> Message | None:
    """The media of an answer as a message of its own: not every provider takes them in a tool's result."""
    media = [Text(text="", media=block.media) for block in answer.blocks if type(block) is Text and block.media]
    return message("user", tuple(media), name=answer.name) if media else None


class _History:
    """A past while its pauses are taken up. System messages between a question and its answer come behind both: they
    have the identity of what stands before them, and nothing may stand between a call and its result."""

    def __init__(self, past: Past) -> None:
        self._past = past
        self._messages = list(past.messages)
        self._after = list(past.chain.after)
        self._counted = list(past.chain.counted)

    def take(self, each: Placed, pause: Paused, run: Sequence[int]) -> Message:
        """Put the model's call and the user's answer in place. Returns the answer as it was shown."""
        place, at = each.reply, run[0]
        assert place is not None and each.state.reply is not None
        messages = self._messages
        call, answer = messages[place], messages[at]
        between = messages[place + 1 : at]
        messages[place] = msgspec.structs.replace(told(each.state.reply), digest=call.digest)
        messages[place + 1 : at + 1] = [_answered(answer, pause), *between]
        for moved in range(place + 1, at + 1):
            self._after[moved], self._counted[moved] = self._after[at], self._counted[at]
        for beside in run[1:]:
            messages[beside] = msgspec.structs.replace(messages[beside], slugs=())  # they open nothing
        return answer

    def past(self) -> Past:
        tokens = sum([item.tokens for item in self._messages]) - sum([item.tokens for item in self._past.messages])
        return msgspec.structs.replace(
            self._past,
            messages=tuple(self._messages),
            chain=Chain(start=self._past.chain.start, after=tuple(self._after), counted=tuple(self._counted)),
            tokens=self._past.tokens + tokens,
        )


def _answered(answer: Message, pause: Paused) -> Message:
    """What the user said as the result of the call: whatever it is, the model makes of it what it can."""
    text = answer.text or _ATTACHED
    if answer.name:
        text = f"{answer.name}: {text}"
    made = message("tool", (ToolResult(call_id=pause.id, text=text),))
    return msgspec.structs.replace(made, digest=answer.digest, answer=True)


def _closed(each: Placed, pause: Paused) -> Placed:
    """`each` as if our own tools had answered the call."""
    results = (*each.state.results, Said(role="tool", text=LAPSED, answers=pause.id))
    return msgspec.structs.replace(each, state=msgspec.structs.replace(each.state, results=results, pause=None))


def _lapsed(pause: Paused, run: Sequence[int], behind: Sequence[Placed], now: float, expires: float) -> bool:
    if not expires or now - pause.at <= expires:
        return False
    return not any(each.state.resumed and run and run[0] <= each.index <= run[-1] for each in behind)


def _run(messages: Sequence[Message], place: int) -> list[int]:
    """The user messages right behind message `place`, system messages left aside."""
    found: list[int] = []
    for index in range(place + 1, len(messages)):
        if messages[index].role == "user":
            found.append(index)
        elif messages[index].role not in SYSTEM:
            break
    return found


def _end(messages: Sequence[Message]) -> int:
    """How many messages there are, those of the system at the end left aside."""
    end = len(messages)
    while end and messages[end - 1].role in SYSTEM:
        end -= 1
    return end
