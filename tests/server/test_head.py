"""What is not a request, and who answers for which host: the rules of a head, seen from the wire."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest

from proxy.server.guard import Limits
from tests.server.wire import Connect, Small, get, guarded


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    async with guarded(Small()) as (connect, _):
        yield connect


POST = b"POST / HTTP/1.1\r\nHost: h\r\n"
LAST = b"0\r\n\r\n"

AMBIGUOUS = {
    "content-length and transfer-encoding": POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n" + LAST,
    "transfer-encoding and content-length": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n" + LAST,
    "two content-lengths": POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    "equal content-lengths": POST + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
    "content-length list": POST + b"Content-Length: 5, 5\r\n\r\nhello",
    "signed content-length": POST + b"Content-Length: +5\r\n\r\nhello",
    "negative content-length": POST + b"Content-Length: -1\r\n\r\n",
    "hexadecimal content-length": POST + b"Content-Length: 0x5\r\n\r\nhello",
    "content-length past 64 bits": POST + b"Content-Length: 18446744073709551621\r\n\r\nhello",
    "two transfer-encodings": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n" + LAST,
    "gzip, chunked": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + LAST,
    "chunked, identity": POST + b"Transfer-Encoding: chunked, identity\r\n\r\n" + LAST,
    "identity": POST + b"Transfer-Encoding: identity\r\n\r\n",
    "obscured transfer-encoding": POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n" + LAST,
    "space before the colon": POST + b"Transfer-Encoding : chunked\r\n\r\n" + LAST,
    "chunked in http/1.0": b"POST / HTTP/1.0\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" + LAST,
    "bad chunk size": POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
    "bare line feeds": b"GET / HTTP/1.1\nHost: h\n\n",
    "folded header": b"GET / HTTP/1.1\r\nHost: h\r\nX-A: b\r\n c\r\n\r\n",
    "nul in a value": b"GET / HTTP/1.1\r\nHost: h\r\nX-A: \x00\r\n\r\n",
    "carriage return in a value": b"GET / HTTP/1.1\r\nHost: h\r\nX-A: a\rb\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "no host in http/1.0": b"GET / HTTP/1.0\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "empty host": b"GET / HTTP/1.1\r\nHost:\r\n\r\n",
    "host with a path": b"GET / HTTP/1.1\r\nHost: evil/?\r\n\r\n",
    "host with a user": b"GET / HTTP/1.1\r\nHost: a@b\r\n\r\n",
    "host with a bad port": b"GET / HTTP/1.1\r\nHost: a:b\r\n\r\n",
    "host with a space": b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
    "absolute target": b"GET http://h/v1/models HTTP/1.1\r\nHost: h\r\n\r\n",
    "target without a slash": b"GET v1/models HTTP/1.1\r\nHost: h\r\n\r\n",
    "asterisk": b"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n",
    "nul in the path": b"GET /v1%00/models HTTP/1.1\r\nHost: h\r\n\r\n",
    "nul in the query": b"GET /v1?a=%00 HTTP/1.1\r\nHost: h\r\n\r\n",
    "not ascii in the path": b"GET /\xc3\xa9 HTTP/1.1\r\nHost: h\r\n\r\n",
    "http/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "http/0.9": b"GET /\r\n\r\n",
    "http/3.0": b"GET / HTTP/3.0\r\nHost: h\r\n\r\n",
    "a tls hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "a foreign method": b"BREW /pot HTTP/1.1\r\nHost: h\r\n\r\n",
}


@pytest.mark.parametrize("probe", AMBIGUOUS.values(), ids=AMBIGUOUS.keys())
async def test_what_two_servers_could_read_differently_is_a_json_400_and_the_end(probe: bytes) -> None:
    app = Small()
    async with guarded(app) as (connect, _):
        peer = await connect()
        await peer.send(probe + get("/smuggled"))
        answer = await peer.answer()
        assert (answer.status, answer.error["code"]) == (400, "bad_http")
        assert answer.error["type"] == "invalid_request_error"
        assert answer.headers["content-type"] == "application/json"
        assert (answer.headers["connection"], answer.headers["x-should-retry"]) == ("close", "false")
        assert re.fullmatch(r"req_[a-z2-7]{26}", answer.headers["x-request-id"])
        assert await peer.gone()
        assert "/smuggled" not in app.seen


@pytest.mark.parametrize("method", ["TRACE", "CONNECT", "PROPFIND"])
async def test_a_method_outside_the_closed_set_is_405_with_allow(connect: Connect, method: str) -> None:
    peer = await connect()
    target = "h:443" if method == "CONNECT" else "/"
    await peer.send(f"{method} {target} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
    answer = await peer.answer()
    assert (answer.status, answer.error["code"]) == (405, "method_not_allowed")
    assert "POST" in answer.headers["allow"]


@pytest.mark.parametrize("host", ["h", "h:8400", "127.0.0.1:1", "[::1]", "[::1]:8400", "a-b.example.com", "my_host"])
async def test_every_form_of_host_that_clients_send_is_taken(connect: Connect, host: str) -> None:
    peer = await connect()
    await peer.send(f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    assert (await peer.answer()).status == 200


async def test_a_listed_host_is_answered_and_any_other_is_not() -> None:
    async with guarded(Small(), Limits(hosts=frozenset({"localhost", "127.0.0.1"}))) as (connect, _):
        for host, status in (("LOCALHOST:8400", 200), ("127.0.0.1", 200), ("rebound.example", 400)):
            peer = await connect()
            await peer.send(f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            assert (await peer.answer()).status == status


async def test_the_clients_request_id_is_used_if_it_is_a_token_and_never_echoed_otherwise(connect: Connect) -> None:
    for given, echoed in (("abc-1.2_X", True), ("http://169.254.169.254/", False), ("x" * 65, False)):
        peer = await connect()
        await peer.send(get("/a%00", f"X-Request-Id: {given}"))
        assert ((await peer.answer()).headers["x-request-id"] == given) is echoed
