"""One compaction, from the lease to the stored notes: who plans, who writes, and what a failure changes (nothing).

    claim the branch -> recall again if somebody may have been first -> count -> plan -> ask for a narrative -> store

Code has decided what survives before a model is asked; what it adds is the account of it. Guards decide whether asking,
or compacting at all, is still worth it on this branch.
"""

from __future__ import annotations

from typing import Final

import msgspec

from proxy.core import guards, measure
from proxy.core.branch import Branch, Done
from proxy.core.compaction import applicable
from proxy.core.completing import completed
from proxy.core.narrating import Narrated, narrated
from proxy.core.notes import Compaction
from proxy.core.policy import Mode
from proxy.core.steps import Claim, Flow, Prompt, Remember, Stored
from proxy.core.summary import Matter

_NARRATIVE: Final = 0.2
"""Most of what target leaves after layers and tools that a narrative takes."""
_OF_WINDOW: Final = 8
"""A narrative is at most one part in so many of the window."""


def compacted(
    branch: Branch, room: measure.Room, before: int, done: Done, *, share: float = 1.0, wish: str | None = None
) -> Flow[Prompt | None]:
    """The prompt behind a new compaction, which is stored first; None where none is made.

    `before` is the size of the prompt that it replaces. `wish` is what the user asks to keep, in a manual compaction
    (None: an automatic one, which an account can turn off). Whoever comes second to a branch waits for the first and
    looks again.
    """
    branch.why = ""
    manual = wish is not None
    allowed = guards.allowed(
        branch.guard,
        failure_limit=branch.snap.policy.failure_limit,
        manual=manual,
        projected=before,
        most=room.most,
    )
    if not allowed.compaction or not (manual or branch.snap.policy.automatic):
        return None
    seen = {found.id for found in branch.memory.compactions}
    alone = yield from Claim(key=branch.key, cause="auto" if done == "none" else done)
    if not alone:
        yield from branch.recall()
        known = branch.compacted_before(min(room.trigger, before - 1))
        if known is not None and known.report.compaction_id not in seen:
            return known
    yield from branch.count()
    made = branch.plan(room, before, share)
    told = Narrated()
    if made is not None and allowed.model:
        told = yield from _narrative(branch, made, room, before, wish or "")
        if told.text:
            made = branch.plan(room, before, share, told.text, told.writer) or made
        branch.why = told.why
    if made is None or (not made.notes.narrative and not branch.snap.policy.summary_builtin):
        branch.move(guards.NoNotes(manual=manual))
        return None
    if manual:
        made = msgspec.structs.replace(made, trigger="MANUAL")
    made, texts = completion(branch, made, room)
    branch.made = made
    branch.move(guards.Compacted(id=made.id, manual=manual))
    return (yield from _stored(branch, made, done, told.references, texts))


def _narrative(branch: Branch, made: Compaction, room: measure.Room, before: int, wish: str) -> Flow[Narrated]:
    """Ask for the narrative of what `made` covers, on top of that of the notes before it."""
    if branch.snap.mode is not Mode.ENFORCE or branch.asked or not made.covers:
        return Narrated()
    branch.asked = True
    policy = branch.snap.policy
    spare = max(room.target - branch.fixed, room.window // 16)
    most = min(policy.summary_max_tokens, room.window // _OF_WINDOW, int(_NARRATIVE * spare / branch.scale))
    last = branch.narrated_before(made)
    if last is not None and last.told_to == made.covers:
        return Narrated(text=last.notes.narrative, writer=last.writer)  # nothing was said since
    matter = Matter(
        messages=branch.messages,
        start=branch.chain.behind(last.told_to) if last is not None else 0,
        stop=branch.chain.behind(made.covers),
        previous=last.notes.narrative if last is not None else "",
        wish=wish,
    )
    told = yield from narrated(matter, branch.snap, branch.prompt(None).report, most=most, refer=branch.refer)
    if told.text:
        branch.move(guards.Wrote())
    elif told.calls:
        branch.move(guards.Failed())
    return told


def completion(branch: Branch, made: Compaction, room: measure.Room) -> tuple[Compaction, tuple[Stored, ...]]:
    """`made` with what its plan does not share out, and the texts that it refers to; nothing is kept of a compaction
    that nobody will use."""
    if branch.snap.mode is not Mode.ENFORCE:
        return made, ()
    known = applicable(branch.memory.compactions, branch.chain)
    before = [found for found in known if found.notes.kept and 0 < found.covers <= made.covers]
    return completed(
        made,
        branch.messages,
        branch.chain,
        room,
        fixed=branch.fixed,
        scale=branch.scale,
        before=max(before, key=lambda found: found.covers, default=None),
        refer=branch.refer,
        redact=branch.snap.redact,
    )


def _stored(
    branch: Branch, made: Compaction, done: Done, references: tuple[str, ...], texts: tuple[Stored, ...]
) -> Flow[Prompt]:
    yield from kept(branch, made, texts, references)
    return branch.prompt(made, done)


def kept(branch: Branch, made: Compaction, texts: tuple[Stored, ...], references: tuple[str, ...] = ()) -> Flow[None]:
    """Store `made`, with the texts behind the `references` that a narrative names and those that its notes name."""
    results = {stored.reference: stored for stored in (*branch.cut_results(made, references), *texts)}
    yield from Remember(
        scope=branch.snap.scope,
        agent=branch.snap.agent,
        conversation=branch.conversation,
        label=branch.call.label,
        root=branch.key,
        compaction=made,
        results=tuple(results.values()),
    )
