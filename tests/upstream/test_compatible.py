"""What an OpenAI-shaped provider is sent, and what comes back from one that behaves."""

from __future__ import annotations

import asyncio

import pytest

from proxy.upstream import Request
from proxy.upstream.compatible import CompatibleUpstream
from tests.fakes import Script, ScriptedUpstream, SeenRequest, chat_chunks
from tests.upstream.calling import (
    BODY,
    CALL,
    answer,
    client,
    closed_port,
    pair,
    pieces,
    raw_server,
    streamed,
    whole,
)


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


async def test_a_request_id_that_cannot_stand_in_a_header_is_left_out() -> None:
    async with pair(answer) as (up, upstream):
        await whole(upstream, Request(path="/chat/completions", body=BODY, request_id="a\r\nx-evil: 1"))
        assert up.ledger[0].request.headers.keys().isdisjoint({"x-request-id", "x-evil"})


@pytest.mark.parametrize("path", ["/a b", "/a\r\nx-evil: 1", "/é"])
async def test_a_path_that_cannot_stand_in_a_request_line_is_refused(path: str) -> None:
    async with pair(answer) as (up, upstream):
        with pytest.raises(ValueError, match="printable"):
            await upstream.send(Request(path=path, body=BODY))
        assert (up.connections, upstream.in_flight) == (0, 0)


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


@pytest.mark.parametrize("url", ["http://me:secret@host:port/v1", "http://me:secret@[host/v1", "http://a b/v1"])
def test_a_url_that_cannot_be_read_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ValueError, match="upstream main") as refused:
        CompatibleUpstream(name="main", base_url=url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("name", ["Content-Length", "transfer-encoding", "a b", "x:", "x\r\ny"])
def test_a_configured_header_that_would_break_the_framing_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="cannot stand"):
        CompatibleUpstream(name="main", base_url="http://host/v1", headers=((name, "1"),))


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
        chunks = pieces(response)
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

    # By name: a jar takes no cookies from addresses anyway.
    async with ScriptedUpstream(setting) as up, client(up.url.replace("127.0.0.1", "localhost")) as upstream:
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
