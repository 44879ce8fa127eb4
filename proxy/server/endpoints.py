"""The routes. Each is an ASGI class; each names who may use it, and the app refuses one that does not.

From head to last byte: count, authenticate, read, decode, resolve, serve, answer. Errors take the form of `errors`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from functools import partial
from types import MappingProxyType
from typing import Any

import msgspec

from proxy.conversing import Said
from proxy.core.account import applied
from proxy.core.errors import ClientLeft, Forbidden, MethodNotAllowed, NotFound, WeirgateError
from proxy.core.steps import Call, Caller
from proxy.counted import Count
from proxy.dialects.chat import owned
from proxy.dialects.chat.messages import read_message
from proxy.dialects.chat.owned import interjects, once, reference
from proxy.dialects.chat.request import HEADERS, Read, decoding
from proxy.gateway import Answer, Keeping
from proxy.server.accounts import Accounts
from proxy.server.auth import Keys
from proxy.server.body import read_body
from proxy.server.desk import Desk, Directory
from proxy.server.errors import error_response
from proxy.server.head import Headers
from proxy.server.head import request_id as request_id_of
from proxy.server.places import Place
from proxy.server.query import asked_user
from proxy.server.stream import Answering, Receive, Send, Watch
from proxy.server.turns import in_turns
from proxy.showing import Client
from proxy.snapshots import Destination
from proxy.turn import Asked, Listener, Turn

_LOCAL_NAMES = frozenset((b"localhost", b"127.0.0.1", b"[::1]"))
_TOGETHER = 256.0
"""Requests whose observations are sorted into their buckets together."""
_READ = MappingProxyType({name: name.decode() for name in HEADERS | owned.HEADERS | {b"authorization"}})
"""The headers that a call is read from; the others are not worth decoding."""

Scope = MutableMapping[str, Any]


class Endpoint:
    """What every route does around its work: method, request id, count, errors, metrics."""

    route = ""
    methods: tuple[str, ...] = ("GET",)

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        metrics = desk.gateway.metrics
        self._seconds = metrics.request_seconds.labels(self.route)
        self._counted: dict[int, Count] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        headers = scope["headers"]
        desk, status = self.desk, 500
        gateway, drain = desk.gateway, desk.drain
        metrics = gateway.metrics
        answering = Answering(send, request_id_of(headers, gateway.names.draw), hold=desk.hold, ping=desk.ping)
        metrics.in_flight.value += 1.0
        try:
            with drain.request():
                if scope["method"] not in self.methods:
                    raise MethodNotAllowed("This route does not know the method.")
                status = await self.work(scope, receive, answering)
        except ClientLeft:
            status = 499
            await answering.stop()
        except WeirgateError as error:
            status = error.status
            await self.refuse(error, answering)
        except BaseException:
            # A bug, or cut off by the server: whoever answers now must not be joined by our comments.
            answering.abandon()
            raise
        finally:
            metrics.in_flight.value -= 1.0
            self._seconds.observe(time.perf_counter() - began)
            counted = self._counted.get(status)
            if counted is None:
                counted = self._counted[status] = metrics.requests.labels(self.route, str(status))
            counted.value += 1.0
            if not counted.value % _TOGETHER:
                metrics.sort_in()

    async def work(self, scope: Scope, receive: Receive, answering: Answering) -> int:
        """Serve the request and return its status. May raise WeirgateError before anything was sent."""
        raise NotFound("There is nothing here.")

    async def refuse(self, error: WeirgateError, answering: Answering) -> None:
        if answering.begun:
            await answering.fail(error)
            return
        headers = answering.headers()
        allow = ", ".join(self.methods) if isinstance(error, MethodNotAllowed) else None
        status, own, body = error_response(error, answering.request_id, allow=allow)
        await answering.whole(status, [*own, *headers[1:]], body)


class Chat(Endpoint):
    """POST /v1/chat/completions: for holders of a client key."""

    route = "/v1/chat/completions"
    methods = ("POST",)

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self._read = partial(read_message, depth=desk.bounds.depth)
        self._decoded = desk.gateway.metrics.decode.observe

    async def work(self, scope: Scope, receive: Receive, answering: Answering) -> int:
        desk = self.desk
        raw = scope["headers"]
        keys = desk.directory.keys()
        caller = identified(keys, raw)
        with Place(desk, caller, answering) as place:
            body = await read_body(receive, raw, limit=desk.body_limit)
            arrived = time.perf_counter()
            headers = {_READ[name]: value.decode("latin-1") for name, value in raw if name in _READ}
            read = desk.decoded.reader(caller.tenant, self._read)
            memory = desk.beginnings.of(caller)
            call = await in_turns(decoding(body, caller, read, headers, desk.bounds, memory))
            led = leads(desk.directory.destination_of(call.model, call.caller), keys, caller, call.model)
            kept = reference(call.fields, headers)
            if kept is None:
                if place.meter is not None:
                    place.reserve(call, led)
                destination = await adapted(desk.accounts, call, led)
            self._decoded(time.perf_counter() - arrived)
            with Watch(receive, desk.watches) as watch, desk.drain.at_end(watch.end):
                if call.stream:
                    answering.hold()
                answer: Answer | Said
                if kept is None:
                    answer = await served(desk, keys, call, led, destination, answering, answering.request_id, headers)
                    memory.keep(body, answer.outcome.past)
                else:
                    asked = Asked(
                        call=call,
                        id=kept,
                        interject=interjects(headers),
                        request=answering.request_id,
                        once=once(headers),
                        expires=led.policy.pause_expires,
                    )
                    answer = await turned(desk, keys, asked, place, answering, headers, self._read)
                if call.stream:
                    await answering.end(answer.rest)
                    return 200
        head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer.body))]
        await answering.whole(200, [*head, *answering.headers()], answer.body)
        return 200


async def turned(
    desk: Desk, keys: Keys, asked: Asked, place: Place, client: Client, headers: Mapping[str, str], read: Read
) -> Answer | Said:
    """The answer of a turn of a conversation that the gateway keeps. The turn goes on when its client leaves, at
    whatever time he does, and has its place until it ends."""
    listener = Listener(client)

    async def serve(body: bytes, caller: Caller, keeping: Turn) -> Answer:
        memory, reader = desk.beginnings.of(caller), desk.decoded.reader(caller.tenant, read)
        call = await in_turns(decoding(body, caller, reader, headers, desk.bounds, memory))
        call = msgspec.structs.replace(call, caller=caller, owned=asked.id, label=asked.id)
        led = leads(desk.directory.destination_of(call.model, caller), keys, caller, call.model)
        led = desk.directory.remembering(led)
        if place.meter is not None:
            place.reserve(call, led)
        destination = await adapted(desk.accounts, call, led)
        answer = await served(desk, keys, call, led, destination, keeping, asked.request, headers, keeping)
        memory.keep(body, answer.outcome.past)
        return answer

    async def run() -> Answer | Said:
        work = asyncio.current_task()
        assert work is not None
        try:
            with desk.drain.work():
                with desk.drain.at_end(work.cancel):
                    turn = await desk.conversing.begin(asked, listener)
                if isinstance(turn, Said):
                    return turn
                with desk.drain.at_end(turn.end):
                    return await turn.run(serve)
        finally:
            place.leave()

    place.share()
    try:
        return await asyncio.shield(desk.gateway.spawn(run()))
    finally:
        listener.leave()


def served(
    desk: Desk,
    keys: Keys,
    call: Call,
    led: Destination,
    destination: Destination,
    client: Client,
    request_id: str,
    headers: Mapping[str, str],
    keeping: Keeping | None = None,
) -> Awaitable[Answer]:
    """The answer to `call`, whose model leads to `led`, which is `destination` for its account."""
    caller = call.caller
    return desk.gateway.serve(
        call,
        destination,
        client,
        request_id,
        headers.get("authorization"),
        # An account's model that its key may not call any more leaves the choice to the policy.
        summariser(desk.directory, keys, caller, destination.policy.summary_model)
        or summariser(desk.directory, keys, caller, led.policy.summary_model),
        keeping,
    )


class Models(Endpoint):
    """GET /v1/models: what this key may ask for, each with its window; `?user=` names the end user it asks for."""

    route = "/v1/models"

    def __init__(self, desk: Desk, listing: Callable[[Keys, Caller, str | None], Any]) -> None:
        super().__init__(desk)
        self._listing = listing

    async def work(self, scope: Scope, receive: Receive, answering: Answering) -> int:
        keys = self.desk.directory.keys()
        caller = identified(keys, scope["headers"])
        caller = msgspec.structs.replace(caller, end_user=asked_user(scope["query_string"], others=True))
        authorization = dict(scope["headers"]).get(b"authorization")
        listed = await self._listing(keys, caller, authorization.decode("latin-1") if authorization else None)
        await send_json(answering, {"object": "list", "data": listed})
        return 200


class Health(Endpoint):
    """GET /healthz: the process runs. Open to all; says nothing else."""

    route = "/healthz"

    async def work(self, scope: Scope, receive: Receive, answering: Answering) -> int:
        await send_json(answering, {"status": "ok"})
        return 200


class Ready(Endpoint):
    """GET /readyz: the store can be written and the server is not leaving. Open to all."""

    route = "/readyz"

    async def work(self, scope: Scope, receive: Receive, answering: Answering) -> int:
        if not self.desk.drain.ready:
            await send_json(answering, {"status": "draining"}, 503)
            return 503
        await self.desk.gateway.store.ready()
        await send_json(answering, {"status": "ready"})
        return 200


class Scrape(Endpoint):
    """GET /metrics: for Prometheus. Open to all; holds no name that a client chose."""

    route = "/metrics"

    async def work(self, scope: Scope, receive: Receive, answering: Answering) -> int:
        text = self.desk.gateway.metrics.exposition()
        head = [(b"content-type", b"text/plain; version=0.0.4; charset=utf-8"), (b"content-length", b"%d" % len(text))]
        await answering.whole(200, head, text)
        return 200


class Missing(Endpoint):
    """Everything else."""

    route = "other"
    methods = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


def identified(keys: Keys, headers: Headers) -> Caller:
    """Who asks. Raises Unauthorised; Forbidden where an open gateway is reached by a name that is not this machine's.

    A web page can make a browser call a name of its own that leads to 127.0.0.1 (DNS rebinding); it cannot forge Host.
    """
    if keys.open:
        host = b""
        for name, value in headers:
            if name == b"host":
                host = value
                break
        without, _, port = host.rpartition(b":")
        if (without if port.isdigit() else host).lower() not in _LOCAL_NAMES:
            raise Forbidden("Without client keys only localhost is served by name; add keys to serve other names.")
    return keys.authenticate(headers)


def leads(destination: Destination | None, keys: Keys, caller: Caller, model: str) -> Destination:
    """`destination`, where `model` goes for this caller. Raises NotFound for an unknown name, Forbidden for one that
    the key lacks."""
    if destination is None:
        raise NotFound("The model does not exist here.", code="model_not_found", param="model")
    if not keys.allowed(caller, model):
        raise Forbidden("This key may not use the model.", param="model")
    return destination


async def adapted(accounts: Accounts, call: Call, destination: Destination) -> Destination:
    """`destination` with its policy as the account that writes wants it. Raises StoreUnavailable."""
    account = await accounts.of(call.caller)
    policy = applied(destination.policy, account, call.model, channel=call.channel)
    return destination if policy is destination.policy else msgspec.structs.replace(destination, policy=policy)


def summariser(directory: Directory, keys: Keys, caller: Caller, model: str | None) -> Destination | None:
    """Where the summary model `model` is reached; None without one, or where this caller may not use it."""
    if model is None or not keys.allowed(caller, model):
        return None
    return directory.destination(model)


async def send_json(answering: Answering, value: Mapping[str, object], status: int = 200) -> None:
    """A JSON answer of our own."""
    body = msgspec.json.encode(value)
    head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await answering.whole(status, [*head, *answering.headers()], body)
