"""A large body on its way in: read by the system straight to where it will stand.

Belongs here: the rest of one body of a declared length, from the socket into one piece of memory, and the connection's
other news handed on meanwhile. Never: whose request it is, how long it may take, how large it may be (`guard`). Passed
on part by part, each byte would be copied three times more and the reader be woken for each part.
"""

from __future__ import annotations

import asyncio
from io import BytesIO
from typing import Final, Protocol

LEAST: Final = 64 * 1024
"""Bytes still to come below which a body is passed on as its parts come."""

_AHEAD: Final = 64
"""Memory taken, as a multiple of what has come: a client that declares much and sends nothing costs nothing."""
_FIRST: Final = 2 * 1024 * 1024
"""Bytes that are taken at least."""


class Connection(Protocol):
    """What a body comes in on; hears all that this is told of it."""

    def gathering(self, size: int) -> None:
        """So many bytes more have come."""

    def gathered(self, body: bytes) -> None:
        """All of it has come; called when the transport has let go of the memory."""

    def connection_lost(self, exc: Exception | None) -> None: ...

    def eof_received(self) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...


class Arriving(asyncio.BufferedProtocol):
    """Reads for `connection` until `size` bytes are there, of which `begun` came before. It is to pause reading when
    the last has come, for nothing behind them is ours."""

    def __init__(self, connection: Connection, transport: asyncio.Transport, begun: bytes, size: int) -> None:
        self._connection = connection
        self._transport = transport
        self._memory = BytesIO()
        self._size = size
        self._came = len(begun)
        self._room = 0
        self._view = self._grown()
        self._view[: self._came] = begun
        self._over = False

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._came == self._room:
            self._view.release()
            self._view = self._grown()
        return self._view[self._came :]

    def buffer_updated(self, nbytes: int) -> None:
        self._came += nbytes
        self._connection.gathering(nbytes)
        if self._came == self._size and not self._over:
            self._transport.pause_reading()
            # The transport holds on to the buffer until we return.
            asyncio.get_running_loop().call_soon(self._whole)

    def stop(self) -> None:
        """Nobody wants it any more."""
        self._over = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.stop()
        self._connection.connection_lost(exc)

    def eof_received(self) -> None:
        self._connection.eof_received()

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()

    def _grown(self) -> memoryview:
        """The memory, with room for more; what is in it stays."""
        self._room = min(self._size, max(_FIRST, self._came * _AHEAD))
        self._memory.seek(self._room - 1)
        self._memory.write(b"\0")
        return self._memory.getbuffer()

    def _whole(self) -> None:
        if not self._over:
            self._over = True
            self._view.release()
            self._connection.gathered(self._memory.getvalue())
