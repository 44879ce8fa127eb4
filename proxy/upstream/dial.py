"""A connected socket to a name and port, however many addresses the name has.

Here: names to addresses, who is tried first, socket options. Never here: deadlines (the caller's timeout cancels),
TLS and what is said over the socket. The loop of production tries the addresses of a name one after the other only, so
that one silent address would use up the connect deadline; hence RFC 8305 in small.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from itertools import chain, zip_longest
from typing import Any, Final

_STAGGER: Final = 0.25
"""Seconds that an address is waited for before the next is tried beside it (RFC 8305, 5)."""

_KEEPALIVE: Final = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 30), ("TCP_KEEPCNT", 5))
"""A long answer is silent for minutes. Probes keep address translators from forgetting it, and find a dead peer."""

Address = tuple[int, Any]
"""A family and what its `connect` takes."""


async def connect(host: str, port: int) -> socket.socket:
    """Raises OSError: socket.gaierror for an unknown name, else what the last address failed with."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError:
        raise socket.gaierror(socket.EAI_NONAME, "not a host name") from None
    addresses: list[Address] = list(dict.fromkeys((family, address) for family, _, _, _, address in found))
    if not addresses:
        raise socket.gaierror(socket.EAI_NONAME, "no address")
    if len(addresses) == 1:
        return await _attempt(addresses[0])
    return await _race(alternating(addresses))


def alternating(addresses: list[Address]) -> list[Address]:
    """The families in turn, beginning with the first one's; within a family as they were."""
    first = [address for address in addresses if address[0] == addresses[0][0]]
    other = [address for address in addresses if address[0] != addresses[0][0]]
    return [address for address in chain.from_iterable(zip_longest(first, other)) if address is not None]


async def _race(addresses: list[Address]) -> socket.socket:
    """The next address is tried when one has failed, or beside it after a while; the first connected one wins."""
    waiting = addresses[::-1]
    trying: set[asyncio.Task[socket.socket]] = set()
    failure: BaseException | None = None
    try:
        while waiting or trying:
            if waiting:
                trying.add(asyncio.create_task(_attempt(waiting.pop())))
            done, _ = await asyncio.wait(
                trying, timeout=_STAGGER if waiting else None, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                trying.discard(task)
                failure = task.exception()
                if failure is None:
                    return task.result()
    finally:
        for task in trying:
            task.cancel()
            task.add_done_callback(_discard)
    raise failure or OSError("no address")


def _discard(task: asyncio.Task[socket.socket]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().close()


async def _attempt(address: Address) -> socket.socket:
    family, where = address
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE:
            with suppress(AttributeError, OSError):  # not every system has all of them
                made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        await asyncio.get_running_loop().sock_connect(made, where)
    except BaseException:
        made.close()
        raise
    return made
