"""What an OpenAI-shaped provider may do to us, byte by byte, and what we say of it.

Deadlines are small numbers passed in; a test that waits for one waits for the event itself. Each fault test also
holds that the connection is gone from both ends.
"""

from __future__ import annotations

import asyncio
import gzip
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest
import uvloop

from proxy.core.errors import InvalidReply, TimedOut, Unreachable, UpstreamError, WeirgateError
from proxy.upstream import Deadlines, Request
from proxy.upstream.compatible import CompatibleUpstream
from tests.fakes import Handler, Script, ScriptedUpstream, SeenRequest, by_model, chat_chunks, chat_reply

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


async def streamed(upstream: CompatibleUpstream, request: Request = CALL) -> list[bytes]:
    response = await upstream.send(request)
    try:
        return [chunk async for chunk in response.chunks()]
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


# -- a provider that behaves -----------------------------------------------------------------------------------------


async def test_a_call_sends_exactly_the_body_and_only_our_headers() -> None:
    async with pair(answer, headers=(("X-Team", "a"), ("accept", "application/json"))) as (up, upstream):
        response = await upstream.send(Request(path="/chat/completions", body=BODY, request_id="req_1"))
        assert (response.status, response.headers["content-type"]) == (200, "application/json")
        assert b"Hello" in await response.read()
        await response.close()
        seen = up.ledger[0].request
    assert (seen.method, seen.path, seen.body) == ("POST", "/v1/chat/completions", BODY)
    assert seen.headers["host"] == up.url.removeprefix("http://").removesuffix("/v1")
    assert {name: value for name, value in seen.headers.items() if name not in ("host", "user-agent")} == {
        "authorization": "Bearer sk-operator",
        "accept": "application/json",
        "accept-encoding": "identity",
        "content-type": "application/json",
        "content-length": str(len(BODY)),
        "x-team": "a",
        "x-request-id": "req_1",
    }
    assert seen.headers["user-agent"].startswith("weirgate/")


async def test_a_get_has_no_body() -> None:
    async with pair(answer) as (up, upstream):
        await whole(upstream, Request(path="/models", body=b"", method="GET"))
        seen = up.ledger[0].request
    assert (seen.method, seen.path, seen.body) == ("GET", "/v1/models", b"")


@pytest.mark.parametrize(
    ("api_key", "headers", "sent"),
    [
        ("sk-operator", (), "Bearer sk-operator"),
        ("sk-operator\n", (), "Bearer sk-operator"),
        (None, (), "Bearer sk-client"),
        (None, (("Authorization", "Bearer configured"),), "Bearer configured"),
        (None, (("api-key", "configured"),), None),
    ],
)
async def test_the_clients_key_is_passed_on_only_where_the_upstream_has_none(
    api_key: str | None, headers: tuple[tuple[str, str], ...], sent: str | None
) -> None:
    async with pair(answer, api_key=api_key, headers=headers) as (up, upstream):
        await whole(upstream, Request(path="/chat/completions", body=BODY, authorization="Bearer sk-client"))
        assert up.ledger[0].request.headers.get("authorization") == sent


async def test_a_clients_key_that_cannot_stand_in_a_header_is_left_out() -> None:
    async with pair(answer, api_key=None) as (up, upstream):
        await whole(upstream, Request(path="/chat/completions", body=BODY, authorization="Bearer a\r\nx-evil: 1"))
        assert up.ledger[0].request.headers.keys().isdisjoint({"authorization", "x-evil"})


async def test_user_and_password_in_the_url_become_basic_authorization() -> None:
    async with ScriptedUpstream(answer) as up:
        url = up.url.replace("http://", "http://me:secret@")
        async with client(url, api_key=None) as upstream:
            await whole(upstream)
    assert up.ledger[0].request.headers["authorization"] == "Basic bWU6c2VjcmV0"


@pytest.mark.parametrize("url", ["ftp://me:secret@host/v1", "host:8000/v1", "/v1", "http:///v1"])
def test_a_url_that_is_not_http_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ValueError, match="upstream main") as refused:
        CompatibleUpstream(name="main", base_url=url)
    assert "secret" not in str(refused.value)


def test_a_configured_header_with_a_line_break_is_refused_without_repeating_it() -> None:
    with pytest.raises(ValueError, match="X-Key") as refused:
        CompatibleUpstream(name="main", base_url="http://host/v1", headers=(("X-Key", "secret\r\nx-evil: 1"),))
    assert "secret" not in str(refused.value)


async def test_a_stream_arrives_as_it_is_sent() -> None:
    going = asyncio.Event()

    async def slowly(request: SeenRequest, reply: Script) -> None:
        await reply.head(200, {"content-type": "text/event-stream"})
        await reply.event({"n": 1})
        await reply.hang(going)
        await reply.event({"n": 2})
        await reply.end()

    async with pair(slowly) as (_, upstream):
        response = await upstream.send(CALL)
        chunks = response.chunks()
        assert await anext(chunks) == b'data: {"n":1}\n\n'
        going.set()
        assert [chunk async for chunk in chunks] == [b'data: {"n":2}\n\n']
        await response.close()


async def test_connections_are_kept_and_used_again() -> None:
    async def both(request: SeenRequest, reply: Script) -> None:
        if request.model == "stream":
            await reply.sse(chat_chunks("Hello"))
        else:
            await answer(request, reply)

    async with pair(both) as (up, upstream):
        for _ in range(3):
            await whole(upstream)
            await streamed(upstream, Request(path="/chat/completions", body=b'{"model":"stream"}'))
        assert (len(up.ledger), up.connections) == (6, 1)


async def test_cookies_are_not_kept() -> None:
    async def setting(request: SeenRequest, reply: Script) -> None:
        await reply.json(200, {}, {"set-cookie": "who=tenant-a; Path=/"})

    async with pair(setting) as (up, upstream):
        await whole(upstream)
        await whole(upstream)
        assert "cookie" not in up.ledger[1].request.headers


async def test_the_environment_cannot_reroute_a_call_or_attach_a_login(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    netrc = tmp_path_factory.mktemp("home") / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password secret\n")
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{closed_port()}")
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    async with pair(answer, api_key=None) as (up, upstream):
        await whole(upstream)
        assert "authorization" not in up.ledger[0].request.headers


@pytest.mark.parametrize("status", [301, 302, 307, 308, 400, 401, 404, 429, 500, 503, 529])
async def test_any_status_is_an_answer_and_a_redirect_is_not_followed(status: int) -> None:
    async def refuse(request: SeenRequest, reply: Script) -> None:
        await reply.json(status, {"error": {"message": "no"}}, {"location": "/v1/elsewhere", "Retry-After": "7"})

    async with pair(refuse) as (up, upstream):
        response = await upstream.send(CALL)
        assert (response.status, response.headers["retry-after"]) == (status, "7")
        assert await response.read() == b'{"error": {"message": "no"}}'
        await response.close()
        assert len(up.ledger) == 1


async def test_an_answer_that_comes_before_the_body_was_read_is_still_the_answer() -> None:
    left = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\n{}")
        await writer.drain()
        await left.wait()

    async with raw_server(serve) as address, client(f"http://{address}") as upstream:
        response = await upstream.send(Request(path="/chat/completions", body=b"x" * 8_000_000))
        assert (response.status, await response.read()) == (413, b"{}")
        await response.close()
        left.set()


# -- nobody there ----------------------------------------------------------------------------------------------------


def says_nothing(error: WeirgateError, *secrets: str) -> None:
    """Neither the error nor anything that hangs on it repeats a secret."""
    seen: BaseException | None = error
    while seen is not None:
        assert not any(secret in f"{seen!r} {seen}" for secret in secrets), seen
        seen = seen.__cause__ or seen.__context__


async def test_a_refused_connection_was_not_sent() -> None:
    async with client(
        f"http://me:pass-canary@127.0.0.1:{closed_port()}/v1/path-canary", api_key="key-canary"
    ) as upstream:
        with pytest.raises(Unreachable) as caught:
            await upstream.send(CALL)
    assert (caught.value.sent, caught.value.retry) == (False, True)
    says_nothing(caught.value, "pass-canary", "path-canary", "key-canary", "127.0.0.1")


async def test_an_unknown_host_was_not_sent() -> None:
    async with client("http://nowhere.invalid/v1") as upstream:
        with pytest.raises(Unreachable, match="resolved") as caught:
            await upstream.send(CALL)
    assert not caught.value.sent
    says_nothing(caught.value, "nowhere")


async def test_a_failed_tls_handshake_was_not_sent() -> None:
    async def talk_plainly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        await reader.read()

    async with raw_server(talk_plainly) as address, client(f"https://{address}") as upstream:
        with pytest.raises(Unreachable, match="secure") as caught:
            await upstream.send(CALL)
    assert not caught.value.sent


async def test_a_connection_that_is_never_accepted_ends_at_the_connect_deadline() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        # The queue holds one connection more than its length; what comes after is left without an answer.
        with socket.create_connection(listener.getsockname()):
            async with client(
                f"http://127.0.0.1:{listener.getsockname()[1]}/v1", limits=deadlines(connect=SHORT)
            ) as upstream:
                with pytest.raises(TimedOut, match=r"connected to within 0\.2 s") as caught:
                    await upstream.send(CALL)
    assert (caught.value.sent, caught.value.retry) == (False, True)


async def test_who_finds_every_connection_in_use_waits_no_longer_than_the_connect_deadline() -> None:
    async def hang(request: SeenRequest, reply: Script) -> None:
        await reply.hang()

    async with pair(hang, limits=deadlines(connect=SHORT), max_connections=1) as (up, upstream):
        first = asyncio.create_task(upstream.send(CALL))
        await up.arrived()
        with pytest.raises(TimedOut, match="in use") as caught:
            await upstream.send(CALL)
        assert not caught.value.sent
        assert len(up.ledger) == 1
        await cancelled(first)


# -- no answer, or half of one ---------------------------------------------------------------------------------------


async def cancelled(task: asyncio.Task[object] | asyncio.Task[list[bytes]] | asyncio.Task[bytes]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@either
@pytest.mark.parametrize("reset", [True, False])
async def test_a_connection_closed_before_the_head_may_have_been_served(ask: object, reset: bool) -> None:
    async def leave(request: SeenRequest, reply: Script) -> None:
        await (reply.reset() if reset else reply.close())

    async with pair(leave) as (up, upstream):
        with pytest.raises(Unreachable) as caught:
            await upstream.send(CALL)
        assert (caught.value.sent, caught.value.retry) == (True, False)
        assert len(up.ledger) == 1, "a POST is never repeated"


async def test_a_kept_connection_that_turns_out_closed_is_reported_as_sent_and_not_repeated() -> None:
    async def once(request: SeenRequest, reply: Script) -> None:
        await (answer(request, reply) if len(up.ledger) == 1 else reply.reset())

    async with pair(once) as (up, upstream):
        await whole(upstream)
        with pytest.raises(Unreachable) as caught:
            await upstream.send(CALL)
        assert (caught.value.sent, len(up.ledger), up.connections) == (True, 2, 1)


async def test_silence_ends_at_the_first_byte_deadline_and_the_provider_sees_the_close() -> None:
    async def hang(request: SeenRequest, reply: Script) -> None:
        await reply.hang()

    async with pair(hang, limits=deadlines(first_byte=SHORT)) as (up, upstream):
        with pytest.raises(TimedOut, match=r"begin to answer within 0\.2 s") as caught:
            await upstream.send(CALL)
        assert (caught.value.sent, caught.value.retry) == (True, False)
        await up.idle(connections=0)
        assert up.ledger[0].gone.is_set()


async def test_a_head_that_drips_does_not_move_the_first_byte_deadline() -> None:
    async def drip(request: SeenRequest, reply: Script) -> None:
        await reply.raw(b"HTTP/1.1 200 OK\r\n")
        while not reply.entry.gone.is_set():
            await reply.raw(b"x: y\r\n" if reply.entry.sent < 400 else b"")
            await asyncio.sleep(0)

    async with pair(drip, limits=deadlines(first_byte=SHORT)) as (up, upstream):
        with pytest.raises(TimedOut, match="begin to answer"):
            await upstream.send(CALL)
        await up.idle(connections=0)


@either
async def test_silence_in_the_middle_ends_at_the_idle_deadline(
    ask: Callable[[CompatibleUpstream], Awaitable[object]],
) -> None:
    async def stall(request: SeenRequest, reply: Script) -> None:
        await reply.head(200)
        await reply.event({"n": 1})
        await reply.hang()

    async with pair(stall, limits=deadlines(idle=SHORT)) as (up, upstream):
        with pytest.raises(TimedOut, match=r"nothing for 0\.2 s"):
            await ask(upstream)
        await up.idle(connections=0)
        assert up.ledger[0].gone.is_set()


@either
async def test_a_slow_drip_ends_at_the_total_deadline(ask: Callable[[CompatibleUpstream], Awaitable[object]]) -> None:
    async def drip(request: SeenRequest, reply: Script) -> None:
        await reply.head(200)
        while not reply.entry.gone.is_set():
            await reply.write(b".")
            with suppress(TimeoutError):  # a beat between two bytes, or the client's leaving
                await asyncio.wait_for(reply.entry.gone.wait(), 0.02)

    async with pair(drip, limits=deadlines(total=0.4, idle=0.3)) as (up, upstream):
        with pytest.raises(TimedOut, match=r"complete within 0\.4 s"):
            await ask(upstream)
        await up.idle(connections=0)
        assert up.ledger[0].sent > 100, "the idle deadline moved with every byte"


async def test_the_total_deadline_also_holds_while_nothing_reads() -> None:
    async def endless(request: SeenRequest, reply: Script) -> None:
        await reply.head(200)
        while not reply.entry.gone.is_set():
            await reply.write(b"x" * 65536)

    async with pair(endless, limits=deadlines(total=SHORT)) as (up, upstream):
        response = await upstream.send(CALL)
        chunks = response.chunks()
        await anext(chunks)
        await up.ledger[0].gone.wait()
        with pytest.raises(TimedOut, match="complete within"):
            await anext(chunks)
        await response.close()


async def test_a_reader_that_is_slow_is_not_an_idle_provider() -> None:
    gate = asyncio.Event()

    async def two(request: SeenRequest, reply: Script) -> None:
        await reply.head(200)
        await reply.event({"n": 1})
        await reply.hang(gate)
        await reply.event({"n": 2})
        await reply.end()

    async with pair(two, limits=deadlines(idle=0.1)) as (_, upstream):
        response = await upstream.send(CALL)
        chunks = response.chunks()
        await anext(chunks)
        # Longer than the idle deadline, counted by the loop's own clock: this is the slow reader.
        over = asyncio.Event()
        asyncio.get_running_loop().call_later(0.3, over.set)
        await over.wait()
        gate.set()
        assert [chunk async for chunk in chunks] == [b'data: {"n":2}\n\n']
        await response.close()


CUTS: dict[str, tuple[bytes, bool]] = {
    "RST inside a chunk": (b"transfer-encoding: chunked\r\n\r\n40\r\ndata: ", True),
    "FIN inside a chunk": (b"transfer-encoding: chunked\r\n\r\n40\r\ndata: ", False),
    "FIN between chunks": (b"transfer-encoding: chunked\r\n\r\n6\r\ndata: \r\n", False),
    "FIN before the length": (b"content-length: 100\r\n\r\n{", False),
    "RST before the length": (b"content-length: 100\r\n\r\n{", True),
    "RST without a framing": (b"\r\n{", True),
}


@either
@pytest.mark.parametrize("cut", CUTS)
async def test_a_body_that_breaks_off_never_looks_whole(
    ask: Callable[[CompatibleUpstream], Awaitable[object]], cut: str
) -> None:
    rest, reset = CUTS[cut]
    head_seen = asyncio.Event()

    async def break_off(request: SeenRequest, reply: Script) -> None:
        await reply.raw(b"HTTP/1.1 200 OK\r\n" + rest)
        await reply.hang(head_seen)
        await (reply.reset() if reset else reply.close())

    async with pair(break_off) as (up, upstream):
        response = await upstream.send(CALL)
        reading = asyncio.ensure_future(_drain(ask, response))  # noqa: TID251
        head_seen.set()
        with pytest.raises(InvalidReply):
            await reading
        await up.idle(connections=0)


async def _drain(ask: object, response: object) -> None:
    if ask is whole:
        await response.read()  # type: ignore[attr-defined]
    else:
        async for _ in response.chunks():  # type: ignore[attr-defined]
            pass


async def test_a_body_that_only_the_end_of_the_connection_ends_is_whole() -> None:
    async def unframed(request: SeenRequest, reply: Script) -> None:
        await reply.raw(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{}")
        await reply.close()

    async with pair(unframed) as (_, upstream):
        assert await whole(upstream) == b"{}"


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x00\x00 not http\r\n\r\n",
        b"HTTP/1.1 two hundred OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000 + b"\r\n\r\n",
    ],
    ids=["binary", "status", "length", "two framings", "huge header"],
)
async def test_a_head_that_is_not_http_is_an_invalid_reply(garbage: bytes) -> None:
    async def babble(request: SeenRequest, reply: Script) -> None:
        await reply.raw(garbage)
        await reply.hang()

    async with pair(babble) as (up, upstream):
        with pytest.raises(InvalidReply) as caught:
            await upstream.send(CALL)
        says_nothing(caught.value, "not http", "two hundred", "yyyy")
        await up.idle(connections=0)


@either
async def test_a_broken_chunk_size_is_an_invalid_reply(ask: Callable[[CompatibleUpstream], Awaitable[object]]) -> None:
    async def babble(request: SeenRequest, reply: Script) -> None:
        await reply.head(200)
        await reply.raw(b"secret-canary\r\n")
        await reply.hang()

    async with pair(babble) as (up, upstream):
        with pytest.raises(UpstreamError) as caught:
            await ask(upstream)
        assert type(caught.value) is InvalidReply
        says_nothing(caught.value, "secret-canary")
        await up.idle(connections=0)


@either
@pytest.mark.parametrize("encoding", ["gzip", "br", "x-unknown"])
async def test_a_compressed_body_is_not_unpacked(
    ask: Callable[[CompatibleUpstream], Awaitable[object]], encoding: str
) -> None:
    async def pack(request: SeenRequest, reply: Script) -> None:
        await reply.json(200, gzip.compress(b"0" * 1_000_000), {"content-encoding": encoding})

    async with pair(pack) as (_, upstream):
        with pytest.raises(InvalidReply, match="compressed"):
            await ask(upstream)


async def test_identity_is_no_compression() -> None:
    async def say_identity(request: SeenRequest, reply: Script) -> None:
        await reply.json(200, b"{}", {"content-encoding": "Identity"})

    async with pair(say_identity) as (_, upstream):
        assert await whole(upstream) == b"{}"


async def test_a_body_of_exactly_the_limit_is_read_and_one_byte_more_is_refused() -> None:
    async def sized(request: SeenRequest, reply: Script) -> None:
        await reply.json(200, b"x" * int(request.json["n"]))

    async with pair(sized, reply_limit=100_000) as (_, upstream):
        assert len(await whole(upstream, Request(path="/x", body=b'{"n":100000}'))) == 100_000
        with pytest.raises(InvalidReply, match="100000 bytes"):
            await whole(upstream, Request(path="/x", body=b'{"n":100001}'))


async def test_an_endless_body_is_cut_at_the_limit_and_what_was_buffered_is_bounded() -> None:
    async def endless(request: SeenRequest, reply: Script) -> None:
        await reply.head(200)
        while not reply.entry.gone.is_set():
            await reply.write(b"x" * 65536)

    async with pair(endless, reply_limit=1_000_000) as (up, upstream):
        with pytest.raises(InvalidReply, match="larger"):
            await whole(upstream)
        await up.idle(connections=0)
        assert up.ledger[0].sent < 32_000_000, "sockets and buffers hold a bounded part of an endless body"


# -- leaving ---------------------------------------------------------------------------------------------------------


async def test_a_cancelled_call_closes_its_connection_at_every_stage() -> None:
    async def stall(request: SeenRequest, reply: Script) -> None:
        if request.model == "head":
            await reply.head(200)
        elif request.model == "body":
            await reply.head(200)
            await reply.event({"n": 1})
        await reply.hang()

    async with pair(stall) as (up, upstream):
        for model in ("none", "head", "body"):
            body = f'{{"model":"{model}"}}'.encode()
            task = asyncio.create_task(streamed(upstream, Request(path="/x", body=body)))
            entry = await up.arrived(len(up.ledger) + 1)
            await cancelled(task)
            await asyncio.wait_for(entry.gone.wait(), 1.0)
            await up.idle(connections=0)
            assert upstream.in_flight == 0


async def test_a_read_that_is_cancelled_closes_the_connection_even_if_nobody_calls_close() -> None:
    async def stall(request: SeenRequest, reply: Script) -> None:
        await reply.head(200)
        await reply.hang()

    async with pair(stall) as (up, upstream):
        response = await upstream.send(CALL)
        reads = asyncio.Event()

        async def read() -> bytes:
            reads.set()
            return await response.read()

        task = asyncio.create_task(read())
        await reads.wait()
        await cancelled(task)
        await asyncio.wait_for(up.ledger[0].gone.wait(), 1.0)
        assert upstream.in_flight == 0


async def test_an_abandoned_answer_is_closed_and_never_read_by_the_next_call() -> None:
    async def mine(request: SeenRequest, reply: Script) -> None:
        await reply.head(200)
        await reply.write(f"canary-{request.model}-one".encode())
        if request.model == "a":
            await reply.hang()
        await reply.end()

    async with pair(mine, max_connections=1) as (up, upstream):
        response = await upstream.send(Request(path="/x", body=b'{"model":"a"}'))
        assert b"canary-a" in await anext(response.chunks())
        await response.close()
        await response.close()
        assert await whole(upstream, Request(path="/x", body=b'{"model":"b"}')) == b"canary-b-one"
        assert up.connections == 2


async def test_a_call_whose_body_is_not_taken_can_be_cancelled_at_once() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(4)
        listener.setblocking(False)
        async with client(f"http://127.0.0.1:{listener.getsockname()[1]}/v1") as upstream:
            call = Request(path="/chat/completions", body=b"x" * 32_000_000)
            task = asyncio.create_task(upstream.send(call))
            accepted, _ = await asyncio.wait_for(asyncio.get_running_loop().sock_accept(listener), 5)
            with accepted:
                loop = asyncio.get_running_loop()
                await asyncio.wait_for(loop.sock_recv(accepted, 1024), 5)
                await cancelled(task)
                # A socket that were still flushing would deliver all of it.
                taken = 0
                with suppress(ConnectionResetError):
                    while data := await asyncio.wait_for(loop.sock_recv(accepted, 1 << 20), 5):
                        taken += len(data)
                assert taken < 32_000_000


async def test_closing_ends_calls_under_way_and_can_be_done_twice() -> None:
    async def stall(request: SeenRequest, reply: Script) -> None:
        if request.model == "head":
            await reply.head(200)
        await reply.hang()

    async with pair(stall, max_connections=2) as (up, upstream):
        response = await upstream.send(Request(path="/x", body=b'{"model":"head"}'))
        reading = asyncio.create_task(response.read())
        sending = asyncio.create_task(upstream.send(CALL))
        await up.arrived(2)
        waiting = asyncio.create_task(upstream.send(CALL))
        await asyncio.gather(upstream.close(), upstream.close())
        for task, kind in ((reading, InvalidReply), (sending, Unreachable), (waiting, Unreachable)):
            with pytest.raises(kind):
                await task
        with pytest.raises(Unreachable, match="shut down") as caught:
            await upstream.send(CALL)
        assert not caught.value.sent
        await up.idle(connections=0)


async def test_closing_works_while_being_cancelled() -> None:
    async with ScriptedUpstream(answer) as up:
        upstream = CompatibleUpstream(name="main", base_url=up.url)
        waiting = asyncio.Event()

        async def serve() -> None:
            try:
                await whole(upstream)
                waiting.set()
                await asyncio.Event().wait()
            finally:
                closing = asyncio.ensure_future(upstream.close())  # noqa: TID251
                closing.cancel()
                await upstream.close()

        task = asyncio.create_task(serve())
        await waiting.wait()
        await cancelled(task)
        await up.idle(connections=0)


async def test_an_upstream_that_was_never_used_closes() -> None:
    upstream = CompatibleUpstream(name="main", base_url="http://127.0.0.1:9/v1")
    await upstream.close()


async def test_twenty_workers_that_cancel_at_random_leave_a_pool_that_works() -> None:
    """reliability.md T-24. The httpx pool is dead after this."""
    seed = random.Random(7)

    async def slowly(request: SeenRequest, reply: Script) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(reply.entry.gone.wait(), seed.random() * 0.1)
        await reply.head(200)
        for n in range(3):
            await reply.event({"n": n})
            with suppress(TimeoutError):
                await asyncio.wait_for(reply.entry.gone.wait(), seed.random() * 0.03)
        await reply.end()

    outcomes = {"cancelled": 0, "done": 0}

    async def churn(upstream: CompatibleUpstream, until: float) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() < until:
            task = asyncio.create_task(streamed(upstream, Request(path="/x", body=b'{"model":"slow"}')))
            loop.call_later(seed.random() * 0.15, task.cancel)
            try:
                await task
                outcomes["done"] += 1
            except asyncio.CancelledError:
                outcomes["cancelled"] += 1

    handler = by_model({"slow": slowly}, answer)
    async with pair(handler, max_connections=10) as (up, upstream):
        before = asyncio.all_tasks()
        until = asyncio.get_running_loop().time() + 2.0
        async with asyncio.timeout(30):
            await asyncio.gather(*(churn(upstream, until) for _ in range(20)))
        assert upstream.in_flight == 0
        assert outcomes["cancelled"] > 100
        answers = await asyncio.gather(*(whole(upstream) for _ in range(100)))
        assert all(b"Hello" in body for body in answers)
        await up.idle(connections=10)
        leaked = [task for task in asyncio.all_tasks() - before if not task.done() and "compatible" in repr(task)]
        assert (upstream.in_flight, leaked) == (0, [])
    assert up.open == 0


# -- the loop of production ------------------------------------------------------------------------------------------

SCENARIOS: list[Callable[[], Coroutine[object, object, None]]] = [
    test_a_stream_arrives_as_it_is_sent,
    test_connections_are_kept_and_used_again,
    test_an_answer_that_comes_before_the_body_was_read_is_still_the_answer,
    test_a_refused_connection_was_not_sent,
    test_an_unknown_host_was_not_sent,
    test_a_failed_tls_handshake_was_not_sent,
    test_a_connection_that_is_never_accepted_ends_at_the_connect_deadline,
    test_a_kept_connection_that_turns_out_closed_is_reported_as_sent_and_not_repeated,
    test_silence_ends_at_the_first_byte_deadline_and_the_provider_sees_the_close,
    test_the_total_deadline_also_holds_while_nothing_reads,
    test_a_body_that_only_the_end_of_the_connection_ends_is_whole,
    test_an_endless_body_is_cut_at_the_limit_and_what_was_buffered_is_bounded,
    test_a_cancelled_call_closes_its_connection_at_every_stage,
    test_an_abandoned_answer_is_closed_and_never_read_by_the_next_call,
    test_a_call_whose_body_is_not_taken_can_be_cancelled_at_once,
    test_closing_ends_calls_under_way_and_can_be_done_twice,
    test_closing_works_while_being_cancelled,
    test_twenty_workers_that_cancel_at_random_leave_a_pool_that_works,
    *(partial(test_a_body_that_breaks_off_never_looks_whole, whole, cut) for cut in CUTS),
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: getattr(scenario, "__name__", "cut"))
def test_the_same_holds_on_uvloop(scenario: Callable[[], Coroutine[object, object, None]]) -> None:
    """What a reset, an abort or a flush does is the loop's own affair, and production runs on uvloop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())
