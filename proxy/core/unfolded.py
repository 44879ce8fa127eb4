"""What was said in a conversation, block by block: what was shown, and at its place what only the model knows.

Pure: of shown messages, of the hidden state placed among them, and of what is stored with each. What was one answer to
the client is told here as it came about: thoughts, words, our own calls with their results, the question that paused
the turn, the notes that a compaction made. The laws of blocks hold for all of it (`conversation`). Never: ids, the wire
form (`dialects.conversation_items`), what is told in the next prompt (`telling`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from proxy.core.conversation import (
    Approval,
    Audience,
    Block,
    Clarification,
    CompactionBlock,
    Message,
    Reasoning,
    Role,
    Text,
    ToolCall,
    ToolResult,
)
from proxy.core.hidden import Placed, Said, told
from proxy.core.notes import Compaction
from proxy.core.pauses import Pause, shown
from proxy.core.render import notes_text

Ask = Callable[[str, str, str], Pause | None]
"""What a call (id, name, arguments) asks the user; None where it asks nothing."""


class Besides(msgspec.Struct, frozen=True, kw_only=True):
    """What is stored with an answer: what its model thought, whether it is the turn's, and the notes that came into use
    with it."""

    reasoning: str = ""
    final: bool = False
    compaction: Compaction | None = None


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks of one role."""

    role: Role
    blocks: tuple[Block, ...]


_NOTHING: Final = Besides()


def unfolded(
    messages: Sequence[Message], placed: Sequence[Placed], besides: Mapping[int, Besides], asks: Ask
) -> tuple[tuple[Part, ...], ...]:
    """Each message with what was said at its place, in order: it, or what it came about as, and what our tools did
    behind it that no answer of the model's stands for."""
    states = _states(messages, placed)
    ran = _ran(messages, placed, states)
    waiting: set[str] = set()
    found: list[tuple[Part, ...]] = []
    for index, item in enumerate(messages):
        if item.role == "assistant":
            blocks = _answer(item, states.get(index), besides.get(index, _NOTHING), asks)
            waiting = {block.id for block in blocks if type(block) is ToolCall and block.audience is Audience.BOTH}
        else:
            blocks = tuple([_answering(block, waiting) for block in item.blocks])
            waiting = waiting if item.results else set()
        behind = ran.get(index, ())
        parts = (Part(role=item.role, blocks=blocks), *((Part(role="assistant", blocks=behind),) if behind else ()))
        found.append(parts)
    return tuple(found)


def _states(messages: Sequence[Message], placed: Iterable[Placed]) -> Mapping[int, Placed]:
    """Hidden state by the answer that it stands behind. Of two answers to one request, that which was kept."""
    found: dict[int, Placed] = {}
    for each in placed:
        if each.reply is not None and (each.reply not in found or _exact(each, messages)):
            found[each.reply] = each
    return found


def _exact(placed: Placed, messages: Sequence[Message]) -> bool:
    """Whether the answer is there as it was given, and not a part of it."""
    state, reply = placed.state, placed.reply
    return reply is not None and state.reply is not None and state.shown == messages[reply].digest


def _ran(
    messages: Sequence[Message], placed: Iterable[Placed], states: Mapping[int, Placed]
) -> Mapping[int, tuple[Block, ...]]:
    """Rounds of ours behind the messages of users: before somebody spoke into the turn, or where it has no answer."""
    found: dict[int, tuple[Block, ...]] = {}
    for each in placed:
        state = each.state
        if state.ahead:
            place = each.index - state.spoken
            answer = next((at for at in range(place, len(messages)) if messages[at].role == "assistant"), -1)
            heard = answer in states and _exact(states[answer], messages)
            found[place] = _rounds(state.ahead, heard=heard)
        if each.reply is None and state.rounds:
            found.setdefault(each.index, _rounds(state.rounds, heard=False))
    return found


def _rounds(rounds: Iterable[Said], *, heard: bool) -> tuple[Block, ...]:
    """Rounds of ours. Their words are part of the answer that the client has, if it has that answer (`heard`)."""
    words = Audience.BOTH if heard else Audience.TOLD
    blocks = [block for said in rounds for block in told(said).blocks]
    return tuple([_heard(block, words if type(block) is Text else Audience.TOLD) for block in blocks])


def _answer(item: Message, placed: Placed | None, known: Besides, asks: Ask) -> tuple[Block, ...]:
    notes = () if known.compaction is None else (_noted(known.compaction),)
    if placed is None:
        return (*notes, *_finished(_as_shown(item, known), known))
    exact = placed.state.reply is not None and placed.state.shown == item.digest
    said = _as_said(item, placed, asks) if exact else _as_shown(item, known)
    return (*notes, *_rounds(placed.state.rounds, heard=exact), *_finished(said, known))


def _as_shown(item: Message, known: Besides) -> tuple[Block, ...]:
    """What the client has. Thoughts are not told again, once their turn is over."""
    thoughts = () if any(type(block) is Reasoning for block in item.blocks) else _thought(known.reasoning)
    return (*thoughts, *(_heard(block, Audience.SHOWN) if type(block) is Reasoning else block for block in item.blocks))


def _thought(text: str) -> tuple[Reasoning, ...]:
    return (Reasoning(text=text, audience=Audience.SHOWN),) if text else ()


def _as_said(item: Message, placed: Placed, asks: Ask) -> tuple[Block, ...]:
    """The last round, as the model said it: its calls that are ours and their results, those of the client's with the
    ids that the client knows, and what it asks of the user."""
    state = placed.state
    assert state.reply is not None
    ours = {result.answers for result in state.results}
    theirs = iter([call.id for call in item.calls])
    blocks: list[Block] = []
    for block in told(state.reply).blocks:
        if type(block) is not ToolCall:
            blocks.append(_heard(block, Audience.TOLD) if type(block) is Reasoning else block)
        elif state.pause is not None and block.id == state.pause.id:
            asked = asks(block.id, block.name, block.arguments)
            if asked is not None:
                blocks.append(Text(text=shown(asked), audience=Audience.SHOWN))
            blocks.append(asked or _heard(block, Audience.TOLD))
        elif block.id in ours:
            blocks.append(_heard(block, Audience.TOLD))
        else:
            blocks.append(msgspec.structs.replace(block, id=next(theirs, block.id)))
    results = [_heard(block, Audience.TOLD) for result in state.results for block in told(result).blocks]
    return (*blocks, *results)


def _noted(compaction: Compaction) -> CompactionBlock:
    manual = compaction.trigger == "MANUAL"
    return CompactionBlock(notes=notes_text(compaction), trigger="MANUAL" if manual else "AUTO")


def _finished(blocks: tuple[Block, ...], known: Besides) -> tuple[Block, ...]:
    """`blocks` with their last words marked as the answer, where they are one."""
    if not known.final or any(isinstance(block, Clarification | Approval) for block in blocks):
        return blocks
    for place in range(len(blocks) - 1, -1, -1):
        block = blocks[place]
        if type(block) is Text:
            return (*blocks[:place], msgspec.structs.replace(block, final=True), *blocks[place + 1 :])
    return blocks


def _heard(block: Block, audience: Audience) -> Block:
    return block if block.audience is audience else msgspec.structs.replace(block, audience=audience)


def _answering(block: Block, waiting: set[str]) -> Block:
    """A result, if it answers a call that has none; what answers nothing is words."""
    if type(block) is not ToolResult:
        return block
    if block.call_id not in waiting:
        return Text(text=block.text, media=block.media)
    waiting.discard(block.call_id)
    return block
