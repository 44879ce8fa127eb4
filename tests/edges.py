"""The smallest fulfilments of the edges: a provider that answers scripted bytes, a client that keeps what it reads,
and the real store, which tells what was asked of it and fails where a test says so.

For tests of the driver, which needs no sockets. Sockets are `tests.fakes`' work.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from proxy.core.errors import StoreUnavailable
from proxy.core.steps import Memory, Recall, Remember, Report
from proxy.core.usage import UsageRow
from proxy.store import UsageQuery
from proxy.store.address import is_postgres
from proxy.store.postgres import PostgresStore
from proxy.store.sqlite import SqliteStore
from proxy.upstream import Request
from tests.replies import chat_chunks, chat_reply

BOUND = 10.0
"""Seconds any wait of a test may take before it fails."""

Piece = bytes | BaseException | asyncio.Event | Callable[[], Awaitable[None]]


class Answer:
    """An answer whose pieces come one by one: bytes, an error to raise, an event or work to wait for."""

    def __init__(self, *pieces: Piece, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        self._pieces = pieces
        self._left = iter(pieces)
        self._status = status
        self._headers = {"content-type": "application/json", **(headers or {})}
        self.closed = 0
        self.left = 0
        self.read_whole = False

    @property
    def status(self) -> int:
        return self._status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._headers

    async def read(self) -> bytes:
        taken: list[bytes] = []
        while not await self.pour(lambda piece: taken.append(piece) or False):  # type: ignore[func-returns-value]
            pass
        return b"".join(taken)

    async def pour(self, take: Callable[[bytes], bool]) -> bool:
        for piece in self._left:
            if isinstance(piece, bytes):
                if take(piece):
                    return False
            elif isinstance(piece, BaseException):
                raise piece
            else:
                async with asyncio.timeout(BOUND):
                    await (piece.wait() if isinstance(piece, asyncio.Event) else piece())
        self.read_whole = True
        return True

    def leave(self, seconds: float = 1.0) -> None:
        self._left = iter(self._pieces)
        self.left += 1

    async def close(self) -> None:
        self._left = iter(self._pieces)
        self.closed += 1


def whole(text: str = "Done.", status: int = 200, headers: Mapping[str, str] | None = None, **more: Any) -> Answer:
    return Answer(json.dumps(chat_reply(text, **more)).encode(), status=status, headers=headers)


def failing(status: int, message: str = "no", headers: Mapping[str, str] | None = None, **more: Any) -> Answer:
    return Answer(json.dumps({"error": {"message": message, **more}}).encode(), status=status, headers=headers)


def events(*payloads: Any) -> bytes:
    raw = (each if isinstance(each, bytes) else json.dumps(each).encode() for each in payloads)
    return b"".join(b"data: " + each + b"\n\n" for each in raw)


def stream(*pieces: Piece, **more: Any) -> Answer:
    return Answer(*pieces, headers={"content-type": "text/event-stream; charset=utf-8"}, **more)


def streamed(text: str = "Done.", done: bool = True, **more: Any) -> Answer:
    """One piece per chunk, and the end mark."""
    pieces = [events(chunk) for chunk in chat_chunks(text, **more)]
    return stream(*pieces, *([events(b"[DONE]")] if done else []))


class Provider:
    """Gives its answers in turn; the last one for ever. An answer may be an error, or a function of the request."""

    name = "main"

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.requests: list[Request] = []
        self.given: list[Answer] = []

    async def send(self, request: Request) -> Answer:
        self.requests.append(request)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if callable(answer):
            answer = answer(request)
            if asyncio.iscoroutine(answer):
                async with asyncio.timeout(BOUND):
                    answer = await answer
        if isinstance(answer, BaseException):
            raise answer
        self.given.append(answer)
        return answer  # type: ignore[no-any-return]

    async def close(self) -> None:
        return

    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(request.body) for request in self.requests]


class Reader:
    """The client's side: what it was told, and what it has read. `fault` is raised by the next write."""

    def __init__(self, begun: bool = False) -> None:
        self.begun = begun
        self.told: list[Report] = []
        self.read: list[bytes] = []
        self.fault: BaseException | None = None

    def tell(self, report: Report) -> None:
        self.told.append(report)

    async def write(self, data: bytes) -> None:
        if self.fault is not None:
            raise self.fault
        self.begun = True
        self.read.append(data)


class WatchedStore:
    """Before a real store. `asked` are its verbs in order; a verb in `down` fails as a lost database does."""

    def __init__(self, where: str) -> None:
        super().__init__(where)
        self.asked: list[tuple[str, Any]] = []
        self.down: set[str] = set()

    def _ask(self, verb: str, what: Any) -> None:
        self.asked.append((verb, what))
        if verb in self.down:
            raise StoreUnavailable("The store is away.")

    def _queued(self, verb: str, what: Any) -> asyncio.Future[None] | None:
        """A verb that queues never raises: its failure is what its future answers."""
        try:
            self._ask(verb, what)
        except StoreUnavailable as error:
            return failed(error)
        return None

    def verbs(self, *names: str) -> list[Any]:
        return [what for verb, what in self.asked if verb in names]

    async def recall(self, tenant: str, ask: Recall, now: float) -> Memory:
        self._ask("recall", ask)
        return await super().recall(tenant, ask, now)

    def remember(self, tenant: str, what: Remember, now: float) -> asyncio.Future[None]:
        return self._queued("remember", what) or super().remember(tenant, what, now)

    async def claim(self, tenant: str, key: bytes, owner: str, now: float, seconds: float) -> bool:
        self._ask("claim", key)
        return await super().claim(tenant, key, owner, now, seconds)

    async def release(self, tenant: str, key: bytes, owner: str) -> None:
        self._ask("release", key)
        await super().release(tenant, key, owner)

    def open_row(self, row: UsageRow) -> None:
        self._ask("open_row", row)
        super().open_row(row)

    async def opened(self) -> None:
        self._ask("opened", None)
        await super().opened()

    def close_row(self, row: UsageRow) -> asyncio.Future[None]:
        return self._queued("close_row", row) or super().close_row(row)

    async def rows(self) -> list[UsageRow]:
        """Every usage row that is stored, oldest first."""
        found = [row for row in await self.usage(UsageQuery()) if isinstance(row, UsageRow)]
        order: Iterable[str] = [row.id for row in self.verbs("open_row")]
        place = {id: number for number, id in enumerate(order)}
        return sorted(found, key=lambda row: place[row.id])


class WatchedSqlite(WatchedStore, SqliteStore): ...


class WatchedPostgres(WatchedStore, PostgresStore): ...


def watched(url: str) -> WatchedStore:
    return WatchedPostgres(url) if is_postgres(url) else WatchedSqlite(url.removeprefix("sqlite:///"))


def failed(error: Exception) -> asyncio.Future[None]:
    """A future that is over, with `error`."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.set_exception(error)
    return future


class Counting:
    """Counts like our own estimate would, a token for four characters."""

    async def count(self, texts: tuple[str, ...], encoding: str) -> tuple[int, ...]:
        return tuple(1 + len(text) // 4 for text in texts)
