"""The contract of a provider: bytes in, bytes out, our errors only.

An upstream neither retries nor decides: it makes one HTTP call under deadlines and says truthfully how it ended.
Reading what the bytes mean is a dialect's work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec


class Deadlines(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Seconds: to connect, to the first byte of the answer, between two chunks, and in all."""

    connect: float = 5.0
    first_byte: float = 600.0
    idle: float = 300.0
    total: float = 3600.0


class Request(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One call. `path` is joined to the upstream's base URL; `authorization` is the client's own header value, used
    only where the upstream has no key of its own."""

    path: str
    body: bytes
    method: str = "POST"
    authorization: str | None = None
    request_id: str = ""


class Response(Protocol):
    """An answer whose head has arrived. Exactly one of `read` and `pour` is used, then `close`."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Header names in lower case."""

    async def read(self) -> bytes:
        """The whole body. Raises InvalidReply over the byte cap or on a truncated body, TimedOut on a deadline."""

    async def pour(self, take: Callable[[bytes], bool]) -> bool:
        """Give `take` the body as it arrives, at once, and not by way of the caller's task, until it says that it has
        enough for now: the provider then waits until this is called again. Whether the body has ended. The same errors,
        what `take` raised, and InvalidReply for a reset."""

    def leave(self, seconds: float = 1.0) -> None:
        """Instead of `close`, and without a wait: the reader has what it needs. Should the body end within `seconds`,
        its connection can be used again, else it is closed."""

    async def close(self) -> None:
        """Give the connection back if the body was read to its end, else close it: a cancelled or abandoned call's
        connection is never used again. Safe to call twice."""


class Upstream(Protocol):
    @property
    def name(self) -> str: ...

    async def send(self, request: Request) -> Response:
        """Raises Unreachable (`sent` False where no byte of the request can have been read), TimedOut, or InvalidReply
        where what came back is not HTTP. Any HTTP status is an answer, not an error. Cancelling closes the
        connection."""

    async def close(self) -> None: ...
