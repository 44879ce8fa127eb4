"""The composition root: the only file that names fulfilments. From settings to a running application and back.

Nothing here decides anything about a call. What can change while the server runs (policies, keys) is kept in one
`Directory`, replaced whole; a call in progress keeps what it began with.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from urllib.parse import urlsplit

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from proxy import policies as policy_folder
from proxy.attempt import Target
from proxy.calibration import Calibrations
from proxy.catalogue import Catalogue, ranks_folder
from proxy.core.errors import WeirgateError
from proxy.core.policy import ModelCard, Policy
from proxy.dialects.chat.request import Bounds
from proxy.gateway import Destination, Gateway
from proxy.logs import log
from proxy.metrics import Metrics
from proxy.policies import PolicyWatch
from proxy.server.accounts import Accounts
from proxy.server.admin import Admin, admin_routes
from proxy.server.auth import Keys, key_digest, keys_of
from proxy.server.embeddings import Embeddings
from proxy.server.endpoints import Chat, Desk, Endpoint, Health, Missing, Models, Ready, Scrape
from proxy.server.lifecycle import Drain
from proxy.server.models import Listing
from proxy.server.own_settings import OwnSettings
from proxy.settings import Settings, refusal, resolve_model
from proxy.store import KeyRow, Store
from proxy.store.sqlite import from_url
from proxy.upstream import Deadlines, Upstream
from proxy.upstream.beginnings import Beginnings
from proxy.upstream.compatible import CompatibleUpstream
from proxy.upstream.counter import Counter
from proxy.upstream.decoded import Decoded

_POLL = 1.0
"""Seconds between two looks at the policy folder."""
_NAMES = 4096
"""Model names whose destination is kept; clients may ask for any."""
_DAY = 86_400.0


class Refused(Exception):
    """The configuration must not be served; the text says why."""


class Places:
    """The `Directory`: where names lead and which keys open them, by the configuration in force."""

    def __init__(self, settings: Settings, watch: PolicyWatch, catalogue: Catalogue) -> None:
        self._settings = settings
        self._watch = watch
        self._catalogue = catalogue
        self._known: dict[str, Destination | None] = {}
        self._keys: Keys | None = None
        self.upstreams: Mapping[str, Upstream] = {name: upstream_of(name, settings) for name in settings.upstreams}

    def destination(self, model: str) -> Destination | None:
        if model in self._known:
            return self._known[model]
        found = self._find(model)
        if len(self._known) >= _NAMES:
            self._known.clear()
        self._known[model] = found
        return found

    def _find(self, model: str) -> Destination | None:
        route = resolve_model(self._settings, model)
        if route is None:
            return None
        configured = self._settings.upstreams[route.upstream]
        policy = self._watch.current.for_model(route.model)
        host = urlsplit(configured.base_url).hostname or ""
        card = self._catalogue.card(route.model, host=host) or ModelCard(name=route.model)
        return Destination(
            target=Target(
                upstream=self.upstreams[route.upstream],
                card=msgspec.structs.replace(_priced(card, policy), name=route.model),
                normalise=configured.normalise,
                own_key=configured.api_key is not None,
                line_limit=configured.line_limit,
            ),
            policy=policy,
            pattern=route.pattern,
            attempts=configured.attempts,
            budget=configured.retry_budget,
        )

    def keys(self) -> Keys:
        assert self._keys is not None, "keys are read before the first request"
        return self._keys

    def take_keys(self, keys: Keys) -> None:
        self._keys = keys

    def forget(self) -> None:
        """After a reload: every name is looked up again."""
        self._known.clear()


class Others:
    """The routes that hold a parameter, and what is no route at all."""

    def __init__(self, endpoints: Sequence[Endpoint], missing: ASGIApp | None = None) -> None:
        self._endpoints = endpoints
        self._missing = missing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._router(scope, receive, send)

    @cached_property
    def _router(self) -> ASGIApp:
        # Here, because no model call comes by it: the operator's routes do, and strangers.
        from starlette.routing import Route, Router

        routes = [Route(each.route, each) for each in self._endpoints]
        return Router(routes=routes, default=self._missing, redirect_slashes=False)


class Application:
    """Everything of one process. `asgi` is served; `start` and `stop` are its lifespan."""

    def __init__(self, settings: Settings, drain: Drain, store: Store | None = None) -> None:
        folder = settings.policies or policy_folder.shipped()
        self.settings = settings
        self.drain = drain
        self.watch = PolicyWatch(folder, window=settings.window)
        self.metrics = Metrics()
        self.catalogue = Catalogue()
        self.places = Places(settings, self.watch, self.catalogue)
        self.store = store or from_url(settings.store.url, content=settings.store.content != "strict")
        self._workers = ThreadPoolExecutor(max_workers=1, thread_name_prefix="weirgate-plan")
        self._counter = Counter(ranks_folder())
        self._pepper = b""
        self._background: set[asyncio.Task[None]] = set()
        self._gateway: Gateway | None = None
        self._exact: Mapping[str, ASGIApp] = {}
        self._other: ASGIApp = Others(())
        self.failure: Exception | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            # Plain paths are looked up; what holds a parameter goes by the router.
            await self._exact.get(scope["path"], self._other)(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        """The lifespan protocol. What must not start is kept in `failure`, for whoever runs the server to tell."""
        await receive()
        try:
            await self.start()
        except (Refused, WeirgateError, OSError) as error:
            self.failure = error
            await send({"type": "lifespan.startup.failed", "message": ""})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.stop()
        await send({"type": "lifespan.shutdown.complete"})

    async def start(self) -> None:
        """Open the store, read what was learned, and make the routes. Raises Refused, StoreUnavailable."""
        lost = await self.store.open(time.time())
        try:
            await self._start(lost)
        except BaseException:
            await self.store.close()
            raise

    async def _start(self, lost: int) -> None:
        if lost:
            log("warning", "closed rows that a dead process left open", rows=lost)
        self._pepper = await self.store.secret("keys")
        await self.read_keys()
        why = refusal(self.settings, keys=not self.places.keys().open)
        if why is not None:
            raise Refused(why)
        self._gateway = Gateway(
            store=self.store,
            counter=self._counter,
            metrics=self.metrics,
            calibrations=Calibrations(await self.store.calibrations()),
            secret=await self.store.secret("scope"),
            workers=self._workers,
            store_required=self.settings.store.required,
            strict_usage=self.settings.usage.strict,
        )
        self._exact, self._other = self._routes(self._gateway)
        self._later(self._look_after())

    async def stop(self) -> None:
        """After the last request: let what outlives it finish, then close everything."""
        for task in self._background:
            task.cancel()
        if self._gateway is not None:
            await self._gateway.drain()
        for upstream in self.places.upstreams.values():
            await upstream.close()
        await self.store.close()
        self._counter.close()
        self._workers.shutdown(wait=False)

    async def read_keys(self) -> None:
        """Take the configured and the stored keys into use; callers of a revoked one are refused from here on."""
        secret = self.settings.admin.secret
        admin = key_digest(self._pepper, secret.reveal().encode()) if secret is not None else None
        rows = (*self._configured_keys(), *await self.store.keys())
        try:
            self.places.take_keys(keys_of(rows, self._pepper, admin=admin))
        except ValueError as error:
            message = f"{error}; revoke one with `weirgate keys revoke`, or rename it in the configuration"
            raise Refused(message) from None

    def _configured_keys(self) -> tuple[KeyRow, ...]:
        return tuple(
            KeyRow(
                id=key.id,
                tenant=key.tenant,
                digest=key_digest(self._pepper, key.secret.reveal().encode()),
                created_at=0.0,
                models=key.models,
            )
            for key in self.settings.keys
        )

    def reload(self) -> None:
        """SIGHUP: read the policies again."""
        self._later(self._reload(self.watch.reload))

    def _routes(self, gateway: Gateway) -> tuple[Mapping[str, ASGIApp], ASGIApp]:
        limits = self.settings.server.limits
        desk = Desk(
            gateway=gateway,
            directory=self.places,
            accounts=Accounts(self.store, required=self.settings.store.required),
            beginnings=Beginnings(),
            drain=self.drain,
            decoded=Decoded(),
            bounds=Bounds(messages=limits.messages, tools=limits.tools, depth=limits.depth, choices=limits.choices),
            hold=self.settings.server.hold,
            ping=self.settings.server.ping,
            body_limit=limits.body,
            streams=limits.streams,
            streams_per_key=limits.streams_per_key,
        )
        listing = Listing(self.settings, self.places, gateway)
        admin = Admin(
            store=self.store,
            pepper=self._pepper,
            configured=self._configured_keys(),
            refresh=self.read_keys,
            reload=self._reload_now,
        )
        endpoints = [
            Chat(desk),
            Embeddings(desk),
            Models(desk, listing),
            OwnSettings(desk),
            Health(desk),
            Ready(desk),
            Scrape(desk),
            *admin_routes(desk, admin),
        ]
        exact = {endpoint.route: endpoint for endpoint in endpoints if "{" not in endpoint.route}
        return exact, Others([each for each in endpoints if "{" in each.route], Missing(desk))

    def _later(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _look_after(self) -> None:
        """Policies that changed are taken into use; what nobody used for the retention time is deleted once a day."""
        retention = self.settings.store.retention_days
        purged = time.monotonic() - _DAY
        while True:
            await asyncio.sleep(_POLL)
            await self._reload(self.watch.poll)
            if retention is not None and time.monotonic() - purged >= _DAY:
                purged = time.monotonic()
                for tenant in self.places.keys().tenants():
                    await self.store.purge(tenant, time.time() - retention * _DAY)

    async def _reload(self, read: Callable[[], policy_folder.Reload | None]) -> None:
        done = await asyncio.to_thread(read)
        if done is None:
            return
        self.metrics.reload_ok.value = 0.0 if done.problems else 1.0
        self.metrics.reloads.labels("refused" if done.problems else "taken").inc()
        if done.problems:
            problems = [str(problem) for problem in done.problems]
            await asyncio.to_thread(log, "error", "policies kept as they were", problems=problems)
        elif done.changed:
            self.places.forget()
            await asyncio.to_thread(log, "info", "policies replaced", hash=done.current.hash)

    async def _reload_now(self) -> tuple[str, ...]:
        done = await asyncio.to_thread(self.watch.reload)
        await self._reload(lambda: done)
        return tuple(str(problem) for problem in done.problems)


def upstream_of(name: str, settings: Settings) -> CompatibleUpstream:
    """The upstream `name` as configured."""
    configured = settings.upstreams[name]
    limits = configured.deadlines
    return CompatibleUpstream(
        name=name,
        base_url=configured.base_url,
        api_key=configured.api_key.reveal() if configured.api_key is not None else None,
        headers=tuple((key, value.reveal()) for key, value in configured.headers.items()),
        deadlines=Deadlines(connect=limits.connect, first_byte=limits.first_byte, idle=limits.idle, total=limits.total),
        max_connections=configured.max_connections,
        reply_limit=configured.body_limit,
    )


def _priced(card: ModelCard, policy: Policy) -> ModelCard:
    """The card with the policy's multipliers for the provider's prompt cache in place of the catalogue's prices."""
    tariff = card.tariff
    if tariff is None or (policy.cache_read is None and policy.cache_write is None):
        return card
    cached = tariff.cached if policy.cache_read is None else round(tariff.input * policy.cache_read)
    written = tariff.cache_write if policy.cache_write is None else round(tariff.input * policy.cache_write)
    priced = msgspec.structs.replace(tariff, cached=cached, cache_write=written, source="policy")
    return msgspec.structs.replace(card, tariff=priced)
