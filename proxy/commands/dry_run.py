"""What a compaction would make of a saved conversation: the gateway's own order of a call, played without a provider.

Belongs here: the call, the snapshot, the answers to the core's steps, and the measure of what comes out. Never: files,
printing, or a decision of its own; `core.exchange` decides here as it does in the server. Nothing is stored, nothing is
known of the conversation, and every size is counted, not estimated.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

import msgspec

from proxy.core import chain, measure
from proxy.core.branch import Branch
from proxy.core.compaction import assemble
from proxy.core.conversation import SYSTEM, Message
from proxy.core.errors import Internal
from proxy.core.exchange import exchange
from proxy.core.groups import groups, opening, turns
from proxy.core.notes import Compaction, Notes
from proxy.core.policy import Mode, ModelCard, Policy
from proxy.core.render import covered, notes_text
from proxy.core.steps import Call, Claim, Count, Limits, Memory, Prompt, Ratio, Recall, Remember, Send, Snapshot

_SCOPE: Final = chain.scope(bytes(32), "local", "dry-run", None)


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One layer of the prompt. `told` says in words how it comes to the model."""

    name: str
    messages: int
    tokens: int
    told: str


class Clip(msgspec.Struct, frozen=True, kw_only=True):
    """A message that stays but is cut; `message` is its index in the file, sizes are tokens."""

    message: int
    role: str
    before: int
    after: int


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


class Counting(Protocol):
    async def count(self, texts: tuple[str, ...], encoding: str) -> tuple[int, ...]: ...


async def dry_run(call: Call, policy: Policy, card: ModelCard, window: int, counter: Counting) -> Outcome:
    """What the gateway would send for `call` at `window` tokens, if it saw this conversation for the first time."""
    (tools,) = await counter.count((call.tools.decode("utf-8", "replace"),), card.encoding)
    call = msgspec.structs.replace(call, tools_tokens=tools)
    snap = _snapshot(call, policy, card, window, ratio=1.0)
    branch = Branch(call, snap)
    exact = await _counted(branch.messages, card, counter)
    whole = _total(exact, tools)
    # Our estimate is scaled to the count, so that each decision rests on what was counted.
    scale = whole / max(1, measure.prompt_tokens(branch.messages, tools))
    prompt, made = _play(call, _snapshot(call, policy, card, window, ratio=scale), exact)
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
    told = assemble(branch.messages, branch.chain, made)
    layout = _Told(seen, branch, made, await _counted(told, card, counter), told)
    messages, tokens = layout.replaced()
    return msgspec.structs.replace(
        found,
        after=_total(await _counted(prompt.messages, card, counter), tools),
        parts=layout.parts(),
        replaced_messages=messages,
        replaced_tokens=tokens,
        clips=layout.clips(),
        notes=made.notes,
        text=notes_text(made),
    )


async def _counted(messages: tuple[Message, ...], card: ModelCard, counter: Counting) -> tuple[int, ...]:
    counts = await counter.count(tuple(map(measure.countable, messages)), card.encoding)
    return tuple(count + measure.uncountable(item) for count, item in zip(counts, messages, strict=True))


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
        model=card.name,
        agent=call.model,
        scope=_SCOPE,
        fresh="conv_dry_run",
        mode=Mode.ENFORCE,
    )


def _play(call: Call, snap: Snapshot, exact: tuple[int, ...]) -> tuple[Prompt, Compaction | None]:
    """The prompt that would be sent, and the compaction that was made for it. Ends before the call goes out."""
    flow = exchange(call, snap)
    made: Compaction | None = None
    answer: Any = None
    try:
        while True:
            match flow.send(answer):
                case Send() as sending:
                    return sending.prompt, made
                case Recall():
                    answer = Memory()
                case Count():
                    answer = exact
                case Claim():
                    answer = True
                case Remember() as remembered:
                    made, answer = remembered.compaction or made, None
                case other:
                    raise Internal(f"A dry run has no answer to {type(other).__name__}.")
    finally:
        flow.close()


class _Seen:
    """The history with its exact sizes, cut into the parts that people know."""

    def __init__(self, branch: Branch, exact: tuple[int, ...], tools: int) -> None:
        self.messages = branch.messages
        self.exact = exact
        self.tools = tools
        self.lead = _lead(branch.messages)

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
    """The told messages of one compaction, each with the message of the history that it is."""

    def __init__(
        self, seen: _Seen, branch: Branch, made: Compaction, sizes: tuple[int, ...], told: tuple[Message, ...]
    ):
        self.seen = seen
        self.made = made
        self.sizes = sizes
        self.told = told
        self.cut = branch.chain.behind(made.covers) or seen.lead
        parted = next((each for each in turns(branch.messages) if each.first < self.cut <= each.last), None)
        opened = () if parted is None or not made.notes.part else opening(branch.messages, parted)
        self.open = tuple(index for index in opened if index < self.cut)
        kept = (*self.open, *range(self.cut, len(branch.messages)))
        self.behind = len(told) - len(kept)
        """Where the told messages that the history has as well begin: behind system messages and notes."""
        self.origins = dict(zip(range(self.behind, len(told)), kept, strict=True))

    def parts(self) -> tuple[Part, ...]:
        lead = _lead(self.told)
        noted = self.behind - lead
        parts = [*self.seen.front(self.told[:lead], self.sizes[:lead])]
        if noted:
            size = sum(self.sizes[lead : self.behind])
            parts.append(Part(name="notes", messages=noted, tokens=size, told=covered(self.made.notes)))
        middle = self.behind + len(self.open)
        if self.open:
            parts.append(self._kept("open request", range(self.behind, middle)))
        return (*parts, self._kept("tail", range(middle, len(self.told))))

    def _kept(self, name: str, places: range) -> Part:
        clipped = sum(self._clipped(place) for place in places)
        told = f"word for word, {clipped} of them clipped" if clipped else "word for word"
        size = sum(self.sizes[places.start : places.stop])
        return Part(name=name, messages=len(places), tokens=size, told=told)

    def _clipped(self, place: int) -> bool:
        return self.told[place] is not self.seen.messages[self.origins[place]]

    def clips(self) -> tuple[Clip, ...]:
        return tuple(
            Clip(message=origin, role=self.told[place].role, before=self.seen.exact[origin], after=self.sizes[place])
            for place, origin in self.origins.items()
            if self._clipped(place)
        )

    def replaced(self) -> tuple[int, int]:
        """Messages and tokens that only the notes stand for."""
        lead = self.seen.lead
        gone = [index for index in range(lead, self.cut) if index not in self.open]
        standing = _lead(self.told) - lead
        return len(gone) - standing, sum(self.seen.exact[index] for index in gone)


def _lead(messages: tuple[Message, ...]) -> int:
    return next((index for index, item in enumerate(messages) if item.role not in SYSTEM), len(messages))
