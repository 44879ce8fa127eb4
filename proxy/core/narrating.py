"""Who writes the narrative of a compaction: the order in which models are asked, and when to stop asking.

    the policy's summary model -> the conversation's own -> nobody (the built-in notes need none)

Each part of a summary plan is asked for on top of the narrative before it; a refused answer or a transient error is
tried again, a stated window is believed. A failure costs a narrative and nothing else: whoever calls this goes on
with the notes that it has.
"""

from __future__ import annotations

from typing import Final

import msgspec

from proxy.core import summary
from proxy.core.errors import ClientError, TooLong, UpstreamError
from proxy.core.gate import Accepted, Rejected, answer, judge
from proxy.core.quoting import Refer
from proxy.core.steps import Flow, Reply, Report, Snapshot, Summarise, Summariser

_PARTS: Final = 6
"""Most requests for one narrative: more would keep the client waiting longer than a narrative is worth."""
_THINKING: Final = 4096
"""Most tokens left for thoughts beside the narrative: many models think before they write, out of the same limit."""
_SMALLEST: Final = 64
"""Tokens below which a narrative says nothing."""


class Narrated(msgspec.Struct, frozen=True, kw_only=True):
    """What came of asking. `text` is empty where no model's answer was taken; `writer` is who wrote it, `why` the last
    reason that none was taken, `calls` how many were made, `references` the whole results that it may cite."""

    text: str = ""
    writer: str = ""
    why: str = ""
    calls: int = 0
    references: tuple[str, ...] = ()


def narrated(matter: summary.Matter, snap: Snapshot, report: Report, *, most: int, refer: Refer) -> Flow[Narrated]:
    """Ask for a narrative of `matter` of at most `most` estimated tokens."""
    calls = 0
    why = "no_room"
    for summariser in snap.summarisers() if most >= _SMALLEST else ():
        outcome = yield from _asked(matter, summariser, snap, report, most, refer)
        calls += outcome.calls
        if outcome.text:
            return msgspec.structs.replace(outcome, calls=calls)
        why = outcome.why or why
    return Narrated(why=why, calls=calls)


def _asked(
    matter: summary.Matter, summariser: Summariser, snap: Snapshot, report: Report, most: int, refer: Refer
) -> Flow[Narrated]:
    """One model, with its own window; a window that it states itself is tried once more."""
    calls = 0
    window = summariser.window
    for _ in range(2):
        thinking = _THINKING if window is None else min(_THINKING, window // 8)
        room = None if window is None else window - thinking
        plan = summary.planned(
            matter, window=room, max_tokens=most, scale=summariser.scale, refer=refer, redact=snap.redact
        )
        if plan is None or len(plan.parts) > _PARTS:
            return Narrated(why="no_room", calls=calls)
        try:
            outcome = yield from _written(plan, summariser, snap, report, thinking)
        except _Refused as refused:
            calls += refused.calls
            if refused.window is None:
                return Narrated(why=refused.why, calls=calls)
            window = refused.window
        else:
            return msgspec.structs.replace(outcome, calls=outcome.calls + calls)
    return Narrated(why="overflow", calls=calls)


class _Refused(Exception):
    """This model will not write it. `window` is one that it stated itself and that is worth another plan."""

    def __init__(self, why: str, calls: int, window: int | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.calls = calls
        self.window = window


def _written(
    plan: summary.Plan, summariser: Summariser, snap: Snapshot, report: Report, thinking: int
) -> Flow[Narrated]:
    """Every part of `plan`, one after the other. Raises _Refused."""
    narrative = plan.previous
    calls = 0
    tries = snap.policy.summary_retries
    for number in range(len(plan.parts)):
        asked = summary.request(plan, number, narrative)
        while True:
            calls += 1
            try:
                verdict = yield from _ask(asked, summariser, snap, report, thinking)
            except TooLong as refused:
                stated = refused.overflow.limit
                raise _Refused("overflow", calls, _smaller(stated, summariser.window)) from None
            except (UpstreamError, ClientError) as failed:
                why, again = failed.code, _transient(failed)
            else:
                if isinstance(verdict, Accepted):
                    narrative = verdict.narrative
                    break
                why, again = verdict.refused, verdict.worth_retrying
            if not again or tries <= 0:
                raise _Refused(why, calls)
            tries -= 1
    return Narrated(text=narrative, writer=summariser.name, calls=calls, references=plan.references)


def _ask(
    asked: summary.Request, summariser: Summariser, snap: Snapshot, report: Report, thinking: int
) -> Flow[Accepted | Rejected]:
    def judged(reply: Reply) -> Accepted | Rejected:
        return judge(answer(reply), asked, redact=snap.redact)

    verdict: Accepted | Rejected = yield from Summarise(
        summariser=summariser,
        messages=asked.messages,
        max_tokens=asked.max_tokens + thinking,
        projected=round(asked.estimated * summariser.scale),
        report=report,
        judge=judged,
    )
    return verdict


def _smaller(stated: int | None, known: int | None) -> int | None:
    """A stated window that was not known to be so small."""
    return stated if stated is not None and (known is None or stated < known) else None


def _transient(failed: UpstreamError | ClientError) -> bool:
    """Whether the same request may be answered in a moment: not where it, or its key, is wrong."""
    if isinstance(failed, ClientError) or failed.code in ("upstream_timeout", "insufficient_quota"):
        return False
    status = failed.upstream_status
    return status is None or status in (200, 408, 409, 429) or status >= 500
