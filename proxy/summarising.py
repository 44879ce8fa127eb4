"""One call of a summary model: an upstream call like any other, whose answer nobody is shown.

Streamed, so that a slow model and a dead one can be told apart, and bounded in time: a client waits behind it. What it
asks (`core.summary`) and whether the answer is taken (`core.gate`) is decided elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from proxy.attempt import Attempt, Target
from proxy.core.done import DONE
from proxy.core.errors import TimedOut
from proxy.core.steps import Call, Prompt, Report, Summarise
from proxy.core.usage import UsageRow
from proxy.dialects.chat.request import encode_prompt
from proxy.dialects.chat.summary import summary_call
from proxy.showing import Showing
from proxy.upstream import Request


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds that a client is kept waiting: to the `first` words of a narrative (a small machine reads a long prompt
    slowly), `idle` between two pieces of it, and in `total` for all summary calls of one call."""

    first: float = 60.0
    idle: float = 20.0
    total: float = 120.0


class Nobody:
    """Fulfils `showing.Client`: each piece that would be shown to a client moves the deadline instead."""

    begun = False

    def __init__(self, ends: float, idle: float) -> None:
        self.ends = ends
        self.idle = idle
        self.deadline: asyncio.Timeout | None = None

    def tell(self, report: Report) -> None:
        return None

    def write(self, data: bytes) -> Awaitable[None]:
        if self.deadline is not None:
            self.deadline.reschedule(min(asyncio.get_running_loop().time() + self.idle, self.ends))
        return DONE


class Asking(msgspec.Struct, frozen=True, kw_only=True):
    """For which call, and where, a summary model is asked: `served` is where the conversation itself goes. `ends` is on
    the loop's clock."""

    call: Call
    target: Target
    served: Target
    request_id: str
    authorization: str | None
    ends: float
    patience: Patience

    @property
    def output_field(self) -> str | None:
        """The member in which the client states its output limit, where it is the same model that is asked."""
        same = self.target is self.served and self.call.max_output is not None
        return self.call.output_field if same else None

    @property
    def key(self) -> str | None:
        """The client's own key, for the upstream that the client gave it for and no other."""
        return self.authorization if self.target.upstream is self.served.upstream else None


def summary_report(step: Summarise[Any]) -> Report:
    """What the row of a summary call says of its size."""
    return msgspec.structs.replace(step.report, tokens=step.projected, window=step.summariser.window)


class SummaryCall:
    """One call. `row` is closed once `run` has ended, however it ended."""

    def __init__(self, step: Summarise[Any], asking: Asking, row: UsageRow, clock: Callable[[], float]) -> None:
        model, field = asking.target.card.name, asking.output_field
        call = summary_call(asking.call.caller, model, step.messages, step.max_tokens, output_field=field)
        prompt = Prompt(
            messages=step.messages,
            untouched=False,
            max_output=step.max_tokens,
            estimated=step.projected,
            shape=b"",
            report=summary_report(step),
        )
        self._judge = step.judge
        self._request = Request(
            path="/chat/completions",
            body=encode_prompt(call, prompt, model),
            authorization=asking.key,
            request_id=asking.request_id,
        )
        self._nobody = Nobody(asking.ends, asking.patience.idle)
        showing = Showing(self._nobody, model, include_usage=call.include_usage)
        self._attempt = Attempt(call=call, prompt=prompt, target=asking.target, row=row, showing=showing, clock=clock)
        self._first = asking.patience.first
        self._why = ""
        self._late = False

    @property
    def row(self) -> UsageRow:
        row = self._attempt.row
        if self._late:
            return msgspec.structs.replace(row, status="failed", error=TimedOut.code)
        return msgspec.structs.replace(row, error=f"refused_{self._why}") if self._why else row

    @property
    def outcome(self) -> str:
        """What became of it, in one word for metrics: accepted, or why not."""
        row = self.row
        return row.error or ("accepted" if row.status == "ok" else row.status)

    async def run(self, opened: Callable[[], Awaitable[None]] | None) -> Any:
        """The verdict on the answer. Raises an UpstreamError."""
        nobody = self._nobody
        first = asyncio.get_running_loop().time() + self._first
        try:
            async with asyncio.timeout_at(min(first, nobody.ends)) as nobody.deadline:
                reply = await self._attempt.run(self._request, opened)
        except TimeoutError:
            self._late = True
            raise TimedOut("The summary model did not answer in time.") from None
        verdict = self._judge(reply)
        self._why = verdict.refused
        return verdict
