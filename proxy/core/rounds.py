"""The tool rounds of one call: what the model asked of the gateway's own tools, and what the client sees of it.

A reply that calls only our tools is answered and the model goes on; one that calls the client's as well ends the call,
for the client has to answer first; both kinds are put back under one message next time. One that asks the user ends it
too, and what was asked is the end of what the client sees. Rounds are bounded: in the last one no tool may be called,
and what is called all the same is left unanswered and unseen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from proxy.core import hidden
from proxy.core.chain import measured, message
from proxy.core.conversation import Block, Message, Reasoning, ToolCall, ToolResult
from proxy.core.hidden import Behind, Paused, Said
from proxy.core.layers import Layers, rounded
from proxy.core.pauses import Pause, shown
from proxy.core.stack import Trace
from proxy.core.steps import Ran, Reply, RunTools
from proxy.core.usage import Usage

MOST: Final = 8
"""Rounds in which tools may be called, in one call of a client."""
_CUT: Final = ("length", "content_filter")
"""Ends of a reply that was cut off: what it asks for last may not be what it meant to ask for."""


class Rounds:
    """The rounds so far. `layers` are those of the prompt, with every finished round behind them; its first
    message of the history is `first`."""

    def __init__(self, layers: Layers, first: int = 0) -> None:
        self.layers = layers
        self._loaded = set(layers.loaded(first))
        self._replies: list[Reply] = []
        self._told: list[Said] = []
        self._results: tuple[Message, ...] = ()
        self._loads: list[Trace] = []
        self.count = 0
        """Rounds that our tools have answered."""
        self.pause: Pause | None = None
        """What the turn waits for."""

    def take(self, reply: Reply) -> RunTools | None:
        """Take in what the model said. What is to be run of it; None where the call ends here."""
        if reply.message is not None:
            said = measured(_sound(reply.message, self.layers.own, len(self._replies)))
            reply = msgspec.structs.replace(reply, message=said)
        self._replies.append(reply)
        self._results = ()
        own = self._own(reply.message)
        if not own or self.count >= MOST or reply.finish in _CUT:
            return None
        assert reply.message is not None  # it calls our tools
        alone = len(own) == len(reply.message.calls)
        return RunTools(calls=own, catalogue=self.layers.catalogue, loaded=frozenset(self._loaded), alone=alone)

    def ran(self, calls: Sequence[ToolCall], results: Sequence[Ran]) -> bool:
        """Take in what the tools gave back. Whether the model goes on: not where somebody has to answer first."""
        said = self._replies[-1].message
        assert said is not None
        self._results = tuple(
            message("tool", (ToolResult(call_id=call.id, text=ran.text),))
            for call, ran in zip(calls, results, strict=True)
            if ran.pause is None
        )
        self.pause = next((ran.pause for ran in results if ran.pause is not None), None)
        for ran in results:
            if ran.skill is not None and ran.skill not in self._loaded:
                self._loaded.add(ran.skill)
                self._loads.append(Trace(kind="SKILL_LOAD", id=ran.skill))
        self.count += 1
        if self.pause is not None or len(calls) < len(said.calls):
            return False
        told = (said, *self._results)
        self._told += map(hidden.kept, told)
        self.layers = rounded(self.layers, told, offered=self.count < MOST)
        self._results = ()
        return True

    @property
    def told(self) -> tuple[Said, ...]:
        """What was said and answered in the rounds that are told behind the history."""
        return tuple(self._told)

    def go_on(self, layers: Layers, first: int) -> None:
        """The history has got longer: `layers` are its, and tell the rounds up to now in their place."""
        self._told.clear()
        self.layers = layers if self.count < MOST else rounded(layers, (), offered=False)
        self._loaded |= layers.loaded(first)

    @property
    def replies(self) -> int:
        """How often the model was asked."""
        return len(self._replies)

    @property
    def read(self) -> int:
        """Prompt tokens of all rounds, as far as they were reported."""
        return sum(each.usage.input for each in self._replies if each.usage is not None)

    def reply(self) -> Reply:
        """What the client sees: one message with one end. Prompt tokens are those of the last round, the others'
        completions are added up."""
        last = self._replies[-1]
        asks = shown(self.pause) if self.pause is not None else ""
        seen = hidden.shown([each.message for each in self._replies], self.layers.own, asks)
        usage = last.usage
        if usage is not None:
            spent = [each.usage or Usage() for each in self._replies]
            output, thought = sum(each.output for each in spent), sum(each.reasoning for each in spent)
            usage = msgspec.structs.replace(usage, output=output, reasoning=thought)
        calls = seen is not None and bool(seen.calls)
        finish = "stop" if last.finish == "tool_calls" and not calls else last.finish
        said = [each.message.blocks for each in self._replies if each.message is not None]
        thoughts = "".join(block.text for blocks in said for block in blocks if type(block) is Reasoning)
        if seen is not None and thoughts:  # a stream has told them all; no identity is made of them
            seen = message(seen.role, (Reasoning(text=thoughts), *seen.blocks))
        return Reply(message=seen, finish=finish, usage=usage)

    def behind(self, shown: Message | None, now: float) -> Behind:
        """What is to be remembered behind the reply `shown`, given at `now` (unix seconds)."""
        kept = self.layers.kept
        if not self.count:
            return kept
        last = self._replies[-1].message
        if last is not None and not self._results and self.pause is None:
            last = _without(last, self.layers.own)
        return msgspec.structs.replace(
            kept,
            rounds=tuple(self._told),
            reply=hidden.kept(last) if last is not None and shown is not None else None,
            shown=shown.digest if shown is not None else b"",
            results=tuple(map(hidden.kept, self._results)),
            traces=(*kept.traces, *self._loads),
            pause=Paused(id=self.pause.id, at=now) if self.pause is not None else None,
        )

    def _own(self, said: Message | None) -> tuple[ToolCall, ...]:
        return () if said is None else tuple(call for call in said.calls if call.name in self.layers.own)


def _sound(said: Message, own: frozenset[str], number: int) -> Message:
    """`said` with an id of its own and a JSON object of arguments for each call of ours: some servers give no id, or
    one id to several calls, and refuse to read again what their model wrote. The client's are left as they were."""
    seen = {"", *(call.id for call in said.calls if call.name not in own)}
    blocks: list[Block] = []
    for place, block in enumerate(said.blocks):
        if type(block) is ToolCall and block.name in own:
            if block.id in seen:
                block = msgspec.structs.replace(block, id=f"call_{number}_{place}")
            seen.add(block.id)
            if not _is_object(block.arguments):
                block = msgspec.structs.replace(block, arguments="{}")
        blocks.append(block)
    return said if tuple(blocks) == said.blocks else message(said.role, tuple(blocks))


def _is_object(arguments: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(arguments), dict)
    except (ValueError, RecursionError):  # no JSON, or a lone surrogate
        return False


def _without(said: Message, own: frozenset[str]) -> Message | None:
    """`said` without calls that nobody answered."""
    blocks = tuple(block for block in said.blocks if not (type(block) is ToolCall and block.name in own))
    if len(blocks) == len(said.blocks):
        return said
    return message(said.role, blocks) if blocks else None
