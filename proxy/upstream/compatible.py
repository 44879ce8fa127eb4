"""An OpenAI-shaped provider over HTTP/1.1: what it is sent, our deadlines, our errors.

Here: one pool of connections per upstream, the head of a request, what a failure is called. Never here: retries,
decisions, the meaning of a body, bytes on a socket (`http1`). Nothing of the environment (proxies, netrc), of an answer
(redirects, cookies, compression) or of a client's headers reaches the wire: only what the operator configured, the
client's own authorization where the upstream has no key, and a request id. Why: research/reliability.md I-13, I-14,
I-19, I-24, I-49, I-52, I-72, I-73.

A GET (a listing of models), and never a POST, is repeated once where a kept connection turns out to be closed without
a byte of an answer, as RFC 9110 9.2.2 allows.
"""

from __future__ import annotations

import asyncio
import base64
import re
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import Final, assert_never
from urllib.parse import quote, unquote, urlsplit

import msgspec

from proxy import __version__
from proxy.core.errors import InvalidReply, TimedOut, Unreachable, UpstreamError
from proxy.upstream import Deadlines, Request
from proxy.upstream.http1 import PIECE, WHOLE, Connection, Exchange, Fault
from proxy.upstream.pool import Closed, Pool

_PREPARED: Final = 64
"""Request lines kept ready; there are a handful of paths."""

_CREDENTIALS: Final = frozenset({"authorization", "api-key", "x-api-key"})
"""Header names that carry an upstream's own key; a client's authorization never goes along with one."""

_FRAMING: Final = frozenset({"content-length", "transfer-encoding"})
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HOST: Final = re.compile(r"[!-.0-9:;=A-Z\[\]_a-z~]+")
_TARGET: Final = re.compile(r"/[!-~]*")
_PATH: Final = "/%:@!$&'()*+,;=~"


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
        self._name = name
        self._origin = _origin(name, base_url)
        standing = _standing_headers(self._origin, api_key, headers)
        self._has_key = not _CREDENTIALS.isdisjoint(key.lower() for key in standing)
        self._standing = "".join(f"{key}: {value}\r\n" for key, value in standing.items())
        stated = "content-type" in {key.lower() for key in standing}
        self._kind = "" if stated else "Content-Type: application/json\r\n"
        self._prepared: dict[tuple[str, str], str] = {}
        self._deadlines = deadlines or Deadlines()
        self._max_connections = max_connections
        self._reply_limit = reply_limit
        self._pool: Pool | None = None
        self._closed = False

    @property
    def name(self) -> str:
        return self._name

    @property
    def in_flight(self) -> int:
        """Calls that hold or wait for a connection."""
        return self._pool.in_use if self._pool is not None else 0

    async def send(self, request: Request) -> HttpResponse:
        """See `Upstream.send`. InvalidReply where what came back is not HTTP."""
        pool = self._pool or self._open()
        limits = self._deadlines
        began = pool.now()
        ends = began + limits.total
        due = began + limits.first_byte if limits.first_byte < limits.total else ends
        head = self._head(request)
        fresh = False
        while True:
            connection = None if fresh else pool.take()
            if connection is None:
                connection = await self._connection(pool, due, fresh=fresh)
            repeatable = request.method == "GET" and connection.exchanges > 0
            answer = HttpResponse(limits, ends=ends, most=self._reply_limit)
            try:
                await connection.start(answer, head, request.body, due)
            except BaseException:
                answer.abort()
                raise
            fault = answer.fault
            if fault is None or answer.status:
                return answer
            if not (repeatable and connection.silent and fault in (Fault.ENDED, Fault.BROKEN)):
                raise _unanswered(fault, limits)
            fresh = True

    async def close(self) -> None:
        """End every call under way and free the sockets. Idempotent; within a second, also while being cancelled:
        everything is closed before the first wait."""
        self._closed = True
        if self._pool is not None:
            await self._pool.close()

    def _open(self) -> Pool:
        """At the first call, not in the constructor: a pool belongs to a running loop."""
        if self._closed:
            raise _shut_down()
        origin = self._origin
        self._pool = Pool(
            origin.host,
            origin.port,
            tls=_tls() if origin.tls else None,
            limit=self._max_connections,
            seconds=self._deadlines.connect,
        )
        return self._pool

    async def _connection(self, pool: Pool, due: float, *, fresh: bool) -> Connection:
        """Not a byte has been sent yet, whatever fails here. The library's exceptions (they name the host) do not
        hang on ours as their context."""
        full = pool.full
        failure: UpstreamError
        try:
            return await pool.new(due, fresh=fresh)
        except TimeoutError:
            failure = self._not_connected(pool, due, full=full)
        except Closed:
            failure = _shut_down()
        except OSError as problem:
            failure = _unconnected(problem)
        raise failure

    def _not_connected(self, pool: Pool, due: float, *, full: bool) -> UpstreamError:
        seconds = self._deadlines.connect
        if pool.now() >= due:
            return _late_head(self._deadlines, sent=False)
        if full:
            text = f"All {self._max_connections} connections to the upstream were in use for {seconds:g} s."
        else:
            text = f"The upstream could not be connected to within {seconds:g} s."
        return TimedOut(text, sent=False, retry=True)

    def _head(self, request: Request) -> bytes:
        """Everything before the body. A value that cannot stand in a header is left out: a provider that misses the
        client's authorization says so."""
        size = len(request.body)
        head = self._prepared.get((request.method, request.path)) or self._prepare(request.method, request.path)
        told, own = request.request_id, request.authorization
        named = f"X-Request-Id: {told}\r\n" if told and told.isascii() and told.isprintable() else ""
        if own is not None and not self._has_key and own.isascii() and own.isprintable():
            named += f"Authorization: {own}\r\n"
        if size:
            return f"{head}{named}{self._kind}Content-Length: {size}\r\n\r\n".encode()
        end = "\r\n" if request.method == "GET" else "Content-Length: 0\r\n\r\n"
        return f"{head}{named}{end}".encode()

    def _prepare(self, method: str, path: str) -> str:
        """The request line and the headers that every call carries. Raises ValueError for what cannot stand there."""
        target = self._origin.path + path
        if not _TARGET.fullmatch(target) or not _NAME.fullmatch(method):
            raise ValueError("a request's method and path must be printable ASCII without blanks")
        if len(self._prepared) >= _PREPARED:
            self._prepared.clear()
        made = self._prepared[method, path] = f"{method} {target} HTTP/1.1\r\n{self._standing}"
        return made


class HttpResponse(Exchange):
    """Fulfils `Response`."""

    __slots__ = ("_headers", "_limits")

    def __init__(self, limits: Deadlines, *, ends: float, most: int) -> None:
        super().__init__(ends=ends, idle=limits.idle, most=most)
        self._limits = limits
        self._headers: dict[str, str] | None = None

    @property
    def headers(self) -> Mapping[str, str]:
        if self._headers is None:
            self._headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in self.fields.items()}
        return self._headers

    async def read(self) -> bytes:
        self._check_coding()
        connection = self.connection
        if connection is not None:
            declared = self.fields.get(b"content-length")
            if self.held > self.most or (declared is not None and int(declared) > self.most):
                self.fault = Fault.OVERSIZED
                self.abort()
            else:
                try:
                    await connection.expect(WHOLE)
                except BaseException:
                    self.abort()
                    raise
        if self.fault is not None or self.held > self.most:
            raise self._broken(self.fault or Fault.OVERSIZED)
        parts, self.parts = self.parts, []
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def pour(self, take: Callable[[bytes], bool]) -> bool:
        self._check_coding()
        self.take = take
        try:
            while not self.hand_on():
                if self.fault is not None:
                    raise self._broken(self.fault)
                if self.connection is None:
                    return True
                if await self.connection.expect(PIECE):
                    return False
        except BaseException:
            self.abort()
            raise
        return False

    async def close(self) -> None:
        self.abort()

    def leave(self, seconds: float = 1.0) -> None:
        """Instead of `close`, and without a wait: the reader has what it needs. Should the body end within `seconds`,
        its connection is used again, else it is closed."""
        if self.connection is not None:
            self.connection.leave(seconds)

    def _check_coding(self) -> None:
        """We asked for identity; a compressed body is not unpacked (it may inflate a thousandfold)."""
        fields = self.fields
        encoding = fields.get(b"content-encoding", b"").strip().lower()
        transfer = fields.get(b"transfer-encoding", b"").strip().lower()
        if encoding not in (b"", b"identity") or transfer not in (b"", b"chunked", b"identity"):
            self.abort()
            raise InvalidReply("The upstream sent a compressed answer though none was accepted.")

    def _broken(self, fault: Fault) -> UpstreamError:
        limits = self._limits
        match fault:
            case Fault.LATE if asyncio.get_running_loop().time() >= self.ends:
                return TimedOut(f"The upstream's answer was not complete within {limits.total:g} s.")
            case Fault.LATE:
                return TimedOut(f"The upstream sent nothing for {limits.idle:g} s in the middle of its answer.")
            case Fault.ENDED:
                return InvalidReply("The upstream's answer ended before it was complete.")
            case Fault.BROKEN:
                return InvalidReply("The upstream's connection broke in the middle of its answer.")
            case Fault.GARBLED:
                return InvalidReply("The upstream's answer is not valid HTTP.")
            case Fault.OVERSIZED:
                return InvalidReply(f"The upstream's answer is larger than {self.most} bytes.")
            case Fault.DROPPED:
                return InvalidReply("The call was closed before its answer was complete.")
            case _:
                assert_never(fault)


class _Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where an upstream is. `authority` is its Host header, `login` a user and password in its URL."""

    host: str
    port: int
    tls: bool
    authority: str
    path: str
    login: str | None


def _origin(name: str, base_url: str) -> _Origin:
    # The text is not repeated: it may hold a password.
    refused = ValueError(f"upstream {name}: base_url must be an http or https URL with a host")
    try:
        url = urlsplit(base_url)
        host = (url.hostname or "").encode("ascii" if (url.hostname or "").isascii() else "idna").decode()
        stated = url.port
    except ValueError:
        raise refused from None
    if url.scheme not in ("http", "https") or not _HOST.fullmatch(host):
        raise refused
    standard = 443 if url.scheme == "https" else 80
    port = standard if stated is None else stated
    bracketed = f"[{host}]" if ":" in host else host
    login = None
    if url.username is not None or url.password is not None:
        login = f"{unquote(url.username or '')}:{unquote(url.password or '')}"
    return _Origin(
        host=host,
        port=port,
        tls=url.scheme == "https",
        authority=bracketed if port == standard else f"{bracketed}:{port}",
        path=quote(url.path, safe=_PATH).rstrip("/"),
        login=login,
    )


def _standing_headers(origin: _Origin, api_key: str | None, configured: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """What every call carries; the operator's own lines win."""
    headers = {
        "Host": origin.authority,
        "User-Agent": f"weirgate/{__version__}",
        "Accept": "*/*",
        "Accept-Encoding": "identity",
    }
    if api_key:
        headers["Authorization"] = f"Bearer {api_key.strip()}"
    elif origin.login is not None:
        headers["Authorization"] = f"Basic {base64.b64encode(origin.login.encode()).decode()}"
    known = {name.lower(): name for name in headers}
    for name, value in configured:
        headers[known.setdefault(name.lower(), name)] = value
    for name, value in headers.items():
        if not _NAME.fullmatch(name) or name.lower() in _FRAMING:
            raise ValueError("headers: a name cannot stand in a header, or says how a body is framed")
        if not value.isprintable():
            raise ValueError(f"header {name}: its value holds a character that cannot stand in a header")
    return headers


def _tls() -> ssl.SSLContext:
    """The system's trust store."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def _shut_down() -> UpstreamError:
    return Unreachable("The upstream is shut down.", sent=False, retry=True)


def _late_head(limits: Deadlines, *, sent: bool = True) -> UpstreamError:
    if limits.total < limits.first_byte:
        return TimedOut(f"The upstream's answer was not complete within {limits.total:g} s.", sent=sent)
    return TimedOut(f"The upstream did not begin to answer within {limits.first_byte:g} s.", sent=sent)


def _unconnected(problem: OSError) -> UpstreamError:
    if isinstance(problem, socket.gaierror):
        text = "The upstream's host name could not be resolved."
    elif isinstance(problem, ssl.SSLError):
        text = "A secure connection to the upstream could not be made."
    else:
        text = "The upstream refused the connection."
    return Unreachable(text, sent=False, retry=True)


def _unanswered(fault: Fault, limits: Deadlines) -> UpstreamError:
    """The request was written, all of it or a part, and may have been read even where a kept connection was closed
    without a byte: the provider may have read it before it closed."""
    match fault:
        case Fault.LATE:
            return _late_head(limits)
        case Fault.GARBLED | Fault.OVERSIZED:
            return InvalidReply("The upstream's answer is not valid HTTP.")
        case Fault.DROPPED:
            return Unreachable("The upstream was shut down before it answered.")
        case Fault.ENDED | Fault.BROKEN:
            return Unreachable("The upstream closed the connection before it answered.")
        case _:
            assert_never(fault)
