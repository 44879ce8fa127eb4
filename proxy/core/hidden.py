"""What only the told transcript has behind a shown prefix: own tool calls with their results, traces, the effort.

One value per answer, stored under the request's digest and again under request + reply (DESIGN 2). If the client sends
our reply back as it was, what the model really said takes its place; if it altered it, the rounds before it are put in
front and the rest is as shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from proxy.core.agent import Effort
from proxy.core.chain import message
from proxy.core.conversation import Block, Message, Reasoning, Role, Text, ToolCall, ToolResult, lawful
from proxy.core.past import Past
from proxy.core.stack import Catalogue, Trace
from proxy.core.steps import Hidden

BETWEEN: Final = "\n\n"
"""What stands between the texts of two rounds in the one message that the client sees."""


class Said(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message in the form that is stored."""

    role: Role
    text: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, str, str, bytes], ...] = ()
    answers: str = ""


class Paused(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The reply's call `id` asks the user, and was shown to him at `at` (unix seconds)."""

    id: str
    at: float


class Behind(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`rounds` came before the reply. `reply` is what the model said in the last of them, with `results` of ours to its
    calls; it is told instead of the answer that was shown, whose digest is `shown`. `catalogue` is the conversation's,
    as are `tools`, our own that need no skill; both are kept with its first answer. The call that is the `pause` waits
    for the user; `resumed`: the request answered one in time. The last `spoken` messages of the request were said
    while the model worked: the rounds `ahead` of them came first."""

    rounds: tuple[Said, ...] = ()
    reply: Said | None = None
    shown: bytes = b""
    results: tuple[Said, ...] = ()
    traces: tuple[Trace, ...] = ()
    effort: Effort | None = None
    catalogue: Catalogue | None = None
    tools: tuple[str, ...] | None = None
    pause: Paused | None = None
    ahead: tuple[Said, ...] = ()
    spoken: int = 0
    resumed: bool = False


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """Hidden state at its place in a history: its answer came behind message `index`, and was sent back as message
    `reply`, if it was. `opened`: its turn is the newest; `again`: it came with another answer to this very request.
    `answer` is what the user wrote right behind the reply, where that is told as the result of its call (`pauses`)."""

    index: int
    reply: int | None
    state: Behind
    opened: bool
    again: bool
    answer: Message | None = None

    @property
    def speaks(self) -> bool:
        """Whether anything is told of it at the place of the reply."""
        return bool(self.state.rounds) or self.state.reply is not None

    def told_whole(self, messages: Sequence[Message]) -> bool:
        """Whether all its results are told: not where the client altered the reply that stands beside some of them."""
        same = self.reply is not None and self.state.shown == messages[self.reply].digest
        return same or not self.state.results


class Expansion(msgspec.Struct, frozen=True, kw_only=True):
    """What is told at the place of one shown message: others before it, another in its stead, others behind it, a text
    beside its own words. `stays`, the skills that were loaded there, is told even where notes stand for that message,
    but not for what opened its turn; `opened`: that turn is the newest. `gone`: the message itself is not told, nor
    anything in its stead."""

    before: tuple[Message, ...] = ()
    instead: Message | None = None
    behind: tuple[Message, ...] = ()
    beside: str = ""
    stays: tuple[Message, ...] = ()
    opened: bool = False
    gone: bool = False


_DECODER: Final = msgspec.json.Decoder(Behind)
_NOTHING: Final = Behind()


def packed(behind: Behind) -> bytes | None:
    """The payload of `behind`; None where there is nothing to keep."""
    return None if behind == _NOTHING else msgspec.json.encode(behind)


def unpacked(payload: bytes) -> Behind:
    return _DECODER.decode(payload)


def kept(item: Message) -> Said:
    """`item` as it is stored. Media have no place in what the gateway's tools say."""
    return Said(
        role=item.role,
        text=_words(item),
        reasoning="".join(block.text for block in item.blocks if type(block) is Reasoning),
        calls=tuple((call.id, call.name, call.arguments, call.extra) for call in item.calls),
        answers=item.results[0].call_id if item.results else "",
    )


def told(said: Said) -> Message:
    """The message that `said` was made of."""
    if said.role == "tool":
        return message("tool", (ToolResult(call_id=said.answers, text=said.text),))
    blocks: list[Block] = []
    if said.reasoning:
        blocks.append(Reasoning(text=said.reasoning))
    if said.text:
        blocks.append(Text(text=said.text))
    blocks += (ToolCall(id=id, name=name, arguments=args, extra=extra) for id, name, args, extra in said.calls)
    return message(said.role, tuple(blocks))


def shown(replies: Sequence[Message | None], own: frozenset[str], last: str = "") -> Message | None:
    """The one message that a client sees of several rounds: their texts, the `last` of which may be ours, and the calls
    that are not ours."""
    texts = [text for item in replies if item is not None and (text := _words(item))]
    texts += [last] if last else []
    calls = [call for item in replies if item is not None for call in item.calls if call.name not in own]
    blocks: tuple[Block, ...] = (*((Text(text=BETWEEN.join(texts)),) if texts else ()), *calls)
    return message("assistant", blocks) if blocks else None


def placed(past: Past, hidden: Sequence[Hidden], opening: Sequence[int]) -> tuple[Placed, ...]:
    """What of `hidden` belongs to this history, in order; `opening` are the user messages that opened its newest
    turn."""
    if not hidden:
        return ()
    messages, places = past.messages, {digest: index for index, digest in enumerate(past.chain.after)}
    found = [
        Placed(
            index=index,
            reply=_reply_to(messages, index),
            state=unpacked(item.payload),
            opened=bool(opening) and index >= opening[0],
            again=index == len(messages) - 1,
        )
        for item in hidden
        if (index := places.get(item.digest, -1)) >= 0
    ]
    return tuple(sorted(found, key=lambda each: each.index))


def _reply_to(messages: Sequence[Message], index: int) -> int | None:
    """The answer to what ends with message `index`, if it was sent back. System messages between them have the identity
    of what stands before them, so none is behind the last message of that identity."""
    place = index + 1
    return place if place < len(messages) and messages[place].role == "assistant" else None


def expansion(each: Placed, messages: Sequence[Message]) -> Expansion:
    """What is told at the place of the reply that was sent back: word for word what the model said, if it is that
    reply."""
    assert each.reply is not None
    state, sent_back = each.state, messages[each.reply]
    rounds = tuple(map(told, state.rounds))
    loaded = any(trace.kind == "SKILL_LOAD" for trace in state.traces)
    waits = state.pause is not None and each.answer is None
    if state.reply is None or state.shown != sent_back.digest or waits:
        return Expansion(before=rounds, stays=rounds if loaded else (), opened=each.opened)
    said, results = told(state.reply), tuple(map(told, state.results))
    # Where the user answered what it asks, it stands in the history as the model said it (`pauses`).
    stands = each.answer is not None
    if not stands:
        said, results = _apart(said, results, sent_back)
    ours = {result.results[0].call_id for result in results}
    stays = rounds
    if ours:
        stays += (message("assistant", tuple(call for call in said.calls if call.id in ours)), *results)
        said = said if stands else _with_their_ids(said, ours, sent_back)
    stays = stays if loaded else ()
    lawful((*rounds, said, *results))
    return Expansion(before=rounds, instead=said, behind=results, stays=stays, opened=each.opened)


def _apart(said: Message, results: tuple[Message, ...], sent_back: Message) -> tuple[Message, tuple[Message, ...]]:
    """`said` and our `results` with other ids for our calls, where the client gives theirs to its own."""
    ours = [result.call_id for item in results for result in item.results]
    taken = {call.id for call in sent_back.calls}
    if taken.isdisjoint(ours):
        return said, results
    names: dict[str, str] = {}
    for id in ours:
        name = id
        while name in taken:
            name += "_"
        names[id] = name
        taken |= {name}
    blocks = (
        msgspec.structs.replace(block, id=names.get(block.id, block.id)) if type(block) is ToolCall else block
        for block in said.blocks
    )
    answers = (
        message("tool", (msgspec.structs.replace(result, call_id=names[result.call_id]),))
        for item in results
        for result in item.results
    )
    return message(said.role, tuple(blocks)), tuple(answers)


def _with_their_ids(said: Message, ours: set[str], sent_back: Message) -> Message:
    """`said` with the ids that the client gives back for its own calls, for its results bear them."""
    ids = iter([call.id for call in sent_back.calls])
    blocks: list[Block] = []
    for block in said.blocks:
        if type(block) is ToolCall and block.id not in ours:
            block = msgspec.structs.replace(block, id=next(ids, block.id))
        blocks.append(block)
    return message(said.role, tuple(blocks))


def _words(item: Message) -> str:
    return "\n".join(block.text for block in item.blocks if isinstance(block, Text | ToolResult))
