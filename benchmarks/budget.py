"""What a call may cost, stage by stage, and where in the source each stage is: folded stacks to microseconds.

The budget is that of the design, in CPU microseconds of one core with 16 small calls in flight; it was set on another
machine, so read the shares and not the sums. A sample belongs to the innermost function that a stage names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

WRITER = "usage row, writer thread"
OTHER = "all else"


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """`files`: beginnings of the files that it is. `small`: its budget for a call of 1 KB; None: there is none."""

    name: str
    files: tuple[str, ...] = ()
    small: float | None = None


STAGES = (
    Stage(
        name="server: sockets, HTTP, ASGI",
        files=(
            "uvicorn/",
            "uvloop/",
            "asyncio/",
            "proxy/server/guard.py",
            "proxy/server/cycle.py",
            "proxy/server/head.py",
            "proxy/server/body.py",
            "proxy/server/arriving.py",
            "proxy/server/stalled.py",
            "proxy/server/fence.py",
            "proxy/server/stream.py",
        ),
        small=35,
    ),
    Stage(name="route, key, limits", files=("proxy/app.py", "proxy/server/", "proxy/metering.py"), small=13),
    Stage(
        name="envelope, digests, chain, lookup",
        files=(
            "proxy/dialects/chat/request.py",
            "proxy/dialects/chat/messages.py",
            "proxy/dialects/members.py",
            "proxy/dialects/strict.py",
            "proxy/upstream/beginnings.py",
            "proxy/upstream/decoded.py",
            "proxy/core/chain.py",
            "proxy/core/recognition.py",
            "proxy/core/groups.py",
            "proxy/core/past.py",
            "proxy/store/recent.py",
        ),
        small=10,
    ),
    Stage(
        name="exchange: layers, measure, plan, steps",
        files=("proxy/core/", "proxy/gateway.py", "proxy/playing.py", "proxy/snapshots.py", "proxy/layering.py"),
        small=5,
    ),
    Stage(
        name="upstream call",
        files=("proxy/upstream/", "proxy/attempt.py", "proxy/retries.py"),
        small=40,
    ),
    Stage(
        name="answer: usage, events, relay",
        files=("proxy/dialects/", "proxy/core/relay.py", "proxy/core/events.py", "proxy/showing.py"),
        small=2,
    ),
    Stage(
        name="metrics",
        files=("proxy/metrics.py", "proxy/counted.py", "proxy/tally.py", "proxy/calibration.py"),
        small=4,
    ),
    Stage(name="usage row, loop", files=("proxy/store/", "proxy/core/usage.py", "proxy/naming.py"), small=1),
    Stage(name=WRITER, small=5),
    Stage(name=OTHER),
)


def stage_of(stack: str) -> str:
    """The stage of a folded stack: of its innermost function that belongs to one, by the longest beginning."""
    for frame in reversed(stack.split(";")):
        found = [(len(start), stage.name) for stage in STAGES for start in stage.files if frame.startswith(start)]
        if found:
            return max(found)[1]
    return OTHER


def read_stacks(lines: Iterable[str]) -> Counter[str]:
    """Folded stacks, by what each took."""
    found: Counter[str] = Counter()
    for line in lines:
        stack, _, used = line.rpartition(" ")
        if stack and used.strip().isdigit():
            found[stack] += int(used)
    return found


def staged(stacks: Mapping[str, int], loop: float, writer: float) -> dict[str, float]:
    """Microseconds of each stage in a call that takes `loop` of them on the main thread and `writer` on the store's:
    the stacks say in which shares."""
    whole = sum(stacks.values())
    found = {stage.name: 0.0 for stage in STAGES}
    for stack, used in stacks.items():
        found[stage_of(stack)] += loop * used / whole
    found[WRITER] += writer
    return found


def heaviest(stacks: Mapping[str, int], count: int) -> list[tuple[str, float, float]]:
    """(function, its own share, its share with all that it calls) of those with the largest own shares."""
    whole = sum(stacks.values()) or 1
    own: Counter[str] = Counter()
    within: Counter[str] = Counter()
    for stack, used in stacks.items():
        frames = stack.split(";")
        own[frames[-1]] += used
        for frame in set(frames):
            within[frame] += used
    return [(frame, used / whole, within[frame] / whole) for frame, used in own.most_common(count)]
