"""What a compaction would make of a saved conversation: the gateway's own order of a call, played without a provider.

Belongs here: the call, the snapshot, the answers to the core's steps, and the measure of what comes out. Never: files,
printing, or a decision of its own; `core.exchange` decides here as it does in the server. Nothing is stored, nothing is
known of the conversation, and every size is counted, not estimated.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from proxy.core import chain, measure
from proxy.core.branch import Branch
from proxy.core.conversation import Message
from proxy.core.exchange import prepared
from proxy.core.groups import groups, turns
from proxy.core.layout import Clip, Layout, leading
from proxy.core.notes import Compaction, Notes
from proxy.core.policy import Mode, ModelCard, Policy
from proxy.core.rehearsal import Rehearsal
from proxy.core.render import covered, notes_text
from proxy.core.steps import Call, Count, Limits, Memory, Prompt, Ratio, Snapshot
from proxy.explaining import counted
from proxy.gateway import Counting

_SCOPE: Final = chain.scope(bytes(32), "local", "dry-run", None)


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One layer of the prompt. `told` says in words how it comes to the model."""

    name: str
    messages: int
    tokens: int
    told: str


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Before and after. All sizes are tokens; `window` is what they are held against.

    `needed`: the prompt is over `trigger`, so a compaction is made. `after` equals `before` where none is needed or
    none can be made; then `parts` shows what the whole prompt is made of. `lowered` is the output limit that would be
    set in place of the requested one.
    """

    model: str
    window: int
    trigger: int
    target: int
    messages: int
    turns: int
    repaired: int
    needed: bool
    compacted: bool
    before: int
    after: int
    parts: tuple[Part, ...]
    replaced_messages: int = 0
    replaced_tokens: int = 0
    clips: tuple[Clip, ...] = ()
    notes: Notes | None = None
    text: str = ""
    newest_group: int = 0
    lowered: int | None = None


async def dry_run(call: Call, policy: Policy, card: ModelCard, window: int, counter: Counting) -> Outcome:
    """What the gateway would send for `call` at `window` tokens, if it saw this conversation for the first time."""
    (tools,) = await counter.count((call.tools.decode("utf-8", "replace"),), card.encoding)
    call = msgspec.structs.replace(call, tools_tokens=tools)
    snap = _snapshot(call, policy, card, window, ratio=1.0)
    branch = Branch(call, snap)
    exact = await counted(counter, branch.messages, card.encoding)
    whole = _total(exact, tools)
    # Our estimate is scaled to the count, so that each decision rests on what was counted.
    scale = whole / max(1, measure.prompt_tokens(branch.messages, tools))
    trial = Branch(call, _snapshot(call, policy, card, window, ratio=scale))
    prompt, made = _play(trial, exact), trial.made
    room = measure.room(policy, Limits(total=window), call.max_output)
    assert room is not None, "a window is stated"
    seen = _Seen(branch, exact, tools)
    found = Outcome(
        model=call.model,
        window=window,
        trigger=room.trigger,
        target=room.target,
        messages=len(call.messages),
        turns=len(turns(branch.messages)),
        repaired=branch.repaired,
        needed=whole > room.trigger,
        compacted=made is not None,
        before=whole,
        after=whole,
        parts=seen.whole(),
        newest_group=seen.newest(),
        lowered=prompt.max_output if prompt.max_output != call.max_output else None,
    )
    if made is None:
        return found
    layout = Layout(branch.messages, branch.chain, made)
    told = _Told(seen, layout, made, await counted(counter, layout.told, card.encoding))
    return msgspec.structs.replace(
        found,
        after=_total(await counted(counter, prompt.messages, card.encoding), tools),
        parts=told.parts(),
        replaced_messages=layout.replaced,
        replaced_tokens=sum(exact[index] for index in layout.gone),
        clips=told.clips(),
        notes=made.notes,
        text=notes_text(made),
    )


def _total(sizes: tuple[int, ...], tools: int) -> int:
    return measure.PROMPT_OVERHEAD + tools + sum(sizes) + measure.MESSAGE_OVERHEAD * len(sizes)


def _snapshot(call: Call, policy: Policy, card: ModelCard, window: int, *, ratio: float) -> Snapshot:
    return Snapshot(
        policy=policy,
        card=card,
        limits=Limits(total=window, source="policy"),
        ratio=Ratio(value=ratio, samples=1),
        exact_ratio=Ratio(),
        upstream="none",
        agent=call.model,
        scope=_SCOPE,
        start=chain.begin(_SCOPE),
        fresh="conv_dry_run",
        mode=Mode.ENFORCE,
    )


def _play(branch: Branch, exact: tuple[int, ...]) -> Prompt:
    """The prompt that would be sent. Ends before the call goes out."""
    flow = Rehearsal().of(prepared(branch))
    answer: Any = None
    try:
        while True:
            answer = exact if type(flow.send(answer)) is Count else Memory()
    except StopIteration as end:
        prompt: Prompt = end.value
        return prompt


class _Seen:
    """The history with its exact sizes, cut into the parts that people know."""

    def __init__(self, branch: Branch, exact: tuple[int, ...], tools: int) -> None:
        self.messages = branch.messages
        self.exact = exact
        self.tools = tools
        self.lead = leading(branch.messages)

    def whole(self) -> tuple[Part, ...]:
        """The prompt as the client sent it."""
        count = len(self.messages) - self.lead
        rest = Part(name="messages", messages=count, tokens=sum(self.exact[self.lead :]), told="as they are")
        return (*self.front(self.messages[: self.lead], self.exact[: self.lead]), rest)

    def front(self, messages: tuple[Message, ...], sizes: tuple[int, ...]) -> tuple[Part, ...]:
        """What no compaction touches."""
        parts: list[Part] = []
        if messages:
            parts.append(Part(name="system", messages=len(messages), tokens=sum(sizes), told="as it is"))
        if self.tools:
            parts.append(Part(name="tools", messages=0, tokens=self.tools, told="as they are"))
        return tuple(parts)

    def newest(self) -> int:
        group = groups(self.messages)[-1]
        return sum(self.exact[group.first : group.last + 1])


class _Told:
    """The told messages of one compaction, with their exact sizes."""

    def __init__(self, seen: _Seen, layout: Layout, made: Compaction, sizes: tuple[int, ...]) -> None:
        self.seen = seen
        self.layout = layout
        self.made = made
        self.sizes = sizes

    def parts(self) -> tuple[Part, ...]:
        layout = self.layout
        parts = [*self.seen.front(layout.told[: layout.front], self.sizes[: layout.front])]
        if layout.notes:
            size = sum(self.sizes[place] for place in layout.notes)
            parts.append(Part(name="notes", messages=len(layout.notes), tokens=size, told=covered(self.made.notes)))
        if layout.open:
            parts.append(self._kept("open request", layout.open))
        return (*parts, self._kept("tail", layout.tail))

    def _kept(self, name: str, places: range) -> Part:
        clipped = len(set(places) & set(self.layout.clipped))
        told = f"word for word, {clipped} of them clipped" if clipped else "word for word"
        size = sum(self.sizes[places.start : places.stop])
        return Part(name=name, messages=len(places), tokens=size, told=told)

    def clips(self) -> tuple[Clip, ...]:
        layout = self.layout
        return tuple(
            Clip(
                message=layout.origins[place],
                role=layout.told[place].role,
                before=self.seen.exact[layout.origins[place]],
                after=self.sizes[place],
            )
            for place in layout.clipped
        )
