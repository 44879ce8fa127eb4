"""Whether a client still takes what waits for it.

Belongs here: how that is seen. Never: what is done about one that does not (`guard`).
"""

from __future__ import annotations

import asyncio
import socket
from typing import Final

_TCP_INFO_ACKED: Final = slice(120, 128)
"""`tcpi_bytes_acked` in Linux' struct tcp_info: how much of what we wrote the peer's kernel has taken."""


class Stalled:
    """One connection's writing side, looked at from time to time."""

    __slots__ = ("_acked", "_since", "_unsent")

    def __init__(self, now: float) -> None:
        self._acked = -1
        self._unsent = 0
        self._since = now

    def seconds(self, wire: asyncio.Transport, now: float) -> float:
        """For how long the client has taken nothing although something waits for it; 0 where nothing does."""
        unsent = wire.get_write_buffer_size()
        if not unsent and not self._unsent:
            return 0.0
        acked = _acknowledged(wire) if unsent else -1
        moved = acked != self._acked if acked >= 0 else unsent < self._unsent
        if not unsent or not self._unsent or moved:
            self._since = now
        self._unsent = unsent
        self._acked = acked
        return now - self._since


def _acknowledged(transport: asyncio.Transport) -> int:
    """Bytes that the peer's kernel has acknowledged; -1 where the system does not say.

    The size of our own buffer is no measure: the kernel takes from it in large steps, so that a slow but living reader
    looks dead for minutes.
    """
    sock = transport.get_extra_info("socket")
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
    except (AttributeError, OSError):
        return -1
    return int.from_bytes(info[_TCP_INFO_ACKED], "little") if len(info) >= 128 else -1
