"""One call's history with all that can be done about it: plans of new notes, what a refusal or an answer teaches.

`exchange` decides; this file only tells what each choice would be. What a refusal teaches changes this call's view at
once, and is remembered for the next ones.
"""

from __future__ import annotations

from functools import partial
from itertools import repeat
from operator import add
from typing import Final

import msgspec

from proxy.core import chain, compaction, guards, measure, overflow
from proxy.core.errors import Overflow
from proxy.core.hidden import packed
from proxy.core.ledger import sightings
from proxy.core.notes import Compaction
from proxy.core.policy import Mode
from proxy.core.steps import (
    Anchor,
    Flow,
    Hidden,
    Limits,
    Prompt,
    Ratio,
    Remember,
    Reply,
    Stored,
)
from proxy.core.tail import History
from proxy.core.telling import Done as Done
from proxy.core.telling import Telling

_UNKNOWN: Final = 0.9
"""Without any number in a refusal, the window is taken to be this share of what we sent."""


class Branch(Telling):
    """The history of one call."""

    # -- planning -----------------------------------------------------------------------------------------------

    @property
    def fixed(self) -> int:
        """Tokens of what is no message of the history."""
        return round((self._tools_tokens + measure.PROMPT_OVERHEAD + self._layered) * self.scale)

    @property
    def _layered(self) -> int:
        """Estimated tokens that the layers add and that leave with no message."""
        added = self.layers.added
        return self.layers.extra - sum(added(index, self.messages[index]) for index in self.layers.expansions)

    def plan(
        self, room: measure.Room, before: int, share: float, narrative: str = "", writer: str = "builtin"
    ) -> Compaction | None:
        """A new compaction of this history; see `compaction.plan`."""
        history = self._history()
        return compaction.plan(history, room, self.snap.policy, before, share, narrative, writer)

    def fold(self, start: int, room: measure.Room) -> Compaction:
        """A built-in compaction of what lies before message `start`; see `compaction.ending_at`."""
        told_of = (each for each in self.known if each.notes.narrative and self.chain.behind(each.covers) <= start)
        last = max(told_of, key=lambda each: each.told_to, default=None)
        before, worn = self.prompt(None).report.tokens, self.layers_of(None)
        told = sum(item.tokens + worn.added(index, item) for index, item in enumerate(self.messages[:start]))
        return compaction.ending_at(start, told, self._history(), room, self.snap.policy, before, last)

    def _history(self) -> History:
        if self._exact is not None:
            ratio = self.snap.exact_ratio.value
            sizes = tuple(round((size + measure.MESSAGE_OVERHEAD) * ratio) for size in self._exact)
        else:
            sizes = tuple(round(item.tokens * self.scale) for item in self.messages)
        told = self.loosest()
        if told.expansions:
            added = (round(told.added(index, item) * self.scale) for index, item in enumerate(self.messages))
            sizes = tuple(map(max, map(add, sizes, added), repeat(0)))
        redact = self.snap.redact
        scan = self.snap.scan or partial(sightings, redact=redact)
        return History(self.messages, self.chain, sizes, self.fixed, self.scale, scan, redact)

    def floor(self, room: measure.Room) -> guards.Floor | None:
        """What must stay whatever is compacted, where that alone is too much: named before money is spent on it."""
        history = self._history()
        if not history.groups:
            return None
        newest = history.newest
        opened = [index for index in history.parted(newest) if index < newest]
        return guards.floor(
            system=history.fixed - self.fixed,
            layers=(layers := round(self._layered * self.scale)),
            tools=self.fixed - layers,
            newest=history.size(newest, len(self.messages) - 1) + sum(history.sizes[index] for index in opened),
            most=room.most,
        )

    def narrated_before(self, made: Compaction) -> Compaction | None:
        """The known compaction whose narrative reaches furthest, and which reaches no further than `made`."""
        known = (found for found in self._applicable() if found.notes.narrative and 0 < found.covers <= made.covers)
        return max(known, key=lambda found: (found.told_to, -found.covers), default=None)

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
        snap, last, report = self.snap, self.chain.last, prompt.report
        reported = reply.usage.input if reply.usage is not None else 0
        told_otherwise = snap.mode is Mode.OBSERVE and report.compaction_id is not None
        cut = None
        if reported and not told_otherwise:
            cut = overflow.truncated(reported, report.tokens, self._window, self._reported_before(prompt))
        trusted = bool(reported) and cut is None and not told_otherwise
        answer = None
        if reply.message is not None:
            answer = chain.answered(last, reply.message)
        yield from Remember(
            scope=snap.scope,
            agent=snap.agent,
            conversation=report.conversation,
            label=self.call.label,
            root=self.key,
            request=last,
            reply=answer,
            anchor=Anchor(
                upstream=snap.upstream,
                model=snap.model,
                shape=prompt.shape,
                reported=reported if trusted else report.tokens,
                estimated=prompt.estimated,
                compaction=report.compaction_id,
                request=last,
                guard=self._kept_guard(prompt, reported if trusted else 0),
                measured=trusted,
            ),
            hidden=self._hidden(),
            traces=self.behind.traces,
            learned=Limits(total=cut, source="learned") if cut else None,
            sample=(reported, prompt.estimated, self.counted if prompt.untouched else 0) if trusted else None,
        )

    def _hidden(self) -> Hidden | None:
        """Hidden state is kept only where a label or an end user keeps it apart from that of others (DESIGN 2)."""
        named = self.call.label is not None or self.call.caller.end_user is not None
        payload = packed(self.behind) if named else None
        return None if payload is None else Hidden(digest=self.chain.last, label=self.call.label, payload=payload)

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
