"""How the tests of `compatible` call it: small deadlines, against a scripted provider or a raw socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from proxy.core.errors import WeirgateError
from proxy.upstream import Deadlines, Request, Response
from proxy.upstream.compatible import CompatibleUpstream
from tests.fakes import Handler, Script, ScriptedUpstream, SeenRequest, chat_reply

BODY = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
CALL = Request(path="/chat/completions", body=BODY)
LONG = 20.0
"""A deadline that no test reaches."""
SHORT = 0.2


def deadlines(*, connect: float = LONG, first_byte: float = LONG, idle: float = LONG, total: float = LONG) -> Deadlines:
    return Deadlines(connect=connect, first_byte=first_byte, idle=idle, total=total)


@asynccontextmanager
async def client(
    url: str, *, limits: Deadlines | None = None, api_key: str | None = "sk-operator", **more: object
) -> AsyncIterator[CompatibleUpstream]:
    upstream = CompatibleUpstream(name="main", base_url=url, api_key=api_key, deadlines=limits or deadlines(), **more)  # type: ignore[arg-type]
    try:
        yield upstream
    finally:
        await upstream.close()
        assert upstream.in_flight == 0


@asynccontextmanager
async def pair(
    handler: Handler, *, limits: Deadlines | None = None, **more: object
) -> AsyncIterator[tuple[ScriptedUpstream, CompatibleUpstream]]:
    async with ScriptedUpstream(handler) as up, client(up.url, limits=limits, **more) as upstream:  # type: ignore[arg-type]
        yield up, upstream


async def whole(upstream: CompatibleUpstream, request: Request = CALL) -> bytes:
    response = await upstream.send(request)
    try:
        return await response.read()
    finally:
        await response.close()


async def pieces(response: Response) -> AsyncIterator[bytes]:
    """What comes of its body, one piece for each time that one is asked for."""
    taken: list[bytes] = []

    def take(piece: bytes) -> bool:
        taken.append(piece)
        return True

    while not await response.pour(take):
        yield taken.pop()


async def streamed(upstream: CompatibleUpstream, request: Request = CALL) -> list[bytes]:
    response = await upstream.send(request)
    try:
        return [chunk async for chunk in pieces(response)]
    finally:
        await response.close()


@asynccontextmanager
async def raw_server(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    """For what happens before a request is whole. `serve` has one connection; its end is waited for."""
    over = asyncio.Event()

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(ConnectionError):
                await serve(reader, writer)
        finally:
            writer.transport.abort()
            with suppress(ConnectionError):
                await writer.wait_closed()
            over.set()

    server = await asyncio.start_server(once, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        await asyncio.wait_for(over.wait(), LONG)


READERS: list[Callable[[CompatibleUpstream], Awaitable[object]]] = [whole, streamed]
either = pytest.mark.parametrize("ask", READERS, ids=["json", "stream"])


async def answer(request: SeenRequest, reply: Script) -> None:
    await reply.json(200, chat_reply("Hello"))


def closed_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


async def cancelled(task: asyncio.Task[object] | asyncio.Task[list[bytes]] | asyncio.Task[bytes]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def says_nothing(error: WeirgateError, *secrets: str) -> None:
    """Neither the error nor anything that hangs on it repeats a secret."""
    seen: BaseException | None = error
    while seen is not None:
        assert not any(secret in f"{seen!r} {seen}" for secret in secrets), seen
        seen = seen.__cause__ or seen.__context__
