"""What slides out of memory: a built-in compaction that ends where the memory begins.

So nothing a user said disappears: his requests stand in the notes word for word, as far as their share goes, and what
else they leave out is to be had from the pages that they refer to. No model is asked, and whether automatic compaction
is on does not matter: how many turns a model is told is the agent author's affair, not the window's.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

import msgspec

from proxy.core import measure
from proxy.core.branch import Branch
from proxy.core.compacting import completion, kept
from proxy.core.notes import Compaction
from proxy.core.pacing import SLACK
from proxy.core.steps import Claim, Flow, Limits

_LEAST_WINDOW: Final = 16_384
"""Tokens that notes are measured by where no window is known, or a very large prompt makes it more."""


def folded(branch: Branch) -> Flow[None]:
    """See to it that something stands for the turns that slid out (`branch.base`), if any did."""
    if _settled(branch):
        return
    if not (yield from Claim(key=branch.key, cause="memory")):
        yield from branch.recall()
        if _settled(branch):
            return
    made = branch.fold(_start(branch), _room(branch))
    made, texts = completion(branch, made, _room(branch))
    branch.memory = msgspec.structs.replace(branch.memory, compactions=(*branch.memory.compactions, made))
    branch.base = made
    yield from kept(branch, made, texts)


def _start(branch: Branch) -> int:
    """The message that the memory is to begin with: where it does behind the notes in use, and behind those that end
    there, for the turns are counted from each anew."""
    teller, memory = branch.teller, branch.remembered(branch.used_before)
    assert teller is not None and memory is not None and memory.since is not None  # else it were settled
    start = memory.since
    while True:
        memory = teller.remembered(range(start, len(branch.messages)), f"from {start}")
        if memory.since is None:
            return start
        start = memory.since


def _settled(branch: Branch) -> bool:
    """Whether nothing slid out, or something is known that stands for it: what is in use already, before all others."""
    assert branch.teller is not None  # else nothing slides out
    if branch.teller.limits.leaving == "drop":
        return True
    used = branch.used_before
    if (used is None or _close(branch, None)) and branch.holds(None):
        return True
    known = sorted(branch.known, key=lambda found: (found is not used, found.covers))
    branch.base = next((found for found in known if _close(branch, found) and branch.holds(found)), None)
    return branch.base is not None


def _close(branch: Branch, used: Compaction | None) -> bool:
    """Whether few enough turns lie behind `used` that none need have slid out; so the others are not looked at."""
    assert branch.teller is not None  # else nothing slides out
    limits, step = branch.teller.limits, branch.teller.pace.step
    start = branch.chain.behind(used.covers) if used is not None else 0
    ends = branch.closed
    return len(ends) - bisect_right(ends, start - 1) < limits.turns + (SLACK if step is None else step)


def _room(branch: Branch) -> measure.Room:
    """The room of the call; where no window is known, as if the whole history just filled one."""
    if branch.room is not None:
        return branch.room
    window = max(_LEAST_WINDOW, 2 * branch.prompt(None).report.tokens)
    found = measure.room(branch.snap.policy, Limits(total=window), None)
    assert found is not None
    return found
