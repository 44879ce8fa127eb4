"""One request's turn: what goes over the wire for what an application says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from proxy.server.cycle import Cycle
from tests.server.wire import get, guarded

Say = Callable[[Any], Awaitable[None]]
Told = Callable[[Say], Awaitable[None]]


def start(*headers: tuple[bytes, bytes], status: int = 200) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": headers}


def part(body: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}


async def over_the_wire(*told: dict[str, Any], request: bytes = b"GET") -> bytes:
    async def app(scope: Any, receive: Any, send: Say) -> None:
        for message in told:
            await send(message)

    async with guarded(app) as (connect, _):
        peer = await connect()
        await peer.send(request + b" / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        return await peer.rest_or_reset()


async def test_an_answer_of_a_stated_length_goes_out_as_it_is() -> None:
    said = await over_the_wire(start((b"content-length", b"5"), (b"x-one", b"1")), part(b"he", more=True), part(b"llo"))
    assert said == b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nx-one: 1\r\nconnection: close\r\n\r\nhello"


async def test_an_answer_without_a_length_goes_out_in_chunks() -> None:
    said = await over_the_wire(start(), part(b"one", more=True), part(b"", more=True), part(b"two"))
    head, _, body = said.partition(b"\r\n\r\n")
    assert head.endswith(b"transfer-encoding: chunked")
    assert body == b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"


async def test_head_and_statuses_without_a_body_have_none() -> None:
    said = await over_the_wire(start((b"content-length", b"5")), part(b"hello"), request=b"HEAD")
    assert said.endswith(b"content-length: 5\r\nconnection: close\r\n\r\n")
    said = await over_the_wire(start(status=204), part(b""))
    assert said == b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n"


@pytest.mark.parametrize("value", [b"a\r\nset-cookie: b", b"a\nb", b"a\rb", b"a\0b", b"\x7f"])
async def test_a_header_that_would_begin_another_line_is_not_sent(value: bytes) -> None:
    said = await over_the_wire(start((b"content-length", b"0"), (b"x-one", value)), part(b""))
    assert b"x-one" not in said and b"set-cookie" not in said
    assert not said.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("body", [b"four", b"six..."])
async def test_an_answer_that_is_not_as_long_as_stated_never_looks_whole(body: bytes) -> None:
    assert await over_the_wire(start((b"content-length", b"5")), part(body)) == b""


async def test_what_is_said_in_the_wrong_order_is_a_bug_of_the_application() -> None:
    assert b" 500 " in await over_the_wire(part(b"x"))
    assert not (await over_the_wire(start(), start(), part(b"x"))).endswith(b"0\r\n\r\n")


async def test_a_head_waits_for_what_follows_it() -> None:
    written: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        cycle: Cycle = send.__self__
        write = cycle.transport.write

        def noted(data: Any) -> None:
            written.append(data)
            write(data)

        cycle.transport.write = noted  # type: ignore[method-assign]
        await send(start((b"content-length", b"2")))
        assert not written
        await send(part(b"ok"))

    async with guarded(app) as (connect, _):
        peer = await connect()
        await peer.send(get("/"))
        assert (await peer.answer()).body == b"ok"
    assert len(written) == 1
