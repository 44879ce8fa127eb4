"""Group commit on PostgreSQL: what waits is written in one transaction, by one connection, in the order it came.

What belongs here: the queue, batches, and giving answers. What never: a statement of its own. The rules are those of
`group_commit`, without its thread: work is the writer's from the moment it is queued, so a caller that is cancelled
abandons its answer and not its write; if a batch fails, each job is tried alone; a row whose closing failed with the
database is owed to it.

A row that was never written is copied (COPY), whole, however it stands; one that was written open is closed where it
is. Where COPY meets a row that is there already (a batch that was sent again after its answer was lost), the batch is
written by statements that say what to do then.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from enum import Enum
from typing import Any, Final

from proxy.core.errors import StoreUnavailable, WeirgateError
from proxy.core.steps import Remember
from proxy.core.usage import UsageRow
from proxy.store.group_commit import BATCH, LINGER, OWED
from proxy.store.postgres_failures import code_of, concerns_all, contested, lost, unavailable
from proxy.store.postgres_pool import Connection, Pool
from proxy.store.postgres_rows import ORDER, TOUCH, Line, lines
from proxy.store.postgres_statements import COPIED, PostgresStatements
from proxy.store.rows import usage_values

_TRIES: Final = 3
_ENDING: Final = 10.0
"""Seconds in which all that waits must be written at the end."""
_FULL: Final = "53100"
_THERE: Final = "23505"


class Kind(Enum):
    OPEN = "open"
    CLOSE = "close"
    LINES = "lines"
    BARRIER = "barrier"


class Job:
    """One piece of work. `written` ends when it does, `answer` is its caller's to give up."""

    __slots__ = ("answer", "error", "kind", "what", "written")

    def __init__(self, kind: Kind, what: Any, answer: asyncio.Future[None] | None = None) -> None:
        self.kind = kind
        self.what = what
        self.answer = answer
        self.written: asyncio.Future[None] | None = None
        self.error: WeirgateError | None = None


Named = tuple[str, str]


class GroupWriter:
    """`failing` is the last write's failure; None once one has succeeded again. `trouble` is told of each."""

    def __init__(self, pool: Pool, sql: PostgresStatements, instance: str, trouble: Callable[[], None]) -> None:
        self._pool = pool
        self._sql = sql
        self._instance = instance
        self._trouble = trouble
        self._waiting: list[Job] = []
        self._openings: dict[Named, Job] = {}
        self._open: set[Named] = set()
        """Rows that may stand open in the database."""
        self._owed: dict[Named, UsageRow] = {}
        self._pending: defaultdict[Hashable, list[asyncio.Future[None]]] = defaultdict(list)
        self._timer: asyncio.TimerHandle | None = None
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._ending = False
        self._lost = False
        self.failing: WeirgateError | None = None

    # -- what callers do ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._main(), name="weirgate-store")

    async def stop(self) -> None:
        """Write all that waits, within bounds; what is owed is tried a last time."""
        if self._task is None or self._ending:
            return
        self.pay()
        self._flush()
        self._ending = True
        self._wake.set()
        try:
            async with asyncio.timeout(_ENDING):
                await asyncio.shield(self._task)
        except TimeoutError:
            self._task.cancel()
            self._refuse(self._waiting, StoreUnavailable("The store is closed."))
            self._answer(self._waiting)

    def open_row(self, row: UsageRow) -> None:
        self._check()
        self._openings[row.tenant, row.id] = Job(Kind.OPEN, row)
        self._linger()

    def close_row(self, row: UsageRow) -> asyncio.Future[None]:
        self._openings.pop((row.tenant, row.id), None)
        return self._submit(Kind.CLOSE, row)

    def remember(self, tenant: str, what: Remember, now: float) -> asyncio.Future[None]:
        return self._submit(Kind.LINES, list(lines(tenant, what, now)), (tenant, what.scope))

    def later(self, of: str, line: Line) -> None:
        """A line that nobody waits for."""
        if not self._ending:
            self._waiting.append(Job(Kind.LINES, [(of, line)]))
            self._linger()

    async def flush(self) -> None:
        """Wait for all that was queued so far. Raises where an opening among it was lost."""
        self._take_openings()
        await self._submit(Kind.BARRIER, None)

    async def settled(self, topic: Hashable) -> None:
        """Wait for what this process is writing on `topic`, however it ends."""
        pending = self._pending.get(topic)
        if pending:
            await asyncio.wait(pending)

    def recovered(self) -> None:
        """The database can be written again."""
        self.failing = None
        self.pay()

    def pay(self) -> None:
        """Queue what is owed: calls that were made, whatever their clients were told."""
        rows, self._owed = self._owed, {}
        self._waiting.extend(Job(Kind.CLOSE, row) for row in rows.values())
        if rows:
            self._wake.set()

    def expect(self, topic: Hashable) -> asyncio.Future[None]:
        """Whoever asks `settled` from here on waits for this future, which the caller must end."""
        written = asyncio.get_running_loop().create_future()
        pending = self._pending[topic]
        pending.append(written)
        written.add_done_callback(lambda _: self._no_longer(topic, written))
        return written

    def before(self, topic: Hashable) -> list[asyncio.Future[None]]:
        """What this process is writing on `topic` now."""
        return list(self._pending.get(topic, ()))

    def _no_longer(self, topic: Hashable, written: asyncio.Future[None]) -> None:
        self._pending[topic].remove(written)
        if not self._pending[topic]:
            del self._pending[topic]

    def _check(self) -> None:
        if self._ending or self._task is None:
            raise StoreUnavailable("The store is closed.")

    def _submit(self, kind: Kind, what: Any, topic: Hashable = None) -> asyncio.Future[None]:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._ending or self._task is None:
            answer.set_exception(StoreUnavailable("The store is closed."))
            return answer
        job = Job(kind, what, answer)
        if topic is not None:
            job.written = self.expect(topic)
        self._waiting.append(job)
        self._wake.set()
        return answer

    def _linger(self) -> None:
        if len(self._waiting) + len(self._openings) >= BATCH:
            self._flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LINGER, self._flush)

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._take_openings()
        self._wake.set()

    def _take_openings(self) -> None:
        self._waiting.extend(self._openings.values())
        self._openings.clear()

    # -- the writer --------------------------------------------------------------------------------------------------

    async def _main(self) -> None:
        while self._waiting or not self._ending:
            if not self._waiting:
                await self._wake.wait()
            self._wake.clear()
            jobs, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
            if jobs:
                try:
                    await self._write(jobs)
                except BaseException as failure:
                    self._refuse(jobs, failure)
                    if not isinstance(failure, Exception):
                        raise
                finally:
                    self._answer(jobs)

    def _answer(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            if job.written is not None and not job.written.done():
                job.written.set_result(None)
            if job.answer is None or job.answer.done():
                continue
            if job.error is not None:
                job.answer.set_exception(job.error)
            else:
                job.answer.set_result(None)

    async def _write(self, jobs: list[Job]) -> None:
        failure = await self._attempt(jobs)
        if failure is not None:
            if concerns_all(failure):
                self._refuse(jobs, failure)
            else:
                await self._one_by_one(jobs)
        if self._lost:
            self._tell_of_lost(jobs)

    async def _attempt(self, jobs: list[Job], careful: bool = False) -> Exception | None:
        """Why it could not be written. Once more where another connection, or another moment, may do."""
        for left in reversed(range(_TRIES)):
            try:
                await self._transact(jobs, careful)
                return None
            except Exception as failure:
                if not left or not (lost(failure) or contested(failure) or code_of(failure) == _THERE):
                    return failure
                careful = True
        raise AssertionError("the last try returns")

    async def _one_by_one(self, jobs: list[Job]) -> None:
        for place, job in enumerate(jobs):
            failure = await self._attempt([job], careful=True)
            if failure is not None and concerns_all(failure):
                self._refuse(jobs[place:], failure)
                return
            if failure is not None:
                self._refuse([job], failure)

    def _refuse(self, jobs: Iterable[Job], failure: BaseException) -> None:
        error = unavailable(failure)
        for job in jobs:
            if job.kind is Kind.CLOSE and (concerns_all(failure) or code_of(failure) == _FULL):
                self._owe(job.what)
            self._lost = self._lost or job.kind is Kind.OPEN
            # One for each waiter: they are raised in different tasks, and each adds its own traceback.
            job.error = StoreUnavailable(error.message, code=error.code, retry=error.retry)
        if error.retry:
            self.failing = error
            self._trouble()

    def _owe(self, row: UsageRow) -> None:
        if len(self._owed) >= OWED:
            del self._owed[next(iter(self._owed))]
        self._owed[row.tenant, row.id] = row

    def _tell_of_lost(self, jobs: list[Job]) -> None:
        """An opening has no waiter; whoever waits for all of them is told. The closing will write the whole row."""
        waiters = [job for job in jobs if job.kind is Kind.BARRIER]
        for job in waiters:
            job.error = job.error or StoreUnavailable("A usage row could not be opened.")
        self._lost = self._lost and not waiters

    async def _transact(self, jobs: list[Job], careful: bool) -> None:
        whole, closing, written = self._sorted(jobs, careful)
        if whole or closing or written:
            async with self._pool.transaction() as connection:
                await self._usage(connection, whole, closing, careful)
                for of in ORDER:
                    if of in written:
                        await connection.executemany(self._text(of), _in_order(of, written[of]))
            self.failing = None
        for job in jobs:
            job.error = None
            if job.kind is Kind.CLOSE:
                self._open.discard((job.what.tenant, job.what.id))

    def _sorted(self, jobs: list[Job], careful: bool) -> tuple[list[UsageRow], list[UsageRow], dict[str, list[Line]]]:
        """(rows to be written whole, rows to be closed where they stand, other lines by what they are)."""
        opened: dict[Named, UsageRow] = {}
        whole: list[UsageRow] = []
        closing: list[UsageRow] = []
        written: defaultdict[str, list[Line]] = defaultdict(list)
        for job in jobs:
            if job.kind is Kind.OPEN:
                opened[job.what.tenant, job.what.id] = job.what
            elif job.kind is Kind.CLOSE:
                named = (job.what.tenant, job.what.id)
                opened.pop(named, None)  # opened and closed in one batch: one line
                (closing if careful or named in self._open else whole).append(job.what)
            elif job.kind is Kind.LINES:
                for of, line in job.what:
                    written[of].append(line)
        self._open.update(opened)
        return [*opened.values(), *whole], closing, written

    async def _usage(
        self, connection: Connection, whole: list[UsageRow], closing: list[UsageRow], careful: bool
    ) -> None:
        fresh = [self._copied(row, careful) for row in whole]
        if fresh and not careful:
            await connection.copy_records_to_table("usage", records=fresh, columns=COPIED)
        elif fresh:
            await connection.executemany(self._sql.open_row, fresh)
        if closing:
            ends = sorted(closing, key=lambda row: (row.tenant, row.id))
            await connection.executemany(
                self._sql.close_row, [(*usage_values(row, careful), self._instance) for row in ends]
            )

    def _copied(self, row: UsageRow, careful: bool) -> Line:
        return (*usage_values(row, careful), self._instance if row.status == "open" else None)

    def _text(self, of: str) -> str:
        return self._sql.touch[of.removeprefix(TOUCH)] if of.startswith(TOUCH) else self._sql.add[of]


def _in_order(of: str, found: list[Line]) -> list[Line]:
    """By key, so that two processes lock rows in the same order; what came later of one row stays behind. A row is
    marked as used once."""
    if of.startswith(TOUCH):
        found = list({line[1:-1]: line for line in found}.values())
        return sorted(found, key=lambda line: line[1:-1])
    return sorted(found, key=lambda line: line[:3])
