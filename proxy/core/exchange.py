"""The order of one call, from what was asked to what was answered. Written once, here.

    repair -> recall -> layers, memory -> measure -> over the trigger? compact -> send -> overflow? cure, send again
        -> own tools called? run them, send again -> remember

A generator that yields steps and is sent their answers; errors are thrown in at the place that asked. It holds no I/O,
so a test plays a call like a script. At most one recovery per upstream attempt and three per call, each with a strictly
smaller prompt; none once a data frame has reached the client.
"""

from __future__ import annotations

from typing import Final

import msgspec

from proxy.core import measure, overflow
from proxy.core.branch import Branch
from proxy.core.command import given
from proxy.core.commanded import commanded
from proxy.core.compacting import compacted
from proxy.core.errors import Overflow, TooLong, UpstreamError, WindowExceeded
from proxy.core.folding import folded
from proxy.core.interjecting import spoken_into
from proxy.core.own_compaction import asks_for_summary
from proxy.core.policy import Mode
from proxy.core.rounds import Rounds
from proxy.core.steps import Call, Flow, Interjected, Outcome, Prompt, Remember, Reply, Report, Send, Snapshot, Stored
from proxy.core.usage import Purpose

_ENFORCE, _OBSERVE, _OFF = Mode
RECOVERIES: Final = 3
RETRIES: Final = 1
_SHARES: Final = (1.0, 0.6, 0.35)
"""How much of the target each recovery aims at: every refusal makes the next prompt smaller."""
_PATIENCE: Final = 0.25
"""Seconds before a call is repeated where the provider names none."""


def exchange(call: Call, snap: Snapshot) -> Flow[Outcome]:
    """Serve `call`. Returns how it ended; raises a WeirgateError where it cannot be served, ClientLeft where nobody
    waits any more."""
    if snap.mode is _OFF:
        prompt = unread(call, snap)
        reply = yield from Send(prompt=prompt)
        return Outcome(report=prompt.report, reply=reply)
    asked = given(call.messages) if snap.mode is _ENFORCE else None
    if asked is not None:
        return (yield from commanded(call, snap, asked))
    branch = Branch(call, snap)
    prompt = yield from prepared(branch)
    prompt, reply, recoveries = yield from _answered(branch, prompt)
    if prompt.own and reply.message is not None and any(call.name in prompt.own for call in reply.message.calls):
        return (yield from _turned(branch, prompt, reply, recoveries))
    yield from branch.remember(prompt, reply)
    effort = branch.layers.effort
    return Outcome(report=prompt.report, reply=reply, recoveries=recoveries, past=branch.shown, effort=effort)


def prepared(branch: Branch) -> Flow[Prompt]:
    """All that comes before the first upstream call: the prompt that will be sent."""
    yield from branch.recall()
    branch.resume()
    branch.layer()
    if branch.teller is not None:
        yield from folded(branch)
    prompt = branch.roomy((yield from _fitted(branch)))
    return branch.observed(prompt) if branch.snap.mode is _OBSERVE else prompt


def unread(call: Call, snap: Snapshot) -> Prompt:
    """Mode off: nothing is looked at."""
    report = Report(conversation=snap.fresh, tokens=0, window=None)
    return Prompt(
        messages=call.messages,
        untouched=True,
        verbatim=True,
        max_output=call.max_output,
        estimated=0,
        shape=b"",
        report=report,
    )


def _fitted(branch: Branch) -> Flow[Prompt]:
    """The prompt to begin with: whole if it fits, else with the least compacted notes that fit, else with new ones.

    A failure to compact changes nothing before a call: the smallest known prompt goes out, and the provider decides.
    """
    again = branch.same_again()
    if again is not None:
        return again
    room = branch.room
    whole = branch.whole()
    if room is None:
        return branch.compacted_before(None) or whole
    # A client's own compaction request reads everything if it can (it hides nothing from its own notes); with automatic
    # compaction off there is no trigger, only what fits.
    everything = not branch.snap.policy.automatic or asks_for_summary(branch.messages)
    bound = room.fit if everything else room.trigger
    if branch.uncertain(whole, bound):
        yield from branch.count()
        whole = branch.whole()
    if whole.report.tokens <= bound and not branch.was_compacted(whole, bound):
        return whole
    known = branch.compacted_before(bound)
    if known is not None:
        return known
    # What would go out otherwise: how near to the edge of the window that is decides whether a pause still holds.
    made = yield from compacted(branch, room, branch.smallest(whole).report.tokens, "auto")
    return _bounded(made or branch.smallest(whole), room)


def _bounded(prompt: Prompt, room: measure.Room) -> Prompt:
    """`prompt` with the output lowered to what it leaves of the window, where what must stay takes the reserve."""
    left = room.most + measure.LEAST_OUTPUT - prompt.report.tokens
    if prompt.max_output is None or prompt.report.tokens <= room.fit or left < measure.LEAST_OUTPUT:
        return prompt
    report = msgspec.structs.replace(prompt.report, output=left)
    return msgspec.structs.replace(prompt, max_output=left, report=report)


def _answered(
    branch: Branch, prompt: Prompt, purpose: Purpose = "chat", recoveries: int = 0
) -> Flow[tuple[Prompt, Reply, int]]:
    """Send; cure an overflow with a smaller prompt; repeat once what failed before anybody worked on it."""
    retries = 0
    delay = 0.0
    while True:
        wholes = branch.wholes(prompt)
        if wholes:
            yield from _kept(branch, prompt, wholes)
        try:
            reply = yield from Send(prompt=prompt, purpose=purpose, delay=delay)
        except TooLong as refused:
            cured = None
            if branch.snap.mode is _ENFORCE and recoveries < RECOVERIES and not refused.said:
                cured = yield from _cured(branch, prompt, refused.overflow, recoveries)
            if cured is None:
                raise _final(branch, prompt, refused.overflow) from refused
            prompt, purpose, delay = cured, "recovery", 0.0
            recoveries += 1
        except UpstreamError as failed:
            if not failed.again or retries == RETRIES:
                raise
            retries += 1
            purpose, delay = "retry", _PATIENCE if failed.retry_after is None else failed.retry_after
        else:
            return prompt, reply, recoveries


def _kept(branch: Branch, prompt: Prompt, wholes: tuple[Stored, ...]) -> Flow[None]:
    """Store what `prompt` tells cut, before anybody reads a reference to it."""
    yield from Remember(
        scope=branch.snap.scope, agent=branch.snap.agent, conversation=prompt.report.conversation, results=wholes
    )


def _turned(branch: Branch, prompt: Prompt, reply: Reply, recoveries: int) -> Flow[Outcome]:
    """Answer what the model asks of our own tools, until it has said what it wants to say or the client must answer."""
    rounds, begun = Rounds(branch.layers, branch.first(prompt)), branch
    asked = rounds.take(reply)
    while asked is not None:
        ran = yield from asked
        more = rounds.ran(asked.calls, ran)
        branch.layers = rounds.layers
        if not more:
            break
        said = (yield from Interjected()) if branch.call.owned is not None else ()
        if said:
            branch = yield from spoken_into(branch, rounds.told, said)
            prompt = yield from prepared(branch)
            rounds.go_on(branch.layers, branch.first(prompt))
        else:
            prompt = yield from _continued(branch, prompt)
        prompt, reply, recoveries = yield from _answered(branch, prompt, "tool_round", recoveries)
        asked = rounds.take(reply)
    shown = rounds.reply()
    branch.behind = rounds.behind(shown.message, branch.snap.now)
    yield from branch.remember(prompt, shown)
    return Outcome(
        report=prompt.report,
        reply=shown,
        recoveries=recoveries,
        rounds=rounds.replies,
        read=rounds.read,
        joined=True,
        past=branch.shown if branch is begun else None,
        pause=rounds.pause,
        effort=branch.layers.effort,
    )


def _continued(branch: Branch, before: Prompt) -> Flow[Prompt]:
    """The prompt of the next round: the last one with the round behind it, compacted where that is too long."""
    prompt = branch.prompt(branch.in_use(before), before.report.compaction, before.report.output)
    room = branch.room
    if room is None or prompt.report.tokens <= room.fit:
        return prompt
    made = yield from compacted(branch, room, prompt.report.tokens, "auto")
    return _bounded(made or prompt, room)


def _cured(branch: Branch, prompt: Prompt, refused: Overflow, tried: int) -> Flow[Prompt | None]:
    """A strictly smaller request, or None. What the refusal states is kept for the next calls."""
    learned = branch.learn(refused, prompt)
    if learned is not None:
        yield from Remember(
            scope=branch.snap.scope,
            agent=branch.snap.agent,
            conversation=prompt.report.conversation,
            learned=learned,
        )
    lowered = branch.lowered(prompt, refused)
    if lowered is not None:
        return lowered
    room = branch.room
    assert room is not None  # a refusal always tells of a window, if only that it is smaller than what was sent
    known = branch.compacted_before(min(room.trigger, prompt.report.tokens - 1)) if tried == 0 else None
    if known is not None and known.estimated < prompt.estimated:
        return msgspec.structs.replace(known, report=msgspec.structs.replace(known.report, compaction="recovered"))
    size = max(prompt.report.tokens, refused.requested or 0, room.window + (refused.over_by or 1))
    made = yield from compacted(branch, room, size, "recovered", share=_SHARES[tried])
    if made is None or made.estimated >= prompt.estimated:
        return None
    return _bounded(made, room)


def _final(branch: Branch, prompt: Prompt, refused: Overflow) -> WindowExceeded:
    """What the client gets when nothing helps: the text and code that every client recognises, with the numbers."""
    limit = refused.limit or prompt.report.window
    requested = refused.requested or max(prompt.report.tokens, (limit or 0) + 1)
    room = branch.room
    floor = branch.floor(room) if room is not None else None
    return WindowExceeded(overflow.final_text(requested, limit) + (f" ({floor.text})" if floor is not None else ""))
