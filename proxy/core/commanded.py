"""`/compact`, carried out: a compaction like any other, asked for by the user and answered by one line of ours.

No model answers the command. What it leaves behind is the compaction, and an anchor that says that it is in use.
"""

from __future__ import annotations

import msgspec

from proxy.core import command, measure
from proxy.core.branch import Branch
from proxy.core.chain import message
from proxy.core.command import Command, Reason, Result
from proxy.core.compacting import compacted
from proxy.core.conversation import Text
from proxy.core.narrative import display
from proxy.core.recognition import beginning
from proxy.core.steps import Call, Flow, Limits, Outcome, Prompt, Reply, Snapshot


def commanded(call: Call, snap: Snapshot, asked: Command) -> Flow[Outcome]:
    """Carry out `asked`, the command that `call` ends with."""
    known = None if call.known is None else beginning(call.known, min(len(call.known.messages), asked.at))
    history = msgspec.structs.replace(call, messages=call.messages[: asked.at], known=known)
    reason = command.refusal(call.messages, asked)
    branch = Branch(history if asked.at else call, snap)
    yield from branch.recall()
    branch.resume()
    if reason is None and branch.paused:
        reason = Reason.RUNNING
    branch.layer(settled=True)  # what is told of it, not what was said, is to become shorter
    prompt = branch.compacted_before(None) or branch.prompt(None)
    result: Result | None = command.refused(reason) if reason is not None else None
    if result is None:
        made = yield from _compacted(branch, prompt, asked)
        if made is not None and branch.made is not None:
            prompt, result = made, command.compacted(branch.made, display(branch.made.notes.narrative))
        elif made is not None:
            result = command.refused(Reason.NOTHING_NEW)  # somebody else was first, with the same command
        elif branch.why and not snap.policy.summary_builtin:
            result = command.refused(Reason.FAILED, branch.why)
        else:
            result = command.refused(Reason.NOTHING_YET)
    yield from _answered(call, snap, branch, prompt, result)
    reply = Reply(message=message("assistant", (Text(text=result.line),)), finish="stop", usage=None)
    return Outcome(report=prompt.report, reply=reply, said=result)


def _compacted(branch: Branch, prompt: Prompt, asked: Command) -> Flow[Prompt | None]:
    """As an automatic one would be in a window that the prompt just fills, however roomy the real one is: that is what
    was asked for."""
    size = prompt.report.tokens
    room = branch.room
    if room is None or size < room.window:
        room = measure.room(branch.snap.policy, Limits(total=max(size, 64)), None)
    assert room is not None
    return (yield from compacted(branch, room, size, "manual", wish=asked.wish))


def _answered(call: Call, snap: Snapshot, branch: Branch, prompt: Prompt, result: Result) -> Flow[None]:
    """Remember where the command and its answer stand, so that the next request finds what is in use."""
    if result.compaction_id is None:
        return
    shown = Branch(call, snap)
    shown.memory, shown.guard, shown.scale = branch.memory, branch.guard, branch.scale
    line = message("assistant", (Text(text=result.line),))
    yield from shown.remember(prompt, Reply(message=line, finish="stop", usage=None))
