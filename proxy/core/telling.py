"""What one call's history is, and the prompts that can be made of it.

Worked out once per call: the repaired messages, their identities, what the store knows of them, the room there is, and
the scale between our estimates and the provider's tokens. `exchange` decides; this file only tells what each choice
would be. Never: plans, and what an answer teaches (`branch`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Final, Literal

import msgspec

from proxy.core import chain, compaction, groups, guards, layers, measure
from proxy.core.conversation import Message, ToolResult
from proxy.core.hidden import Placed, placed
from proxy.core.layers import Layers
from proxy.core.memory import Remembered, Teller
from proxy.core.notes import Compaction
from proxy.core.own_compaction import asks_for_summary
from proxy.core.pacing import pace_of
from proxy.core.pauses import PAUSING, taken_up, unmarked
from proxy.core.policy import Mode
from proxy.core.recognition import recognise, told
from proxy.core.render import clipped
from proxy.core.replayed import READ_TOOL_RESULT
from proxy.core.steps import (
    Anchor,
    Call,
    Count,
    Flow,
    Memory,
    Prompt,
    Ratio,
    Recall,
    Report,
    Snapshot,
    Stored,
)
from proxy.core.tail import clip
from proxy.core.turned import told as shortat

Done = Literal["none", "auto", "recovered", "manual"]

_DOUBT: Final = 0.3
"""How wrong an estimate may be before it is worth counting exactly."""
_NEAR: Final = 0.75
"""A branch that was compacted is told whole again only where it would fill less than this share of the trigger."""


class Telling:
    """The history of one call, and how it can be told."""

    def __init__(self, call: Call, snap: Snapshot) -> None:
        self.call = call
        self.snap = snap
        self.repaired = 0
        self.shown = recognise(snap.start, call.messages, call.known)
        if not self.shown.sound:
            repaired = groups.repair(call.messages)
            self.repaired = repaired.count
            self.shown = recognise(snap.start, repaired.messages)
        self.past = told(self.shown)
        self.messages = self.past.messages
        self.chain = self.past.chain
        self.limits = snap.limits
        self.memory = Memory()
        self.anchor: Anchor | None = None
        """The last reported size on this branch, if it was for this upstream and model."""
        self.scale = snap.ratio.value
        self._exact: tuple[int, ...] | None = None
        self._told = False
        self.guard = guards.Guard()
        self.layers = layers.NONE
        self.behind = self.layers.kept
        """What the told transcript has behind this call's answer."""
        self.teller: Teller | None = None
        """How its closed turns are told; None: word for word."""
        self.base: Compaction | None = None
        """The least that may be told in place of turns that slid out of memory."""
        self.hidden: tuple[Placed, ...] = ()
        """What the told transcript has behind earlier answers."""
        self.paused = False
        """Whether it ends with a question to its user."""
        self._memories: dict[str, tuple[Remembered, Layers]] = {}
        self.asked = False
        """Whether a model was asked for a narrative in this call."""
        self.why = ""
        """Why the last narrative was not taken, if one was asked for."""
        self.made: Compaction | None = None
        """The compaction that this call made."""

    @property
    def key(self) -> bytes:
        """What a lease on compacting this branch is taken under."""
        return self.chain.after[0]

    @property
    def conversation(self) -> str:
        """The id of this conversation: the known one, else a new one."""
        return self.call.owned or self.memory.conversation or self.snap.fresh

    @property
    def room(self) -> measure.Room | None:
        return measure.room(self.snap.policy, self.limits, self.call.max_output)

    def recall(self) -> Flow[None]:
        """Ask the store for every boundary of this history, unless it is too young to be known."""
        # Where no answer of ours is in it, notes may be: the opening messages alone may be too long.
        opening = self.call.label is None and not self.past.answered
        self.memory = yield from Recall(
            scope=self.snap.scope,
            agent=self.snap.agent,
            label=self.call.label,
            named=self.call.label is not None or self.call.caller.end_user is not None,
            digests=self.past.places[:-1] if opening else self.past.places,
        )
        if opening:
            # Whoever opens with the same words begins a conversation of his own.
            self.memory = msgspec.structs.replace(self.memory, conversation=None)
        if self.memory.anchor is not None and self.memory.anchor.guard is not None:
            self.guard = self.guarded()
        anchor = self.memory.anchor
        if anchor is None or anchor.upstream != self.snap.upstream or anchor.model != self.snap.model:
            return
        self.anchor = anchor
        if anchor.estimated > 0:
            self.scale = measure.learn(Ratio(), anchor.reported, anchor.estimated).value

    def resume(self) -> None:
        """Put what the store hid in its place; where the user answered a question, the turn goes on."""
        stack = self.snap.stack
        if stack is None or self.snap.mode is not Mode.ENFORCE:
            return
        if stack.agent is not None and not frozenset(PAUSING).isdisjoint(stack.agent.tools):
            self.past = unmarked(self.past, stack.dressing.plain)
        if self.memory.hidden:
            found = placed(self.past, self.memory.hidden, groups.newest(self.messages))
            # A client's own compaction request is no answer to what the model asked.
            answers = not asks_for_summary(self.messages)
            expires = self.snap.policy.pause_expires
            taken = taken_up(self.past, found, self.snap.now, expires, answers=answers)
            self.past, self.hidden, self.paused = taken.past, taken.behind, taken.open
        self.messages, self.chain = self.past.messages, self.past.chain

    def layer(self, *, settled: bool = False) -> None:
        """Put the operator's layers around this history. `settled`: its newest turn is over. Raises NotFound, Conflict
        or Malformed (see `layers`)."""
        stack = self.snap.stack
        if stack is None or self.snap.mode is not Mode.ENFORCE:
            return
        self.layers = layers.layered(stack, self.past, self.hidden, settled=settled)
        self.behind = self.layers.kept
        limits = stack.agent.memory if stack.agent is not None else None
        # A client's own compaction request reads everything: it hides nothing from its own notes.
        if limits is not None and not asks_for_summary(self.messages):
            self.teller = Teller(
                messages=self.messages,
                chain=self.chain,
                known=self.layers.expansions,
                limits=limits,
                pace=pace_of(limits, self.snap.card.tariff),
                refer=self.refer if READ_TOOL_RESULT in self.layers.own else None,
                recollection=self.snap.recollection,
                written=stack.dressing.written,
                settled=settled,
            )

    # -- memory -------------------------------------------------------------------------------------------------

    def remembered(self, used: Compaction | None) -> Remembered | None:
        """How the closed turns are told behind `used`; None: word for word."""
        return None if self.teller is None else self._recalled(self.teller, used)[0]

    def layers_of(self, used: Compaction | None) -> Layers:
        """The layers of a prompt with `used` applied, the memory of its turns among them."""
        if self.teller is None:
            return self.layers
        memory, told = self._recalled(self.teller, used)
        return layers.remembering(self.layers, memory.expansions, memory.net) if self.layers.rounds else told

    def _recalled(self, teller: Teller, used: Compaction | None) -> tuple[Remembered, Layers]:
        key = used.id if used is not None else ""
        found = self._memories.get(key)
        if found is None:
            kept = range(len(self.messages)) if used is None else compaction.remaining(self.messages, self.chain, used)
            if used is not None and used.clips:
                memory = self._clipped(teller, kept, used)
            else:
                memory = teller.remembered(kept, key)
            found = memory, layers.remembering(self.layers, memory.expansions, memory.net)
            self._memories[key] = found
        return found

    def _clipped(self, teller: Teller, kept: Sequence[int], used: Compaction) -> Remembered:
        """The memory behind `used`, whose plan cut some of its messages: prose before it is joined, and results to what
        the plan left of them, however much more memory would tell."""
        limits = {self.chain.behind(counted) - 1: limit for counted, limit in used.clips}
        messages = tuple(
            clip(item, limits.get(index)) if not item.results else item for index, item in enumerate(self.messages)
        )
        told = msgspec.structs.replace(teller, messages=messages, variant=used.id)
        memory = told.remembered(kept, used.id)
        expansions = dict(memory.expansions)
        for index, limit in limits.items():
            said, whole = memory.expansions.get(index), self.messages[index].results
            if said is not None and said.instead is not None and said.instead.results and whole:
                # Cut anew: a cut in what memory left would count too little, and might fall into its reference.
                left, short = clipped(whole[0].text, limit), said.instead.results[0]
                if len(left) < len(short.text):
                    result = chain.message("tool", (ToolResult(call_id=short.call_id, text=left),))
                    expansions[index] = msgspec.structs.replace(said, instead=result)
        return msgspec.structs.replace(memory, expansions=expansions)

    def loosest(self) -> Layers:
        """The layers of the largest prompt that memory allows for: what a plan has to count on."""
        if self.teller is None:
            return self.layers
        most = self.teller.loosest()
        return layers.remembering(self.layers, most.expansions, most.net)

    def refer(self, text: str) -> str:
        """The reference of a whole result."""
        return chain.reference(self.snap.scope, text)

    def wholes(self, prompt: Prompt) -> tuple[Stored, ...]:
        """The whole results that `prompt` tells cut, as far as they are not known to be stored."""
        memory = self.remembered(self.in_use(prompt)) if self.teller is not None else None
        if memory is None:
            return ()
        found: dict[str, Stored] = {}
        for reference, index, place in memory.wholes:
            if reference not in found and not self.snap.holds(reference):
                (result,) = shortat(self.messages[index], self.layers.expansions.get(index))[place].results
                found[reference] = Stored(reference=reference, text=self.snap.redact(result.text))
        return tuple(found.values())

    def holds(self, used: Compaction | None) -> bool:
        """Whether `used` may stand for what it covers: not where turns behind it have slid out, and are to be told in
        notes."""
        memory = self.remembered(used)
        return memory is None or memory.since is None

    @cached_property
    def closed(self) -> tuple[int, ...]:
        """The last message of each closed turn, but for system messages."""
        return tuple([groups.ended(self.messages, turn) for turn in groups.turns(self.messages)[:-1]])

    def whole(self) -> Prompt:
        """The prompt that leaves out least."""
        return self.prompt(self.base, "auto")

    # -- prompts ------------------------------------------------------------------------------------------------

    def prompt(self, used: Compaction | None, done: Done = "none", max_output: int | None = None) -> Prompt:
        """The prompt with `used` applied, measured. `max_output` replaces the client's where it is given."""
        worn = self.layers_of(used)
        told = self._dressed(used, worn)
        merged = 0
        if self.snap.policy.alternate:
            fixed = groups.repair(told, alternate=True)
            told, merged = fixed.messages, fixed.count
        estimated = self._estimated if told is self.messages else measure.prompt_tokens(told, self._tools_tokens)
        shape = self._shape(used)
        unread, trimmed = (0, 0) if used is None and self.teller is None else self._left_out(used, estimated)
        return Prompt(
            messages=told,
            untouched=told is self.call.messages,
            max_output=self.call.max_output if max_output is None else max_output,
            estimated=estimated,
            shape=shape,
            report=Report(
                conversation=self.conversation,
                tokens=self._projected(estimated, shape, worn if used is None else None),
                window=self._window,
                compaction=done if used else "none",
                compaction_id=used.id if used else None,
                writer=used.writer if used else None,
                stopped=guards.stopped(self.guard, self.snap.policy.failure_limit),
                repaired=self.repaired + merged,
                output=max_output,
                unread=unread,
                trimmed=trimmed,
            ),
            members=self.layers.members,
            own=self.layers.own,
        )

    def _left_out(self, used: Compaction | None, estimated: int) -> tuple[int, int]:
        """By how many of the provider's tokens notes and memory make a prompt of `estimated` tokens shorter."""
        memory = self.remembered(used)
        trimmed = -memory.net if memory is not None else 0
        return round((self._estimated - estimated - trimmed) * self.scale), round(trimmed * self.scale)

    def _dressed(self, used: Compaction | None, worn: Layers) -> tuple[Message, ...]:
        if used is None:
            return worn.told(self.messages, range(len(self.messages)), None)
        told = compaction.assemble(self.messages, self.chain, used, self.snap.noted or compaction.notes_message)
        if worn is layers.NONE:
            return told
        kept = compaction.remaining(self.messages, self.chain, used)
        return worn.told(told, kept, len(told) - len(kept) - 1 if compaction.speaks(used) else None)

    def _shape(self, used: Compaction | None) -> bytes:
        """What an anchor of a prompt with `used` holds for."""
        system, offer = self.past.system, self.layers.offer
        if self.layers.leading is not None:
            system += self.layers.leading.digest
        tools = self.call.tools_digest if offer is None else offer.digest
        told = used.id if used else None
        memory = self.remembered(used)
        if memory is not None:
            bounds = memory.window
            told = f"{told or ''} {bounds.first} {bounds.results} {bounds.trimmed}"
        return chain.shape(system, tools, told)

    @property
    def _tools_tokens(self) -> int:
        return self.call.tools_tokens if self.layers.offer is None else self.layers.offer.tokens

    @property
    def _estimated(self) -> int:
        """The whole history as a prompt."""
        return measure.PROMPT_OVERHEAD + self._tools_tokens + self.past.tokens + self.layers.extra

    @property
    def _window(self) -> int | None:
        total, input = self.limits.total, self.limits.input
        return min(total, input) if total and input else total or input or None

    def _projected(self, estimated: int, shape: bytes, whole: Layers | None) -> int:
        anchor = self.anchor
        if anchor is not None and anchor.shape == shape:
            return measure.project(estimated, Ratio(value=self.scale), anchor)
        if whole is not None and self._exact is not None:
            less = whole.extra - self.layers.extra
            return self._counted_total() + round(less * self.snap.exact_ratio.value)
        return round(estimated * self.scale)

    def same_again(self) -> Prompt | None:
        """The prompt that answered this very request before: a repeated request takes no new decision."""
        anchor = self.anchor
        if anchor is None or anchor.request != self.chain.last:
            return None
        used = self._named(anchor.compaction)
        if anchor.compaction is not None and used is None:
            return None
        prompt = self.prompt(used, "auto")
        room = self.room
        # Accepted once at this very size, it needs no margin for what we might have misjudged.
        fits = room is None or prompt.report.tokens < room.window
        return prompt if prompt.shape == anchor.shape and fits else None

    def compacted_before(self, bound: int | None) -> Prompt | None:
        """The least compacted known prompt within `bound` tokens (None: any, but only where this branch was compacted).

        Once a branch is told through a compaction it is not told through a shorter one again: the decision would
        move with every small change of the measure, and the provider's cache with it.
        """
        last = self.used_before
        if bound is None and last is None:
            return None
        for found in self._applicable():
            if last is not None and found.covers < last.covers:
                continue
            prompt = self.prompt(found, "auto")
            if bound is None or prompt.report.tokens <= bound:
                return prompt
        return None

    def smallest(self, whole: Prompt) -> Prompt:
        """The smallest prompt without a new compaction."""
        known = [self.prompt(found, "auto") for found in self._applicable()[-1:]]
        return min([whole, *known], key=lambda prompt: prompt.report.tokens)

    def was_compacted(self, whole: Prompt, bound: int) -> bool:
        """Whether `whole`, though it fits, is too close to the trigger to leave a compaction in use, or the user asked
        for that one."""
        used = self.used_before
        return used is not None and (used.trigger == "MANUAL" or whole.report.tokens > _NEAR * bound)

    def uncertain(self, prompt: Prompt, bound: int) -> bool:
        """Whether an exact count could turn the decision: nothing reported yet, and the estimate near `bound`."""
        if self._exact is not None or self.anchor is not None:
            return False
        return abs(prompt.report.tokens - bound) < _DOUBT * prompt.report.tokens

    def observed(self, prompt: Prompt) -> Prompt:
        """Mode observe: the client's own bytes go out; the report says what would have been done."""
        return msgspec.structs.replace(
            prompt, messages=self.call.messages, untouched=True, verbatim=True, max_output=self.call.max_output
        )

    def in_use(self, prompt: Prompt) -> Compaction | None:
        """The compaction that `prompt` holds."""
        id = prompt.report.compaction_id
        return self.made if self.made is not None and self.made.id == id else self._named(id)

    def first(self, prompt: Prompt) -> int:
        """The first message of the history that `prompt` tells behind its notes, if it has any."""
        used = self.in_use(prompt)
        kept = compaction.remaining(self.messages, self.chain, used) if used is not None else []
        return kept[0] if kept else 0

    @property
    def known(self) -> tuple[Compaction, ...]:
        """The compactions that belong to this history, the least compacted first."""
        return compaction.applicable(self.memory.compactions, self.chain)

    @property
    def used_before(self) -> Compaction | None:
        """The compaction that this branch was told with in its last call."""
        return self._named(self.anchor.compaction) if self.anchor is not None else None

    def _applicable(self) -> tuple[Compaction, ...]:
        found = self.known
        least = self.base.covers if self.base is not None else 0
        return tuple([each for each in found if each.covers >= least]) if least else found

    def _named(self, id: str | None) -> Compaction | None:
        return next((found for found in self._applicable() if found.id == id), None) if id else None

    # -- sizes and guards ---------------------------------------------------------------------------------------

    def count(self) -> Flow[None]:
        """Exact counts of every message, where no report tells: a compaction's plan should not rest on estimates."""
        if self._exact is None and self.anchor is None and not self._told:
            self._exact = yield from Count(messages=self.messages, encoding=self.snap.card.encoding)
            self.scale = self._counted_total() / max(1, self._estimated)

    @property
    def counted(self) -> int:
        """Exact tokens of the whole history by our own count; 0 where it was not counted."""
        return sum(self._exact) if self._exact is not None else 0

    def _counted_total(self) -> int:
        assert self._exact is not None
        frame = measure.PROMPT_OVERHEAD + self._tools_tokens + measure.MESSAGE_OVERHEAD * len(self.messages)
        return round((self.counted + frame + self.layers.extra) * self.snap.exact_ratio.value)

    def guarded(self) -> guards.Guard:
        """The guard as this call finds it."""
        if self.memory.anchor is None or self.memory.anchor.guard is None:
            return guards.Guard()
        return guards.moved(self.memory.anchor.guard, guards.Faced(model=self.snap.model, window=self._window))

    def move(self, event: guards.Event) -> None:
        """Take in what happened to compaction on this branch."""
        self.guard = guards.moved(self.guard, event)
