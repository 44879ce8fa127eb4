"""A conversation that the gateway keeps, read back: its messages with what only the model knows, and how it stands.

Belongs here: what is asked of the store for it, and a conversation's state. Never: what a block is (`core.unfolded`),
how one is written (`dialects.conversation_items`), whose a conversation is (`conversations`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from proxy.core import chain
from proxy.core.conversation import Message
from proxy.core.hidden import Placed, placed
from proxy.core.notes import Compaction
from proxy.core.past import Past
from proxy.core.recognition import recognise
from proxy.core.steps import Caller, Hidden, Recall
from proxy.core.unfolded import Besides, Part, unfolded
from proxy.dialects.chat.messages import read_message
from proxy.dialects.chat.reply import pause_body
from proxy.server.desk import Desk
from proxy.store.owned import Item, Owned
from proxy.tools.questions import asked
from proxy.turn import waits

_SLICE: Final = 200
"""Messages that are read before others on the loop have a turn."""
_AGAIN: Final = 64
"""Compactions that are looked for one by one: the store tells of those that reach furthest."""


class Retold(msgspec.Struct, frozen=True, kw_only=True):
    """The path of a conversation, its messages, what is hidden among them, and the compactions by their ids."""

    path: tuple[Item, ...]
    messages: tuple[Message, ...]
    behind: tuple[Placed, ...]
    compactions: Mapping[str, Compaction]

    def parts(self) -> tuple[tuple[Part, ...], ...]:
        """What was said at the place of each message."""
        return unfolded(self.messages, self.behind, self._besides(), asked)

    def begun(self) -> Mapping[int, str]:
        """Where each compaction came into use: at the first answer whose prompt it was in."""
        places: dict[str, int] = {}
        for index, item in enumerate(self.path):
            if item.compaction is not None:
                places.setdefault(item.compaction, index)
        return {index: id for id, index in places.items()}

    def _besides(self) -> Mapping[int, Besides]:
        begun = self.begun()
        return {
            index: Besides(
                reasoning=item.reasoning, final=item.final, compaction=self.compactions.get(begun.get(index, ""))
            )
            for index, item in enumerate(self.path)
            if item.role == "assistant"
        }


async def retold(desk: Desk, caller: Caller, owned: Owned) -> Retold:
    """`owned` as it stands. Raises StoreUnavailable."""
    path = await desk.conversing.kept.path(caller.tenant, caller.key, owned.id)
    mine = msgspec.structs.replace(caller, end_user=owned.end_user)
    scope = desk.gateway.snapshots.scope_of(mine)
    past = recognise(chain.begin(scope), await _read(desk, caller, path))
    hidden: list[Hidden] = []
    compactions: dict[str, Compaction] = {}

    async def recall(agent: str, digests: tuple[bytes, ...]) -> None:
        ask = Recall(scope=scope, agent=agent, label=owned.id, named=True, digests=digests)
        memory = await desk.gateway.store.recall(caller.tenant, ask, desk.gateway.wall())
        compactions.update((each.id, each) for each in memory.compactions)
        hidden.extend(memory.hidden)

    for agent in dict.fromkeys(item.model for item in path if item.model):
        await recall(agent, past.places)
    behind = placed(past, hidden, ())
    found = Retold(path=path, messages=past.messages, behind=behind, compactions=compactions)
    for index, id in sorted(found.begun().items(), reverse=True)[:_AGAIN]:
        if id not in compactions:
            await recall(path[index].model, _up_to(past, index))
    return found


async def _read(desk: Desk, caller: Caller, path: Sequence[Item]) -> tuple[Message, ...]:
    read = desk.decoded.reader(caller.tenant, partial(read_message, depth=desk.bounds.depth))
    messages: list[Message] = []
    for index, item in enumerate(path):
        messages.append(read(item.wire, index))
        if index % _SLICE == _SLICE - 1:
            await asyncio.sleep(0)
    return tuple(messages)


def _up_to(past: Past, index: int) -> tuple[bytes, ...]:
    """The boundaries up to message `index`, newest first."""
    return past.places[len(past.places) - 1 - past.chain.counted[index] :]


def open_calls(messages: Sequence[Message]) -> frozenset[str]:
    """The calls of the newest answer that have no result yet."""
    answered: set[str] = set()
    for item in reversed(messages):
        if item.role == "assistant":
            return frozenset(call.id for call in item.calls) - answered
        if not item.results:
            break
        answered |= {result.call_id for result in item.results}
    return frozenset()


def paused(desk: Desk, caller: Caller, owned: Owned, told: Retold) -> bool:
    """Whether a conversation waits for what its user says."""
    last = owned.last
    if last is None or not last.paused:
        return False
    led = desk.directory.destination_of(last.model, msgspec.structs.replace(caller, end_user=owned.end_user))
    asked = _question(told)
    if asked is not None and asked.state.pause is not None:
        last = msgspec.structs.replace(last, created_at=asked.state.pause.at)
    return led is None or waits(last, led.policy.pause_expires, desk.gateway.wall())


def state(owned: Owned, told: Retold, *, paused: bool) -> dict[str, Any]:
    """What a conversation waits for, how long it is, and how full its window was at its last answer."""
    answer = next((item for item in reversed(told.path) if item.tokens is not None), None)
    effort = next((item.effort for item in reversed(told.path) if item.effort), None)
    fill = answer.tokens / answer.window if answer is not None and answer.tokens and answer.window else None
    said: dict[str, Any] = {
        "state": _state(owned, told, paused),
        "turns": owned.last.turn if owned.last is not None else 0,
        "effort": effort,
        "window_fill": None if fill is None else round(fill, 4),
        "tokens": None if answer is None else answer.tokens,
        "window": None if answer is None else answer.window,
        "compactions": [
            _compaction(told.compactions[id], told.path[index])
            for index, id in sorted(told.begun().items())
            if id in told.compactions
        ],
    }
    pause = _pause(told) if said["state"] == "paused" else None
    return said | pause if pause is not None else said


def _state(owned: Owned, told: Retold, paused: bool) -> str:
    """idle, running, paused (for what the user says), or waiting (for results of the client's tools)."""
    if owned.run is not None:
        return "running"
    if paused:
        return "paused"
    return "waiting" if open_calls(told.messages) else "idle"


def _pause(told: Retold) -> dict[str, object] | None:
    """What the user was asked, as the answer that asks it says it."""
    found = _question(told)
    if found is None or found.state.pause is None or found.state.reply is None:
        return None
    for id, name, arguments, _ in found.state.reply.calls:
        question = asked(id, name, arguments) if id == found.state.pause.id else None
        if question is not None:
            return pause_body(question)
    return None


def _question(told: Retold) -> Placed | None:
    """Where the user was asked last. Commands may stand behind it."""
    asking = [each for each in told.behind if each.reply is not None and each.state.pause is not None]
    return max(asking, key=lambda each: each.reply or 0, default=None)


def _compaction(made: Compaction, item: Item) -> dict[str, object]:
    return {
        "id": made.id,
        "trigger": made.trigger,
        "writer": made.writer,
        "turn": item.turn,
        "turns": made.notes.turns,
        "tokens_before": made.before,
        "tokens_after": made.after,
    }
