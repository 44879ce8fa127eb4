"""An OpenAI-shaped provider over HTTP/1.1, by aiohttp.

Here: one pooled session per upstream, our deadlines, our errors. Never here: retries, decisions, the meaning of a
body. Nothing of the environment (proxies, netrc), of an answer (redirects, cookies, compression) or of a client's
headers reaches the wire: only what the operator configured, the client's own authorization where the upstream has no
key, and a request id. Why: research/reliability.md I-13, I-14, I-19, I-24, I-49, I-52, I-72, I-73.

The library repeats a GET (never a POST) once by itself when a kept-alive connection turns out to be closed, as RFC
9110 9.2.2 allows; a listing of models costs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from math import inf
from typing import Final

import aiohttp
import aiohttp.abc
from yarl import URL

from proxy import __version__
from proxy.core.errors import InvalidReply, TimedOut, Unreachable, UpstreamError
from proxy.upstream import Deadlines, Request

_KEEP_ALIVE: Final = 30.0
"""Seconds an idle connection is kept: below the silent cut of common load balancers and address translators (60)."""

_HEAD_LINE: Final = 32 * 1024
"""Bytes one header line of an answer may take; some providers send policies of more than aiohttp's 8 KiB."""

_PIECE: Final = 32 * 1024
"""Bytes of an answer that are taken from the connection ahead of need (twice this), and of a stream that are given on
at once: what a client that reads slowly, or not at all, costs us."""

_CLOSING: Final = 1.0
"""Seconds `close` waits for sockets to go."""

_CREDENTIALS: Final = frozenset({"authorization", "api-key", "x-api-key"})
"""Header names that carry an upstream's own key; a client's authorization never goes along with one."""


class CompatibleUpstream:
    """Fulfils `Upstream`. One per configured upstream, made when the configuration is loaded.

    `base_url` may hold a user and password, sent as Basic authorization where there is no `api_key`. `headers` go on
    every call. `max_connections` bounds the calls under way; one more waits within the connect deadline.
    `reply_limit` is the most bytes `Response.read` returns. Raises ValueError for a URL that is not http or https.
    """

    def __init__(
        self,
        *,
        name: str,
        base_url: str,
        api_key: str | None = None,
        headers: tuple[tuple[str, str], ...] = (),
        deadlines: Deadlines | None = None,
        max_connections: int = 1024,
        reply_limit: int = 64 * 1024 * 1024,
    ) -> None:
        url = URL(base_url)
        if url.scheme not in ("http", "https") or not url.host:
            # The text is not repeated: it may hold a password.
            raise ValueError(f"upstream {name}: base_url must be an http or https URL with a host")
        self._name = name
        self._base = str(url.with_user(None).with_query(None).with_fragment(None)).rstrip("/")
        self._headers = _standing_headers(url, api_key, headers)
        self._has_key = not _CREDENTIALS.isdisjoint(key.lower() for key in self._headers)
        self._deadlines = deadlines or Deadlines()
        self._max_connections = max_connections
        self._reply_limit = reply_limit
        self._session: aiohttp.ClientSession | None = None
        self._open: set[HttpResponse] = set()
        self._sending = 0
        self._closed = False

    @property
    def name(self) -> str:
        return self._name

    @property
    def in_flight(self) -> int:
        """Calls that hold or wait for a connection: sent and not yet closed."""
        return self._sending + len(self._open)

    async def send(self, request: Request) -> HttpResponse:
        """See `Upstream.send`. InvalidReply where what came back is not HTTP."""
        if self._closed:
            raise _shut_down()
        session = self._session
        if session is None:
            session = self._session = self._start()
        began = asyncio.get_running_loop().time()
        limits = self._deadlines
        failure: UpstreamError
        self._sending += 1
        try:
            async with asyncio.timeout_at(began + min(limits.first_byte, limits.total)):
                answer = await session.request(
                    request.method,
                    URL(self._base + request.path, encoded=True),
                    data=_Body(request.body) if request.body else None,
                    headers=self._call_headers(request),
                    allow_redirects=False,
                )
        except aiohttp.ConnectionTimeoutError:
            failure = self._not_connected()
        except TimeoutError:
            failure = _late_head(limits)
        except asyncio.CancelledError:
            if not self._called_off():
                raise
            failure = _shut_down()
        except (aiohttp.ClientError, OSError) as problem:
            failure = _failed_send(problem)
        else:
            return HttpResponse(answer, limits, ends=began + limits.total, limit=self._reply_limit, register=self._open)
        finally:
            self._sending -= 1
        # Raised outside the handlers, so that the library's exception (it names the URL, it may quote the provider)
        # does not hang on ours as its context.
        raise failure

    async def close(self) -> None:
        """End every call under way and free the sockets. Idempotent; within `_CLOSING`, also while being cancelled:
        everything is closed before the first wait."""
        self._closed = True
        session, self._session = self._session, None
        if session is None:
            return
        for response in tuple(self._open):
            response.abort()
        connector = session.connector
        session.detach()
        if connector is not None:
            gone = connector.close(abort_ssl=True)
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSING):
                    await gone

    def _start(self) -> aiohttp.ClientSession:
        """Made at the first call, not in the constructor: a session belongs to a running loop."""
        connector = aiohttp.TCPConnector(limit=self._max_connections, keepalive_timeout=_KEEP_ALIVE)
        # Only connecting is timed by the library (a kept-alive connection then costs no timer); it would round
        # anything above the threshold up to whole seconds.
        timeout = aiohttp.ClientTimeout(
            total=None, connect=self._deadlines.connect, sock_connect=None, sock_read=None, ceil_threshold=inf
        )
        return aiohttp.ClientSession(
            connector=connector,
            headers=self._headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            response_class=_AbruptResponse,
            timeout=timeout,
            auto_decompress=False,
            trust_env=False,
            read_bufsize=_PIECE,
            max_line_size=_HEAD_LINE,
            max_field_size=_HEAD_LINE,
        )

    def _call_headers(self, request: Request) -> dict[str, str] | None:
        if self._has_key and not request.request_id:
            return None
        headers: dict[str, str] = {}
        if request.request_id:
            headers["X-Request-Id"] = request.request_id
        own = request.authorization
        # A value that cannot stand in a header is left out: the provider then says that the key is missing.
        if own is not None and not self._has_key and own.isascii() and own.isprintable():
            headers["Authorization"] = own
        return headers

    def _called_off(self) -> bool:
        """Closing the pool cancels those who wait for a connection; that is not the caller being cancelled."""
        task = asyncio.current_task()
        return self._closed and task is not None and not task.cancelling()

    def _not_connected(self) -> UpstreamError:
        seconds = self._deadlines.connect
        if self.in_flight > self._max_connections:
            text = f"All {self._max_connections} connections to the upstream were in use for {seconds:g} s."
        else:
            text = f"The upstream could not be connected to within {seconds:g} s."
        return TimedOut(text, sent=False, retry=True)


class _AbruptResponse(aiohttp.ClientResponse):
    def close(self) -> None:
        """Abort instead of closing: a closing transport first waits to flush the request, which a provider that has
        stopped reading would put off for ever. Also runs when a call is cancelled before the head has come."""
        connection = self.connection
        if connection is not None and (transport := connection.transport) is not None:
            transport.abort()
        super().close()


class _Body(aiohttp.Payload):
    """JSON bytes of any size, written as they are. The library's own payload warns of large ones."""

    _value: bytes

    def __init__(self, value: bytes) -> None:
        super().__init__(value, content_type="application/json")
        self._size = len(value)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return self._value.decode(encoding, errors)

    async def write(self, writer: aiohttp.abc.AbstractStreamWriter) -> None:
        await writer.write(self._value)


class HttpResponse:
    """Fulfils `Response`. Times the body with one lazy timer: a chunk only moves a number."""

    __slots__ = (
        "_answer",
        "_due",
        "_ends",
        "_headers",
        "_late",
        "_limit",
        "_limits",
        "_loop",
        "_protocol",
        "_register",
        "_timer",
    )

    def __init__(
        self,
        answer: aiohttp.ClientResponse,
        limits: Deadlines,
        *,
        ends: float,
        limit: int,
        register: set[HttpResponse],
    ) -> None:
        self._answer = answer
        self._limits = limits
        self._ends = ends
        self._limit = limit
        self._register = register
        self._loop = asyncio.get_running_loop()
        self._headers: dict[str, str] | None = None
        self._due = inf
        self._late: str | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._protocol = _unframed(answer)
        register.add(self)

    @property
    def status(self) -> int:
        return self._answer.status

    @property
    def headers(self) -> Mapping[str, str]:
        if self._headers is None:
            self._headers = {name.lower(): value for name, value in self._answer.headers.items()}
        return self._headers

    async def read(self) -> bytes:
        self._check_encoding()
        declared = self._answer.content_length
        if declared is not None and declared > self._limit:
            raise self._oversized()
        parts = []
        size = 0
        while part := await self._next():
            size += len(part)
            if size > self._limit:
                raise self._oversized()
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def chunks(self) -> AsyncIterator[bytes]:
        self._check_encoding()
        while part := await self._next(_PIECE):
            yield part

    async def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        """`close` without a wait."""
        self._stop_timer()
        self._register.discard(self)
        self._answer.close()

    async def _next(self, most: int | None = None) -> bytes:
        """What has arrived, at least one byte, at most `most`; b"" at the end of the body."""
        content = self._answer.content
        if not content.is_eof():
            self._due = self._loop.time() + self._limits.idle
            if self._timer is None:
                self._timer = self._loop.call_at(min(self._due, self._ends), self._tick)
        failure: UpstreamError
        try:
            part = await (content.readany() if most is None else content.read(most))
        except Exception as problem:
            # Whatever the library makes of the provider's bytes, the answer is broken and the call is over.
            failure = self._broken(problem)
        except BaseException:
            self.abort()
            raise
        else:
            self._due = inf
            if part or self._protocol is None or not isinstance(self._protocol.exception(), aiohttp.ClientOSError):
                return part
            failure = InvalidReply("The upstream's connection broke in the middle of its answer.")
        self.abort()
        raise failure

    def _tick(self) -> None:
        """The deadline may have moved since the timer was set: then set it again, else end the call, which wakes the
        reader. While nobody waits for a chunk only the total counts; a slow client is not an idle provider."""
        now = self._loop.time()
        if now < min(self._due, self._ends):
            self._timer = self._loop.call_at(min(self._due, now + self._limits.idle, self._ends), self._tick)
            return
        self._late = "total" if now >= self._ends else "idle"
        self._timer = None
        self._answer.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _broken(self, problem: Exception) -> UpstreamError:
        if self._late == "total":
            return TimedOut(f"The upstream's answer was not complete within {self._limits.total:g} s.")
        if self._late == "idle":
            return TimedOut(f"The upstream sent nothing for {self._limits.idle:g} s in the middle of its answer.")
        if self not in self._register:
            return InvalidReply("The call was closed before its answer was complete.")
        if isinstance(problem, aiohttp.ClientPayloadError):
            return InvalidReply("The upstream's answer ended before it was complete.")
        return InvalidReply("The upstream's connection broke in the middle of its answer.")

    def _oversized(self) -> UpstreamError:
        self.abort()
        return InvalidReply(f"The upstream's answer is larger than {self._limit} bytes.")

    def _check_encoding(self) -> None:
        """We asked for identity; a compressed body is not unpacked (it may inflate a thousandfold)."""
        encoding = self._answer.headers.get("Content-Encoding", "identity").strip().lower()
        if encoding not in ("identity", ""):
            self.abort()
            raise InvalidReply("The upstream sent a compressed answer though none was accepted.")


def _unframed(answer: aiohttp.ClientResponse) -> aiohttp.client_proto.ResponseHandler | None:
    """The protocol of an answer that only the end of its connection ends, else None. The library takes a reset for
    such an end; only the protocol remembers the difference."""
    headers = answer.headers
    if "Content-Length" in headers or "Transfer-Encoding" in headers or answer.connection is None:
        return None
    return answer.connection.protocol


def _standing_headers(url: URL, api_key: str | None, configured: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """What every call carries; the operator's own lines win."""
    headers = {
        "User-Agent": f"weirgate/{__version__}",
        "Accept": "*/*",
        "Accept-Encoding": "identity",
    }
    if api_key:
        headers["Authorization"] = f"Bearer {api_key.strip()}"
    elif url.user is not None or url.password is not None:
        headers["Authorization"] = aiohttp.encode_basic_auth(url.user or "", url.password or "")
    known = {name.lower(): name for name in headers}
    for name, value in configured:
        headers[known.setdefault(name.lower(), name)] = value
    for name, value in headers.items():
        if not value.isprintable():
            raise ValueError(f"header {name}: its value holds a character that cannot stand in a header")
    return headers


def _shut_down() -> UpstreamError:
    return Unreachable("The upstream is shut down.", sent=False, retry=True)


def _late_head(limits: Deadlines) -> UpstreamError:
    if limits.total < limits.first_byte:
        return TimedOut(f"The upstream's answer was not complete within {limits.total:g} s.")
    return TimedOut(f"The upstream did not begin to answer within {limits.first_byte:g} s.")


def _failed_send(problem: Exception) -> UpstreamError:
    """Nothing was sent where connecting failed. Else it may have been, even where a kept-alive connection was closed
    without a byte: the provider may have read the request before it closed."""
    if isinstance(problem, aiohttp.ClientConnectorDNSError):
        return Unreachable("The upstream's host name could not be resolved.", sent=False, retry=True)
    if isinstance(problem, aiohttp.ClientSSLError):
        return Unreachable("A secure connection to the upstream could not be made.", sent=False, retry=True)
    if isinstance(problem, aiohttp.ClientConnectorError):
        return Unreachable("The upstream refused the connection.", sent=False, retry=True)
    if isinstance(problem, aiohttp.ClientResponseError):
        return InvalidReply("The upstream's answer is not valid HTTP.")
    return Unreachable("The upstream closed the connection before it answered.")
