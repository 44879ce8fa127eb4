"""What one call's history is, and the prompts that can be made of it.

Worked out once per call: the repaired messages, their identities, what the store knows of them, the room there is, and
the scale between our estimates and the provider's tokens. `exchange` decides; this file only tells what each choice
would be. What a refusal teaches changes this call's view at once, and is remembered for the next ones.
"""

from __future__ import annotations

from functools import partial
from typing import Final, Literal

import msgspec

from proxy.core import chain, compaction, groups, guards, measure, overflow
from proxy.core.errors import Overflow
from proxy.core.ledger import sightings
from proxy.core.notes import Compaction
from proxy.core.policy import Mode
from proxy.core.recognition import recognise, told
from proxy.core.steps import (
    Anchor,
    Call,
    Count,
    Flow,
    Limits,
    Memory,
    Prompt,
    Ratio,
    Recall,
    Remember,
    Reply,
    Report,
    Snapshot,
    Stored,
)
from proxy.core.tail import History

Done = Literal["none", "auto", "recovered", "manual"]

_DOUBT: Final = 0.3
"""How wrong an estimate may be before it is worth counting exactly."""
_UNKNOWN: Final = 0.9
"""Without any number in a refusal, the window is taken to be this share of what we sent."""
_NEAR: Final = 0.75
"""A branch that was compacted is told whole again only where it would fill less than this share of the trigger."""


class Branch:
    """The history of one call."""

    def __init__(self, call: Call, snap: Snapshot) -> None:
        start = chain.begin(snap.scope)
        self.call = call
        self.snap = snap
        self.repaired = 0
        self.shown = recognise(start, call.messages, call.known)
        if not self.shown.sound:
            repaired = groups.repair(call.messages)
            self.repaired = repaired.count
            self.shown = recognise(start, repaired.messages)
        self.past = told(self.shown)
        self.messages = self.past.messages
        self.chain = self.past.chain
        self.limits = snap.limits
        self.memory = Memory()
        self.scale = snap.ratio.value
        self._exact: tuple[int, ...] | None = None
        self._told = False
        self.guard = guards.Guard()
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
    def room(self) -> measure.Room | None:
        return measure.room(self.snap.policy, self.limits, self.call.max_output)

    @property
    def anchor(self) -> Anchor | None:
        """The last reported size on this branch, if it was for this upstream and model."""
        found = self.memory.anchor
        if found is None or (found.upstream, found.model) != (self.snap.upstream, self.snap.model):
            return None
        return found

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
            self.guard = self.memory.anchor.guard
            self.move(guards.Faced(model=self.snap.model, window=self._window))
        anchor = self.anchor
        if anchor is not None and anchor.estimated > 0:
            self.scale = measure.learn(Ratio(), anchor.reported, anchor.estimated).value

    # -- prompts ------------------------------------------------------------------------------------------------

    def prompt(self, used: Compaction | None, done: Done = "none", max_output: int | None = None) -> Prompt:
        """The prompt with `used` applied, measured. `max_output` replaces the client's where it is given."""
        told = self.messages if used is None else compaction.assemble(self.messages, self.chain, used)
        merged = 0
        if self.snap.policy.alternate:
            fixed = groups.repair(told, alternate=True)
            told, merged = fixed.messages, fixed.count
        estimated = self._estimated if told is self.messages else measure.prompt_tokens(told, self.call.tools_tokens)
        shape = chain.shape(self.past.system, self.call.tools_digest, used.id if used else None)
        return Prompt(
            messages=told,
            untouched=told is self.call.messages,
            max_output=self.call.max_output if max_output is None else max_output,
            estimated=estimated,
            shape=shape,
            report=Report(
                conversation=self.memory.conversation or self.snap.fresh,
                tokens=self._projected(estimated, shape, whole=used is None),
                window=self._window,
                compaction=done if used else "none",
                compaction_id=used.id if used else None,
                writer=used.writer if used else None,
                stopped=guards.stopped(self.guard, self.snap.policy.failure_limit),
                repaired=self.repaired + merged,
                output=max_output,
            ),
        )

    @property
    def _estimated(self) -> int:
        """The whole history as a prompt."""
        return measure.PROMPT_OVERHEAD + self.call.tools_tokens + self.past.tokens

    @property
    def _window(self) -> int | None:
        bounds = [value for value in (self.limits.total, self.limits.input) if value]
        return min(bounds) if bounds else None

    def _projected(self, estimated: int, shape: bytes, *, whole: bool) -> int:
        anchor = self.anchor
        if anchor is not None and anchor.shape == shape:
            return measure.project(estimated, Ratio(value=self.scale), anchor)
        if whole and self._exact is not None:
            return self._counted_total()
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
        last = self._named(self.anchor.compaction if self.anchor is not None else None)
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
        anchor = self.anchor
        used = self._named(anchor.compaction) if anchor is not None else None
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

    def _applicable(self) -> tuple[Compaction, ...]:
        return compaction.applicable(self.memory.compactions, self.chain)

    def _named(self, id: str | None) -> Compaction | None:
        return next((found for found in self._applicable() if found.id == id), None) if id else None

    # -- planning -----------------------------------------------------------------------------------------------

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
        frame = measure.PROMPT_OVERHEAD + self.call.tools_tokens + measure.MESSAGE_OVERHEAD * len(self.messages)
        return round((self.counted + frame) * self.snap.exact_ratio.value)

    @property
    def fixed(self) -> int:
        """Tokens of what is no message."""
        return round((self.call.tools_tokens + measure.PROMPT_OVERHEAD) * self.scale)

    def plan(
        self, room: measure.Room, before: int, share: float, narrative: str = "", writer: str = "builtin"
    ) -> Compaction | None:
        """A new compaction of this history; see `compaction.plan`."""
        history = self._history()
        return compaction.plan(history, room, self.snap.policy, before, share, narrative, writer)

    def _history(self) -> History:
        if self._exact is not None:
            ratio = self.snap.exact_ratio.value
            sizes = tuple(round((size + measure.MESSAGE_OVERHEAD) * ratio) for size in self._exact)
        else:
            sizes = tuple(round(item.tokens * self.scale) for item in self.messages)
        redact = self.snap.redact
        scan = self.snap.scan or partial(sightings, redact=redact)
        return History(self.messages, self.chain, sizes, self.fixed, self.scale, scan, redact)

    def floor(self, room: measure.Room) -> guards.Floor | None:
        """What must stay whatever is compacted, where that alone is too much: named before money is spent on it."""
        history = self._history()
        if not history.groups:
            return None
        newest = history.groups[-1]
        opened = [index for index in history.parted(newest.first) if index < newest.first]
        return guards.floor(
            system=history.fixed - self.fixed,
            tools=self.fixed,
            newest=history.size(newest.first, newest.last) + sum(history.sizes[index] for index in opened),
            most=room.most,
        )

    def narrated_before(self, made: Compaction) -> Compaction | None:
        """The known compaction with a narrative that reaches furthest, and no further than `made`."""
        known = (found for found in self._applicable() if found.notes.narrative and 0 < found.covers <= made.covers)
        return max(known, key=lambda found: found.covers, default=None)

    def refer(self, text: str) -> str:
        """The reference of a whole result."""
        return chain.reference(self.snap.scope, text)

    def cut_results(self, made: Compaction, references: tuple[str, ...] = ()) -> tuple[Stored, ...]:
        """The whole texts of what `made` clips, and of the results that it refers to, stored before they leave the
        prompt."""
        clipped = {counted for counted, _ in made.clips}
        texts = [
            item.text
            for item, counted in zip(self.messages, self.chain.counted, strict=True)
            if counted in clipped and item.role not in ("system", "developer")
        ]
        if references:
            covered = self.messages[: self.chain.behind(made.covers)]
            texts += [result.text for item in covered for result in item.results]
        named = ((self.refer(text), text) for text in texts)
        clips = len(clipped)
        return tuple(
            Stored(reference=reference, text=self.snap.redact(text))
            for place, (reference, text) in enumerate(named)
            if place < clips or reference in references
        )

    # -- guards -------------------------------------------------------------------------------------------------

    def move(self, event: guards.Event) -> None:
        """Take in what happened to compaction on this branch."""
        self.guard = guards.moved(self.guard, event)

    # -- learning -----------------------------------------------------------------------------------------------

    def learn(self, refused: Overflow, prompt: Prompt) -> Limits | None:
        """Take in what a refusal states; returns the limit worth keeping.

        A stated limit holds for this call whatever was configured. A refusal without one, of a prompt that we thought
        would fit, halves our trust: the window is taken to be a little under what was sent. Exact numbers of what was
        asked for correct the scale.
        """
        exact = refused.input or (refused.requested if refused.kind == "input" else None)
        if exact and refused.exact and prompt.estimated:
            self.scale = measure.learn(Ratio(), exact, prompt.estimated).value
            # The provider has measured these very messages: from here on one scale plans and verifies, not our count.
            self._exact, self._told = None, True
        learned = overflow.learnable(refused, window=self.snap.policy.window)
        if learned is not None:
            self.limits = merged(self.limits, learned)
        elif self.room is None or prompt.report.tokens <= self.room.most:
            guessed = Limits(total=max(64, int(prompt.report.tokens * _UNKNOWN)), source="unknown")
            self.limits = merged(self.limits, guessed)
        return learned

    def roomy(self, prompt: Prompt) -> Prompt:
        """`prompt` with the output lowered to what it leaves of a known window, once its size is known from a report:
        clients ask for the same limit with every call, and each call would be refused first."""
        anchor, total = self.anchor, self.limits.total
        if prompt.max_output is None or total is None or anchor is None or anchor.shape != prompt.shape:
            return prompt
        left = total - max(16, total // 50) - prompt.report.tokens
        if not measure.LEAST_OUTPUT <= left < prompt.max_output:
            return prompt
        report = msgspec.structs.replace(prompt.report, output=left)
        return msgspec.structs.replace(prompt, max_output=left, report=report)

    def lowered(self, prompt: Prompt, refused: Overflow) -> Prompt | None:
        """The same prompt with a smaller output limit, where prompt and output only together exceed the window.

        Never under 16 tokens, the least that OpenAI's API takes. Without the provider's numbers our own size decides.
        """
        if prompt.max_output is None or refused.kind == "input":
            return None
        limit = refused.limit or self.limits.total
        if limit is None or refused.limit_of == "input":
            return None
        size = refused.input or prompt.report.tokens
        margin = 8 if refused.input else max(16, limit // 50)
        left = limit - size - margin
        wanted = min(prompt.max_output, max(left, 0))
        if wanted < measure.LEAST_OUTPUT or wanted >= prompt.max_output or left < prompt.max_output // 8:
            return None
        report = msgspec.structs.replace(prompt.report, output=wanted, window=limit)
        return msgspec.structs.replace(prompt, max_output=wanted, report=report)

    def _reported_before(self, prompt: Prompt) -> int | None:
        """What the provider reported for a beginning of `prompt`; None also where images are in it, which each
        provider counts in its own way."""
        anchor = self.anchor
        if anchor is None or anchor.shape != prompt.shape or not anchor.measured:
            return None
        seen = self.past.media and any([item.media for item in prompt.messages])
        return None if seen else anchor.reported

    def remember(self, prompt: Prompt, reply: Reply) -> Flow[None]:
        """Store the reply's place in the chain, what the prompt weighed, and what that teaches."""
        reported = reply.usage.input if reply.usage is not None else 0
        told_otherwise = self.snap.mode is Mode.OBSERVE and prompt.report.compaction_id is not None
        cut = None
        if reported and not told_otherwise:
            cut = overflow.truncated(reported, prompt.report.tokens, self._window, self._reported_before(prompt))
        trusted = bool(reported) and cut is None and not told_otherwise
        answer = None
        if reply.message is not None:
            answer = chain.answered(self.chain.last, reply.message)
        yield from Remember(
            scope=self.snap.scope,
            agent=self.snap.agent,
            conversation=prompt.report.conversation,
            label=self.call.label,
            root=self.key,
            request=self.chain.last,
            reply=answer,
            anchor=Anchor(
                upstream=self.snap.upstream,
                model=self.snap.model,
                shape=prompt.shape,
                reported=reported if trusted else prompt.report.tokens,
                estimated=prompt.estimated,
                compaction=prompt.report.compaction_id,
                request=self.chain.last,
                guard=self._kept_guard(prompt, reported if trusted else 0),
                measured=trusted,
            ),
            learned=Limits(total=cut, source="learned") if cut else None,
            sample=(reported, prompt.estimated, self.counted if prompt.untouched else 0) if trusted else None,
        )

    def _kept_guard(self, prompt: Prompt, reported: int) -> guards.Guard | None:
        """The guard after this call; None where it says nothing."""
        if guards.calm(self.guard):
            return None
        self.move(guards.Faced(model=self.snap.model, window=self._window))
        room = self.room
        if reported and room is not None:
            used = prompt.report.compaction_id or ""
            self.move(guards.Used(tokens=reported, trigger=room.trigger, compaction=used))
        return None if guards.calm(self.guard) else self.guard


def merged(known: Limits, stated: Limits) -> Limits:
    """`known` with what was stated; a stated limit replaces the one of its kind."""
    return Limits(total=stated.total or known.total, input=stated.input or known.input, source=stated.source)
