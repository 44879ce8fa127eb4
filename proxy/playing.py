"""How a flow of the core is advanced: on the loop, in the worker where planning follows, and to its end behind a client
that left in the middle of a compaction.

What a step asks is performed elsewhere (`gateway`); here is only whose turn it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Any, Final

from proxy.core.errors import ClientLeft, WeirgateError
from proxy.core.steps import Claim, Count, Flow, Outcome, Recall, Step, Summarise

_LABOURS: Final = frozenset((Claim, Count, Summarise))
"""Steps whose answers are followed by planning: work in proportion to the history. So is what is recalled again once
a branch was claimed."""

Work = Awaitable[tuple[bool, Any]]


class Play:
    """One flow. `perform` answers a step or raises what is thrown into the flow; `spawn` keeps work that outlives the
    request; `concluded` is called when a flow that went on alone has ended."""

    __slots__ = (
        "_claimed",
        "_concluded",
        "_flow",
        "_perform",
        "_spawn",
        "_workers",
        "_working",
        "alone",
    )

    def __init__(
        self,
        flow: Flow[Outcome],
        perform: Callable[[Step], Awaitable[object]],
        spawn: Callable[[Awaitable[Any]], asyncio.Future[Any]],
        workers: Executor,
        concluded: Callable[[], None],
    ) -> None:
        self._flow = flow
        self._perform = perform
        self._spawn = spawn
        self._workers = workers
        self._concluded = concluded
        self._claimed = False
        self._working: asyncio.Future[tuple[bool, Any]] | None = None
        self.alone = False
        """Nobody waits any more: nothing new is asked of anybody."""

    @property
    def working(self) -> bool:
        """Whether a summary or a plan is under way."""
        return self._working is not None

    async def run(self, working: asyncio.Future[tuple[bool, Any]] | None = None) -> Outcome:
        """Advance the flow until it returns or raises, from its beginning or from what comes of `working`; whatever
        ends it early, it is closed.

        Planning and a summary go on behind a client that leaves: what comes of them is stored.
        """
        flow = self._flow
        try:
            done, step = advance(flow.send, None) if working is None else await self._worked(working)
            while not done:
                if type(step) in _LABOURS or (self._claimed and type(step) is Recall):
                    self._claimed = self._claimed or type(step) is Claim
                    self._working = self._spawn(self._laboured(step))
                    done, step = await self._worked(self._working)
                    continue
                try:
                    answer = await self._perform(step)
                except (WeirgateError, ClientLeft) as error:
                    done, step = advance(flow.throw, error)
                else:
                    done, step = advance(flow.send, answer)
            outcome: Outcome = step
            return outcome
        except asyncio.CancelledError:
            if self._working is not None and not self.alone:
                self.alone = True
                self._spawn(self._conclude(self._working))
            raise
        finally:
            if self._working is None:
                self._end()

    async def _worked(self, working: asyncio.Future[tuple[bool, Any]]) -> tuple[bool, Any]:
        """The end of `working`, which outlives whoever waits for it."""
        try:
            return await asyncio.shield(working)
        finally:
            if working.done():
                self._working = None
            del working  # see `advance`

    async def _laboured(self, step: Step) -> tuple[bool, Any]:
        """Perform `step`, and let the flow plan in the worker."""
        resume: Callable[[Any], Any] = self._flow.send
        answer: object
        try:
            answer = await self._perform(step)
        except (WeirgateError, ClientLeft) as error:
            resume, answer = self._flow.throw, error
        try:
            return await asyncio.get_running_loop().run_in_executor(self._workers, advance, resume, answer)
        finally:
            del answer  # see `advance`

    async def _conclude(self, working: asyncio.Future[tuple[bool, Any]]) -> None:
        """Let a compaction that is under way be stored, though nobody waits for the call any more."""
        concluded = self._concluded
        try:
            await self.run(working)
        except (WeirgateError, ClientLeft):
            return
        finally:
            if self._working is None:
                concluded()

    def _end(self) -> None:
        """The flow is over. Who performs its steps holds us; if we held him on, both would stay, with all that the call
        brought, until the collector looks for such circles: hundreds of large bodies."""
        self._flow.close()
        del self._perform, self._spawn, self._concluded


def advance(resume: Callable[[Any], Any], value: Any) -> tuple[bool, Any]:
    """(False, the next step) or (True, the outcome): a StopIteration cannot cross a future."""
    try:
        return False, resume(value)
    except StopIteration as end:
        return True, end.value
    finally:
        del value  # an error that comes out as it was thrown in leads here, and would hold itself
