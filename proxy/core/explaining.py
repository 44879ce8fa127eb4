"""What would go upstream for a call, layer by layer, and why; told from a rehearsal of the call itself.

Belongs here: the account of a prompt that is ready. Never: how one is made (`exchange.prepared` makes it here as it
does when the call is served) and no step that leaves a trace. One number decides in the gateway, the projected size;
what the layers are said to weigh is that number, shared out by our estimates.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from proxy.core import guards, measure
from proxy.core.agent import Agent
from proxy.core.branch import Branch
from proxy.core.command import Command, given
from proxy.core.commanded import commanded
from proxy.core.conversation import Message
from proxy.core.exchange import prepared, unread
from proxy.core.explanation import Compacted, Decision, Explained, Explanation, Fix, Held, Thought, Tools
from proxy.core.groups import EMPTY_RESULT, NO_RESULT, ORPHAN, turns
from proxy.core.layout import Clip, Layout, noted
from proxy.core.notes import Compaction
from proxy.core.own_compaction import asks_for_summary
from proxy.core.pacing import Window
from proxy.core.policy import Mode
from proxy.core.rehearsal import Rehearsal
from proxy.core.replayed import LOAD_SKILL
from proxy.core.shares import Part, parts
from proxy.core.steps import Call, Flow, Outcome, Prompt, Snapshot


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a dialect knows of the tools of a request: how many there are, and whether it bars ours."""

    tools: int = 0
    barred: bool = False


def explained(call: Call, snap: Snapshot, asked: Asked = Asked()) -> Flow[Explained]:  # noqa: B008  frozen
    """The account of `call`; asks for nothing but Recall and Count. Raises what serving it would raise before anything
    is sent."""
    rehearsal = Rehearsal()
    command = given(call.messages) if snap.mode is Mode.ENFORCE else None
    if command is not None:
        outcome = yield from rehearsal.of(commanded(call, snap, command))
        return Explained(told=_obeyed(call, snap, asked, command, outcome, rehearsal.made), prompt=None)
    branch = Branch(call, snap)
    if snap.mode is Mode.OFF:
        prompt = unread(call, snap)
    else:
        prompt = yield from rehearsal.of(prepared(branch))
    return Explained(told=_Account(branch, prompt, asked, rehearsal).told(), prompt=prompt)


class _Account:
    """One prompt and the history that it was made of."""

    def __init__(self, branch: Branch, prompt: Prompt, asked: Asked, rehearsal: Rehearsal) -> None:
        self.branch = branch
        self.prompt = prompt
        self.asked = asked
        self.rehearsal = rehearsal
        self.used = branch.in_use(prompt)
        self.whole = branch.whole()
        self.guard = branch.guarded()
        """As it stood before the rehearsal, in which nobody answered."""
        self.watched = prompt.verbatim
        """The client's own bytes go out; what was done to the prompt is only reported."""

    def told(self) -> Explanation:
        branch = self.branch
        decision, why = self._decided()
        if branch.snap.mode is Mode.OBSERVE:
            why += " Mode observe: the client's own bytes go out, whatever would be done."
        tokens = (self.whole if self.watched else self.prompt).report.tokens
        about = _about(branch, decision, why, tokens=tokens, whole=self.whole.report.tokens)
        return msgspec.structs.replace(
            about,
            basis=self._basis,
            messages=len(self.prompt.messages),
            parts=self._parts(tokens),
            stopped=self._stopped,
            memory=None if self.watched else _memory(branch, self.used),
            compaction=self._compaction(),
            repaired=() if self.watched else self._repaired(),
            skills=tuple(skill.slug for skill in branch.layers.selected),
            effort=_thought(branch),
            tools=_tools(branch, self.asked),
            output=self.prompt.max_output,
            lowered=self.prompt.max_output != branch.call.max_output,
            same_bytes=self.prompt.untouched,
        )

    def _parts(self, tokens: int) -> tuple[Part, ...]:
        """The layers of what is sent: of the client's own messages, in the modes that only watch."""
        branch = self.branch
        used = None if self.watched else self.used
        messages = branch.call.messages if self.watched else branch.messages
        return parts(
            self.prompt,
            Layout(messages, branch.chain, used),
            branch.layers_of(used),
            branch.snap.stack,
            used,
            tools=(self.asked.tools, branch.call.tools_tokens),
            total=tokens,
            window=branch.room.window if branch.room is not None else None,
        )

    def _compaction(self) -> Compacted | None:
        used = self.used
        if used is None:
            return None
        if not self._new:
            return _compaction(self.branch, used, "known", ())
        return _compaction(self.branch, used, "new", self.rehearsal.asked)

    @property
    def _new(self) -> bool:
        """Whether the compaction in use is one that this call would make."""
        made = self.rehearsal.made
        return made is not None and self.used is not None and made.id == self.used.id

    @property
    def _basis(self) -> Literal["reported", "counted", "estimated"]:
        anchor = self.branch.anchor
        if anchor is not None and anchor.shape == (self.whole if self.watched else self.prompt).shape:
            return "reported"
        return "counted" if self.branch.counted else "estimated"

    def _decided(self) -> tuple[Decision, str]:
        branch, snap = self.branch, self.branch.snap
        if snap.mode is Mode.OFF:
            return "relayed", "Mode off: it is sent as it came, and nothing is done about its size."
        size, room = self.whole.report.tokens, branch.room
        if branch.same_again() is not None:
            return "again", "This very request was answered before: it gets the same prompt again."
        if self.used is not None:
            return self._compacted(size)
        if room is None:
            return "unknown", "The window is not known: only where the provider refuses a prompt is it compacted."
        everything = not snap.policy.automatic or asks_for_summary(branch.messages)
        bound = room.fit if everything else room.trigger
        if size <= bound:
            return "fits", f"{size:,} tokens are within {bound:,}, where a compaction would be made."
        over = f"{size:,} tokens are over {bound:,}, but"
        if not snap.policy.automatic:
            return "automatic_off", f"{over} automatic compaction is off for this account: it is sent as it is."
        if self.rehearsal.asked:
            return "asks", f"{over} the built-in notes are off: what {self._models} would write is not known."
        before = branch.smallest(self.whole).report.tokens
        if not guards.allowed(
            self.guard, failure_limit=snap.policy.failure_limit, manual=False, projected=before, most=room.most
        ).compaction:
            return "paused", f"{over} compaction stands still here ({self._stopped}): it is sent as it is."
        if not snap.policy.summary_builtin and snap.summarisers():
            return "paused", f"{over} no model is asked any more here, and the built-in notes are off."
        floor = branch.floor(room)
        said = f": {floor.text}" if floor is not None else ""
        return "stuck", f"{over} nothing can be gained{said}. It is sent as it is."

    def _compacted(self, size: int) -> tuple[Decision, str]:
        base = self.branch.base
        if self._new and base is not None and self.used is not None and self.used.id == base.id:
            return "folded", "Turns have slid out of memory: notes would be made that stand for them."
        if not self._new:
            return "kept", f"Compacted before; whole it would take {size:,} tokens."
        said = f"Whole it would take {size:,} tokens, which is too much: it would be compacted now."
        if self.rehearsal.asked:
            said += f" The account would come from {self._models}; here the notes are without one."
        return "made", said

    @property
    def _models(self) -> str:
        return ", else ".join(self.rehearsal.asked)

    @property
    def _stopped(self) -> str:
        return guards.stopped(self.guard, self.branch.snap.policy.failure_limit)

    def _repaired(self) -> tuple[Fix, ...]:
        branch = self.branch
        found = _repairs(branch.call.messages, branch.shown.messages, branch.repaired)
        merged = self.prompt.report.repaired - branch.repaired
        return (*found, *((Fix(what="merged", count=merged),) if merged else ()))


# -- what is told of it -----------------------------------------------------------------------------------------------


def _obeyed(
    call: Call, snap: Snapshot, asked: Asked, command: Command, outcome: Outcome, made: Compaction | None
) -> Explanation:
    """The account of a command to the gateway, which no model sees."""
    history = msgspec.structs.replace(call, messages=call.messages[: command.at], known=None)
    branch = Branch(history if command.at else call, snap)
    line = outcome.said.line if outcome.said is not None else ""
    report = outcome.report
    why = f"A command to the gateway, which it would answer itself: {line}"
    whole = report.tokens if made is None else made.before
    return msgspec.structs.replace(
        _about(branch, "command", why, tokens=report.tokens, whole=whole),
        conversation=None if report.conversation == snap.fresh else report.conversation,
        compaction=None if made is None else _compaction(branch, made, "new", ()),
        tools=Tools(client=asked.tools, why="Nothing would be sent upstream."),
    )


def _about(branch: Branch, decision: Decision, why: str, *, tokens: int, whole: int) -> Explanation:
    """What is told of any call, whatever would be sent for it."""
    call, snap = branch.call, branch.snap
    return Explanation(
        model=call.model,
        agent=_agent(snap) is not None,
        upstream=snap.upstream,
        upstream_model=snap.model,
        mode=snap.mode,
        policy=snap.policy.name,
        conversation=branch.memory.conversation,
        label=call.label,
        tokens=tokens,
        whole=whole,
        held=_held(branch),
        turns=len(turns(branch.messages)),
        decision=decision,
        why=why,
    )


def _held(branch: Branch) -> Held | None:
    room = branch.room
    if room is None:
        return None
    reserve = measure.reserve(branch.snap.policy, branch.limits, branch.call.max_output)
    return Held(
        window=room.window, source=branch.limits.source, trigger=room.trigger, target=room.target, reserve=reserve
    )


def _compaction(branch: Branch, used: Compaction, state: Literal["known", "new"], asks: tuple[str, ...]) -> Compacted:
    layout = Layout(branch.messages, branch.chain, used)

    def size(item: Message) -> int:
        return round(item.tokens * branch.scale)

    clips = ((layout.origins[place], layout.told[place]) for place in layout.clipped)
    return Compacted(
        state=state,
        id=used.id,
        trigger=used.trigger,
        writer=used.writer,
        notes=noted(used.notes),
        messages=layout.replaced,
        tokens=sum(size(branch.messages[index]) for index in layout.gone),
        clips=tuple(
            Clip(message=index, role=told.role, before=size(branch.messages[index]), after=size(told))
            for index, told in clips
        ),
        asks=asks,
    )


def _memory(branch: Branch, used: Compaction | None) -> Window | None:
    memory = branch.remembered(used)
    return None if memory is None or memory.window == Window() else memory.window


def _repairs(before: tuple[Message, ...], after: tuple[Message, ...], count: int) -> tuple[Fix, ...]:
    """What `count` repairs made of a history; what cannot be told apart by its words was dropped, moved or renamed."""
    if not count:
        return ()
    told: tuple[tuple[Literal["unanswered_call", "empty_result", "orphan_result"], int], ...] = (
        ("unanswered_call", _answered(after, NO_RESULT) - _answered(before, NO_RESULT)),
        ("empty_result", _answered(after, EMPTY_RESULT) - _answered(before, EMPTY_RESULT)),
        ("orphan_result", _quoting(after) - _quoting(before)),
    )
    rest = count - sum(number for _, number in told)
    found = [Fix(what=what, count=number) for what, number in told if number > 0]
    return (*found, *((Fix(what="dropped_or_moved", count=rest),) if rest > 0 else ()))


def _answered(messages: tuple[Message, ...], text: str) -> int:
    return sum(result.text == text for item in messages for result in item.results)


def _quoting(messages: tuple[Message, ...]) -> int:
    return sum(item.role == "user" and item.text.startswith(ORPHAN) for item in messages)


def _thought(branch: Branch) -> Thought | None:
    """The effort that holds, as it would be told."""
    layers, stack = branch.layers, branch.snap.stack
    if stack is None or layers.effort is None:
        return None
    offered = layers.offer.members if layers.offer is not None else {}
    members = {name: None if raw is None else msgspec.Raw(raw) for name, raw in layers.members.items()}
    told = {name: raw for name, raw in members.items() if name not in offered}
    agents = stack.agent.effort if stack.agent is not None else None
    return Thought(
        level=layers.effort,
        source="request" if stack.stated else "agent" if layers.effort == agents else "turn",
        members=msgspec.Raw(msgspec.json.encode(told)),
    )


def _tools(branch: Branch, asked: Asked) -> Tools:
    layers, agent = branch.layers, _agent(branch.snap)
    own = () if layers.offer is None else tuple(sorted(layers.offer.names))
    return Tools(client=asked.tools, own=own, why="" if own else _unoffered(branch, agent, asked))


def _unoffered(branch: Branch, agent: Agent | None, asked: Asked) -> str:
    if branch.snap.mode is not Mode.ENFORCE:
        return f"Mode {branch.snap.mode} adds nothing."
    if agent is None:
        return "Only agents offer tools of the gateway."
    if not agent.tools:
        return "The agent offers none."
    if asked.barred:
        return "The request wants an answer of a fixed form, or says itself which tools are called."
    if not branch.layers.catalogue and agent.tools == (LOAD_SKILL,):
        return "There is no skill that the model could load."
    return "The client's own tool of that name comes first."


def _agent(snap: Snapshot) -> Agent | None:
    return snap.stack.agent if snap.stack is not None else None
