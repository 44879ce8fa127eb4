"""One thread, one connection, group commit.

What belongs here: the queue, batches, transactions, and giving answers back to the loop. What never: a statement of its
own beyond BEGIN and COMMIT, or knowledge of what a job does (but for usage rows, which are written in bulk).

Why one connection: before 3.51.3 SQLite can lose a WAL with two (research/reliability.md 0.7). Why batches: a commit
costs a disk sync, and a hundred rows in one cost no more than one. The thread takes all that waits, runs it in one
transaction, and answers the whole batch with one call into the loop. Work is the thread's from the moment it is
queued: a caller that is cancelled abandons its answer, not its write. If a batch fails, each job is tried alone, so
that one bad job fails by itself.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, TypeVar

from proxy.core.errors import StoreUnavailable, WeirgateError
from proxy.core.usage import UsageRow
from proxy.store.failures import concerns_all, is_full, unavailable
from proxy.store.rows import usage_values
from proxy.store.statements import Statements

T = TypeVar("T")

BATCH = 1_024
"""Most jobs of one transaction."""

LINGER = 0.02
"""Seconds that work nobody waits for may stay with the loop. What is awaited takes it along sooner, but for openings:
a row that is closed before it left is written once, not twice."""

GATHER, COMPANY = 0.001, 4
"""Seconds that ended calls wait for others to share their commit, where at least so many more are under way (like
PostgreSQL's commit_delay and commit_siblings): a commit costs more than all that is in it."""

OWED = 10_000
"""Most closed rows kept for the time when writing works again; the oldest go first."""


class Kind(Enum):
    OPEN = "open"
    CLOSE = "close"
    RUN = "run"
    WRITE = "write"
    READ = "read"


# An enumeration is slow to be asked for its members.
_OPEN, _CLOSE, _RUN, _WRITE, _READ = Kind


class Job:
    """One piece of work and, afterwards, its result or error. `then` is called on the loop before the waiter wakes,
    also where the waiter is gone."""

    __slots__ = ("error", "future", "kind", "result", "then", "what")

    def __init__(
        self,
        kind: Kind,
        what: Any,
        future: asyncio.Future[Any] | None = None,
        then: Callable[[Job], None] | None = None,
    ) -> None:
        self.kind = kind
        self.what = what
        self.future = future
        self.then = then
        self.result: Any = None
        self.error: WeirgateError | None = None


class GroupCommit:
    """The loop's side submits; `_main` and what it calls belong to the thread.

    `connect` opens the database and brings it up to date; what it answers is the answer of `start`. `check` is called
    before each transaction and raises where writing would be in vain. `spare` does a slice of work that can wait and
    says whether more is left; `finish` closes the connection.
    """

    def __init__(
        self,
        statements: Statements,
        connect: Callable[[], tuple[sqlite3.Connection, int]],
        *,
        check: Callable[[], None],
        spare: Callable[[sqlite3.Connection], bool],
        finish: Callable[[sqlite3.Connection], None],
    ) -> None:
        self._sql = statements
        self._connect = connect
        self._check = check
        self._spare = spare
        self._finish = finish
        self._queue: queue.SimpleQueue[list[Job] | None] = queue.SimpleQueue()
        self._waiting: list[Job] = []
        self._openings: dict[tuple[str, str], UsageRow] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._leaving = False
        self._under_way: set[tuple[str, str]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._running = False
        self._lost = False
        self.failing: WeirgateError | None = None
        """The last write's failure; None once a write has succeeded again."""
        self._owed: dict[tuple[str, str], UsageRow] = {}

    # -- the loop's side ---------------------------------------------------------------------------------------------

    async def start(self) -> int:
        self._loop = asyncio.get_running_loop()
        started: asyncio.Future[int] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._main, args=(started,), name="weirgate-store", daemon=True)
        self._thread.start()
        try:
            count = await started
        except asyncio.CancelledError:
            self._queue.put(None)
            raise
        self._running = True
        return count

    async def stop(self) -> None:
        if not self._running or self._thread is None:
            return
        self._running = False
        self._flush_all()
        self._queue.put(None)
        await asyncio.shield(self._ended)
        self._thread.join()

    def later(self, kind: Kind, what: Any) -> None:
        """Queue work that nobody waits for. It leaves with the next awaited job, or after LINGER."""
        self._check_running()
        self._waiting.append(Job(kind, what))
        self._linger()

    def open_row(self, row: UsageRow) -> None:
        """Queue an opening. It leaves after LINGER, unless it is closed before or somebody asks."""
        self._check_running()
        key = (row.tenant, row.id)
        self._under_way.add(key)
        self._openings[key] = row
        self._linger()

    def close_row(self, row: UsageRow) -> asyncio.Future[None]:
        """Queue a closing, which writes the whole row; the future is its answer."""
        key = (row.tenant, row.id)
        self._under_way.discard(key)
        self._openings.pop(key, None)
        return self._submit(_CLOSE, row)

    def remember(self, what: Callable[[sqlite3.Connection], Any], then: Callable[[Job], None]) -> asyncio.Future[Any]:
        """Queue a write that has no interest in rows; the future is its answer."""
        return self._submit(_WRITE, what, then)

    def nothing(self) -> asyncio.Future[Any]:
        """The answer to a write that has nothing to write."""
        if self._loop is None:
            raise StoreUnavailable("The store is closed.")
        future: asyncio.Future[Any] = self._loop.create_future()
        future.set_result(None)
        return future

    def submit(self, kind: Kind, what: Any) -> asyncio.Future[Any]:
        """Queue work behind all that was queued before; the future is its answer."""
        self._take_openings()
        self._leaving = False  # it waits for no company
        return self._submit(kind, what)

    def _submit(self, kind: Kind, what: Any, then: Callable[[Job], None] | None = None) -> asyncio.Future[Any]:
        if self._loop is None:
            raise StoreUnavailable("The store is closed.")
        future: asyncio.Future[Any] = self._loop.create_future()
        if not self._running:
            future.set_exception(StoreUnavailable("The store is closed."))
            return future
        self._waiting.append(Job(kind, what, future, then))
        if not self._leaving:
            # All that one turn of the loop queues leaves together: waking the thread costs more than a row.
            self._leaving = True
            if kind is _CLOSE and len(self._under_way) >= COMPANY:
                self._loop.call_later(GATHER, self._flush)
            else:
                self._loop.call_soon(self._flush)
        return future

    async def read(self, what: Callable[[sqlite3.Connection], T]) -> T:
        answer: T = await self.submit(_READ, what)
        return answer

    async def write(self, what: Callable[[sqlite3.Connection], T]) -> T:
        """`what` runs inside the batch's transaction. It may run twice: the first may have been rolled back."""
        answer: T = await self.submit(_WRITE, what)
        return answer

    def _check_running(self) -> None:
        if not self._running:
            raise StoreUnavailable("The store is closed.")

    def _linger(self) -> None:
        if len(self._waiting) + len(self._openings) >= BATCH:
            self._flush_all()
        elif self._timer is None and self._loop is not None:
            self._timer = self._loop.call_later(LINGER, self._flush_all)

    def _flush_all(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._take_openings()
        self._flush()

    def _take_openings(self) -> None:
        if self._openings:
            self._waiting += [Job(_OPEN, row) for row in self._openings.values()]
            self._openings.clear()

    def _flush(self) -> None:
        self._leaving = False
        if self._waiting:
            self._queue.put(self._waiting)
            self._waiting = []

    def _answer(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            if job.then is not None:
                job.then(job)
            future = job.future
            if future is None or future.done():
                continue
            if job.error is not None:
                future.set_exception(job.error)
            else:
                future.set_result(job.result)

    # -- the thread's side -------------------------------------------------------------------------------------------

    def _call(self, what: Callable[..., object], *arguments: object) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(what, *arguments)
        except RuntimeError:
            return  # the loop is closed: nobody is left to be told

    def _main(self, started: asyncio.Future[int]) -> None:
        try:
            connection, count = self._connect()
        except Exception as failure:
            self._call(_fail, started, unavailable(failure))
            return
        self._call(_settle, started, count)
        try:
            more = True
            while (jobs := self._take(connection, more)) is not None:
                more = self._attend(connection, jobs) and more
        finally:
            if self._owed:
                self._pay(connection)
            self._finish(connection)
            self._call(_settle, self._ended, None)

    def _take(self, connection: sqlite3.Connection, more: bool) -> list[Job] | None:
        """Everything that waits, up to a batch; sleeps where nothing does. None: stop."""
        while more and self._queue.empty():
            more = self._spare(connection)
        jobs = self._queue.get()
        while jobs is not None and len(jobs) < BATCH:
            try:
                following = self._queue.get_nowait()
            except queue.Empty:
                break
            if following is None:
                self._queue.put(None)
                break
            jobs.extend(following)
        return jobs

    def _attend(self, connection: sqlite3.Connection, jobs: list[Job]) -> bool:
        """Serve, whatever happens: the thread outlives a fault of ours, and nobody waits for ever."""
        try:
            self._serve(connection, jobs)
            return self._spare(connection)
        except Exception as failure:
            self._refuse(jobs, failure)
            self._call(self._answer, jobs)
            return False

    def _serve(self, connection: sqlite3.Connection, jobs: list[Job]) -> None:
        """Reads that came before any write do not wait for the commit; the others see what it wrote."""
        first = next((place for place, job in enumerate(jobs) if job.kind is not _READ), len(jobs))
        for job in jobs[:first]:
            _read(connection, job)
        if first < len(jobs):
            if first:
                self._call(self._answer, jobs[:first])
            self._write(connection, [job for job in jobs[first:] if job.kind is not _READ])
            for job in jobs[first:]:
                if job.kind is _READ:
                    _read(connection, job)
        self._call(self._answer, jobs[first:] or jobs)

    def _write(self, connection: sqlite3.Connection, jobs: list[Job]) -> None:
        try:
            self._transact(connection, jobs, careful=False)
        except Exception as failure:
            if concerns_all(failure):
                self._refuse(jobs, failure)
            else:
                self._one_by_one(connection, jobs)
        if self._lost:
            self._tell_of_lost(jobs)
        if self._owed and self.failing is None:
            self._pay(connection)

    def _pay(self, connection: sqlite3.Connection) -> None:
        """Write the rows whose closing failed with the disk: their calls were made, whatever their clients were told.
        Also before the connection is closed, for the last time. What the database does not take now, it never will."""
        rows, self._owed = self._owed, {}
        try:
            self._transact(connection, [Job(_CLOSE, row) for row in rows.values()], careful=True)
        except Exception as failure:
            if concerns_all(failure) or is_full(failure):
                self._owed = rows

    def _one_by_one(self, connection: sqlite3.Connection, jobs: list[Job]) -> None:
        for place, job in enumerate(jobs):
            try:
                self._transact(connection, [job], careful=True)
            except Exception as failure:
                if concerns_all(failure):
                    self._refuse(jobs[place:], failure)
                    return
                self._refuse([job], failure)

    def _refuse(self, jobs: list[Job], failure: BaseException) -> None:
        error = unavailable(failure)
        if isinstance(error, StoreUnavailable) and error.retry:
            self.failing = error
        for job in jobs:
            if job.kind is _CLOSE and (concerns_all(failure) or is_full(failure)):
                self._owe(job.what)
            job.result, job.error = None, _own(error)
            self._lost = self._lost or job.kind is _OPEN

    def _owe(self, row: UsageRow) -> None:
        if len(self._owed) >= OWED:
            del self._owed[next(iter(self._owed))]
        self._owed[row.tenant, row.id] = row

    def _tell_of_lost(self, jobs: list[Job]) -> None:
        """An opening has no waiter. Whoever waits for all openings (`opened`) is told; the closing will write the
        whole row."""
        waiters = [job for job in jobs if job.kind is _WRITE and job.what is barrier]
        for job in waiters:
            job.error = job.error or self.failing or StoreUnavailable("A usage row could not be opened.")
        self._lost = self._lost and not waiters

    def _transact(self, connection: sqlite3.Connection, jobs: list[Job], careful: bool) -> None:
        self._check()
        if connection.in_transaction:
            connection.execute("ROLLBACK")  # what an earlier failure could not take back
        connection.execute("BEGIN IMMEDIATE")
        try:
            self._apply(connection, jobs, careful)
            connection.execute("COMMIT")
        except BaseException:
            # SQLite rolls some failures back itself; a second rollback would hide the first error.
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        for job in jobs:
            job.error = None
            if job.kind is not _RUN and job.what is not barrier:
                self.failing = None

    def _apply(self, connection: sqlite3.Connection, jobs: list[Job], careful: bool) -> None:
        opened: dict[tuple[str, str], UsageRow] = {}
        closed: list[UsageRow] = []
        for job in jobs:
            if job.kind is _OPEN:
                opened[job.what.tenant, job.what.id] = job.what
            elif job.kind is _CLOSE:
                # Opened and closed in one batch: one insert.
                opened.pop((job.what.tenant, job.what.id), None)
                closed.append(job.what)
        if opened:
            connection.executemany(self._sql.open_row, [usage_values(row, careful) for row in opened.values()])
        if closed:
            connection.executemany(self._sql.close_row, [usage_values(row, careful) for row in closed])
        for job in jobs:
            if job.kind is _WRITE:
                job.result = job.what(connection)
            elif job.kind is _RUN:
                connection.execute(*job.what)


def barrier(connection: sqlite3.Connection) -> None:
    """A write that writes nothing: it is answered when all that was queued before it is durable, or is refused."""


def _read(connection: sqlite3.Connection, job: Job) -> None:
    try:
        job.result = job.what(connection)
    except Exception as failure:
        job.error = unavailable(failure)


def _own(error: WeirgateError) -> WeirgateError:
    """An error for each waiter: they are raised in different tasks, and each adds its own traceback."""
    return (
        StoreUnavailable(error.message, code=error.code, retry=error.retry)
        if type(error) is StoreUnavailable
        else error
    )


def _settle(future: asyncio.Future[T], value: T) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[T], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
