"""TLS towards a provider: whom we trust, what we offer, and that the same answers, ends and aborts come through it."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import uvloop

from proxy.core.errors import InvalidReply, TimedOut, Unreachable
from proxy.upstream import Request
from proxy.upstream.compatible import CompatibleUpstream
from tests.conftest import IN_CI
from tests.fakes import BOUND
from tests.upstream.calling import BODY, CALL, SHORT, cancelled, client, deadlines, streamed, whole

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Scenario = Callable[["Provider"], Awaitable[None]]


class Provider:
    """Serves TLS on a free port for the name `localhost`, with a certificate that this process trusts."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        self.connections = 0
        self.agreed: list[str | None] = []

    @asynccontextmanager
    async def serving(
        self, serve: Serve, *, host: str = "localhost", **more: object
    ) -> AsyncIterator[CompatibleUpstream]:
        tasks = set()

        async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.connections += 1
            self.agreed.append(writer.get_extra_info("ssl_object").selected_alpn_protocol())
            task = asyncio.current_task()
            tasks.add(task)
            try:
                with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                    await serve(reader, writer)
            finally:
                writer.transport.abort()
                tasks.discard(task)

        server = await asyncio.start_server(once, "127.0.0.1", 0, ssl=self._context)
        async with server:
            url = f"https://{host}:{server.sockets[0].getsockname()[1]}/v1"
            async with client(url, **more) as upstream:  # type: ignore[arg-type]
                yield upstream
            async with asyncio.timeout(BOUND):
                while tasks:
                    await asyncio.sleep(0.001)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("openssl") is None:
        assert not IN_CI, "no openssl: `apt-get install openssl`"
        pytest.skip("needs the openssl program to make a certificate")
    made = tmp_path_factory.mktemp("tls") / "localhost.pem"
    subject = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost")
    subprocess.run(
        ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         *subject, "-keyout", str(made), "-out", f"{made}.crt"),
        check=True, capture_output=True, timeout=30,
    )  # fmt: skip
    made.write_bytes(made.read_bytes() + Path(f"{made}.crt").read_bytes())
    return made


@pytest.fixture
def provider(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> Provider:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))  # OpenSSL's own variable: the system's trust store
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    context.set_alpn_protocols(["h2", "http/1.1"])
    return Provider(context)


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
    )
    return await reader.readexactly(length)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        body = await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()


async def connections_are_kept_and_speak_http_1_1(provider: Provider) -> None:
    async with provider.serving(echo) as upstream:
        for _ in range(3):
            assert await whole(upstream) == BODY
        assert (provider.connections, provider.agreed) == (1, ["http/1.1"])


async def large_bodies_come_through_whole_both_ways(provider: Provider) -> None:
    body = bytes(range(256)) * 20_000
    async with provider.serving(echo) as upstream:
        assert await whole(upstream, Request(path="/x", body=body)) == body
        assert b"".join(await streamed(upstream, Request(path="/x", body=body))) == body
        assert provider.connections == 1


async def another_name_than_the_certificates_is_refused(provider: Provider) -> None:
    async with provider.serving(echo, host="127.0.0.1") as upstream:
        with pytest.raises(Unreachable, match="secure") as caught:
            await whole(upstream)
        assert (caught.value.sent, provider.connections) == (False, 0)


async def a_stream_that_breaks_off_never_looks_whole(provider: Provider) -> None:
    async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n6\r\ndata: \r\n")
        await writer.drain()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    async with provider.serving(break_off) as upstream:
        with pytest.raises(InvalidReply):
            await streamed(upstream)


async def the_end_of_the_connection_can_be_the_end_of_the_body(provider: Provider) -> None:
    async def unframed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n{}")
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    async with provider.serving(unframed) as upstream:
        assert await whole(upstream) == b"{}"


async def who_leaves_is_seen_to_leave(provider: Provider) -> None:
    arrived = asyncio.Event()
    gone = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        arrived.set()
        with suppress(ConnectionError):
            await reader.read()
        gone.set()

    async with provider.serving(hang) as upstream:
        task = asyncio.create_task(whole(upstream))
        await asyncio.wait_for(arrived.wait(), BOUND)
        await cancelled(task)
        await asyncio.wait_for(gone.wait(), 1.0)
        assert upstream.in_flight == 0


async def silence_ends_at_the_first_byte_deadline(provider: Provider) -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        await reader.read()

    async with provider.serving(hang, limits=deadlines(first_byte=SHORT)) as upstream:
        with pytest.raises(TimedOut, match="begin to answer"):
            await upstream.send(CALL)


SCENARIOS: list[Scenario] = [
    connections_are_kept_and_speak_http_1_1,
    large_bodies_come_through_whole_both_ways,
    another_name_than_the_certificates_is_refused,
    a_stream_that_breaks_off_never_looks_whole,
    the_end_of_the_connection_can_be_the_end_of_the_body,
    who_leaves_is_seen_to_leave,
    silence_ends_at_the_first_byte_deadline,
]


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_over_tls(scenario: Scenario, factory: Callable[[], asyncio.AbstractEventLoop], provider: Provider) -> None:
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(scenario(provider))  # type: ignore[arg-type]


def test_an_unknown_authority_is_refused(certificate: Path) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    unknown = Provider(context)

    async def ask() -> None:
        async with unknown.serving(echo) as upstream:
            with pytest.raises(Unreachable, match="secure") as caught:
                await whole(upstream)
            assert not caught.value.sent

    asyncio.run(ask())
