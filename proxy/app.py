"""The composition root: the only file that names fulfilments. From settings to a running application and back.

Nothing here decides anything about a call. What can change while the server runs (policies, keys) is kept in one
`Directory`, replaced whole; a call in progress keeps what it began with.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Literal, Protocol
from urllib.parse import urlsplit

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from proxy import policies as policy_folder
from proxy.agents import Agents, memory_of
from proxy.agents.watch import AgentWatch
from proxy.attempt import Target
from proxy.calibration import Calibrations
from proxy.catalogue import Catalogue, ranks_folder
from proxy.configfile import Problem
from proxy.conversing import Conversing
from proxy.core.agent import EMPTY, Agent
from proxy.core.errors import StoreUnavailable, WeirgateError
from proxy.core.policy import ModelCard, Policy
from proxy.core.steps import Caller
from proxy.dialects.chat.request import Bounds
from proxy.gateway import Gateway
from proxy.health import UpstreamHealth
from proxy.logs import log
from proxy.metrics import Metrics
from proxy.policies import PolicyWatch
from proxy.server.accounts import Accounts
from proxy.server.admin import admin_routes
from proxy.server.auth import Keys
from proxy.server.conversation_compact import Compact
from proxy.server.conversation_items import Cancel, Items, OneItem, Rewind
from proxy.server.conversations import Conversation, Conversations
from proxy.server.desk import Desk
from proxy.server.embeddings import Embeddings
from proxy.server.endpoints import Chat, Endpoint, Health, Missing, Models, Ready, Scrape
from proxy.server.explain import Explain
from proxy.server.following import follow
from proxy.server.keyring import Keyring
from proxy.server.keyring import Refused as Refused
from proxy.server.lifecycle import Drain
from proxy.server.models import Listing
from proxy.server.operated import Admin, UpstreamState
from proxy.server.overload import Overload
from proxy.server.own_settings import OwnSettings
from proxy.server.traces import Traces
from proxy.settings import Settings, agents_of, refusal, resolve_model
from proxy.snapshots import Destination
from proxy.store.address import from_url
from proxy.store.owned import KeepingStore
from proxy.tools.skills import SkillWatch
from proxy.tracing import Spans, unfit
from proxy.upstream import Deadlines
from proxy.upstream.beginnings import Beginnings
from proxy.upstream.compatible import CompatibleUpstream
from proxy.upstream.counter import Counter
from proxy.upstream.decoded import Decoded

_POLL = 1.0
"""Seconds between two looks at policies, agents and skills."""
_NAMES = 4096
"""Model names whose destination is kept; clients may ask for any."""
_DAY = 86_400.0


class Hashed(Protocol):
    """Something whose content has a hash."""

    @property
    def hash(self) -> str: ...


class Reloaded(Protocol):
    """What a reload did. `problems` of one that was not kept are of parts that were left out."""

    @property
    def current(self) -> Hashed: ...

    @property
    def changed(self) -> bool: ...

    @property
    def kept(self) -> bool: ...

    @property
    def problems(self) -> tuple[Problem, ...]: ...


class Watched(Protocol):
    """What is read again while the server runs."""

    def poll(self) -> Reloaded | None: ...

    def reload(self) -> Reloaded: ...


class Places:
    """The `Directory`: where names lead and which keys open them, by the configuration in force."""

    def __init__(
        self,
        settings: Settings,
        watch: PolicyWatch,
        agents: AgentWatch,
        skills: SkillWatch,
        catalogue: Catalogue,
        metrics: Metrics,
    ) -> None:
        self._settings = settings
        self._watch = watch
        self._agents = agents
        self._skills = skills
        self._catalogue = catalogue
        self._known: dict[str, Destination | None] = {}
        self._led: dict[tuple[str, str], Destination] = {}
        self._remembering: dict[tuple[str, str], Agent] = {}
        self._memory = memory_of(settings.conversations.memory)
        self._keys: Keys | None = None
        self.upstreams: Mapping[str, CompatibleUpstream] = {
            name: upstream_of(name, settings) for name in settings.upstreams
        }
        self.health = health_of(settings, metrics)

    @property
    def agents(self) -> Agents:
        """The agents and the operator's prompt in force."""
        return self._agents.current

    def destination_of(self, name: str, caller: Caller) -> Destination | None:
        """Where `name` leads for this caller: to an agent that it may know, else to a model of that name."""
        agent = self._agents.current.agents.get(name)
        if agent is None or not agent.seen_by(caller.tenant, caller.end_user):
            return self.destination(name)
        led = self._led.get((name, caller.tenant))
        return led if led is not None and led.agent is agent else self._behind(agent, caller.tenant)

    def _behind(self, agent: Agent, tenant: str) -> Destination | None:
        """The destination of its model, with what the tenant's end users may select. Metrics see the model: they are
        open to all, and an agent may not be."""
        model = self.destination(agent.model)
        if model is None:
            return None
        if len(self._led) >= _NAMES:
            self._led.clear()
        shelf = self._skills.current.of(tenant) if agent.skills else EMPTY
        led = msgspec.structs.replace(model, agent=agent, shelf=shelf)
        self._led[agent.name, tenant] = led
        return led

    def remembering(self, led: Destination) -> Destination:
        """`led` with a memory of earlier turns, where it leads to a model and not to an agent, which has its own. No
        tool of ours is offered then: not every model reads them."""
        if led.agent is not None or self._memory is None:
            return led
        name = led.target.card.name
        found = self._remembering.get((led.pattern, name))
        if found is None:
            if len(self._remembering) >= _NAMES:
                self._remembering.clear()
            # Kept: what is made of an agent is found again under this very object.
            found = Agent(name=name, model=led.pattern, tools=(), memory=self._memory)
            self._remembering[led.pattern, name] = found
        return msgspec.structs.replace(led, agent=found)

    def destination(self, model: str) -> Destination | None:
        """Where the model of that name is, whatever agents there are."""
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
        unknown = ModelCard(name=route.model, means=self._catalogue.means(host))
        card = self._catalogue.card(route.model, host=host) or unknown
        return Destination(
            target=Target(
                upstream=self.upstreams[route.upstream],
                card=msgspec.structs.replace(_priced(card, policy), name=route.model),
                normalise=configured.normalise,
                own_key=configured.api_key is not None,
                line_limit=configured.line_limit,
                health=self.health[route.upstream],
            ),
            policy=policy,
            pattern=route.pattern,
            attempts=configured.attempts,
            budget=configured.retry_budget,
            base=self._agents.current.base,
        )

    def states(self) -> tuple[UpstreamState, ...]:
        """How each upstream does."""
        return tuple(
            UpstreamState(
                name=name,
                base_url=self._settings.upstreams[name].base_url,
                in_flight=upstream.in_flight,
                **msgspec.structs.asdict(self.health[name].condition()),
            )
            for name, upstream in self.upstreams.items()
        )

    def keys(self) -> Keys:
        assert self._keys is not None, "keys are read before the first request"
        return self._keys

    def take_keys(self, keys: Keys) -> None:
        self._keys = keys

    def forget(self) -> None:
        """After a reload: every name is looked up again."""
        self._known.clear()
        self._led.clear()
        self._remembering.clear()


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

    def __init__(self, settings: Settings, drain: Drain, store: KeepingStore | None = None) -> None:
        folder = settings.policies or policy_folder.shipped()
        self.settings = settings
        self.drain = drain
        self.watch = PolicyWatch(folder, window=settings.window)
        self.agents = AgentWatch(agents_of(settings))
        self.skills = SkillWatch(settings.skills.folders)
        self._watches: Mapping[str, Watched] = {"policies": self.watch, "agents": self.agents, "skills": self.skills}
        self._refused: set[str] = set()
        self.metrics = Metrics()
        self.overload = Overload(settings.server.limits.streams, self.metrics.shed)
        self.catalogue = Catalogue()
        self.places = Places(settings, self.watch, self.agents, self.skills, self.catalogue, self.metrics)
        kept = settings.store
        self.store: KeepingStore = store or from_url(
            kept.url, content=kept.content != "strict", migrate=kept.migrate, connections=kept.connections
        )
        self._workers = ThreadPoolExecutor(max_workers=1, thread_name_prefix="weirgate-plan")
        self._counter = Counter(ranks_folder())
        self.keyring = Keyring(settings, self.store, self.places.take_keys)
        self._background: set[asyncio.Task[object]] = set()
        self._gateway: Gateway | None = None
        self._spans: Spans | None = None
        self._exact: Mapping[str, ASGIApp] = {}
        self._other: ASGIApp = Others(())
        self.failure: Exception | None = None

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        # Not a coroutine of its own: each costs a call every time that it is resumed.
        if scope["type"] == "lifespan":
            return self._live(receive, send)
        # Plain paths are looked up; what holds a parameter goes by the router.
        return self._exact.get(scope["path"], self._other)(scope, receive, send)

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
        await self.keyring.open()
        otel = self.settings.otel
        why = refusal(self.settings, keys=not self.places.keys().open) or unfit(otel.endpoint)
        if why is not None:
            raise Refused(why)
        if otel.endpoint is not None:
            self._spans = Spans(otel.endpoint, otel.headers)
            self.metrics.watch = self._spans.row
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
        self.keyring.metering = self._gateway.metering
        await self._gateway.metering.take(self.places.keys().quotas)
        self._exact, self._other = self._routes(self._gateway)
        self._later(self._look_after())
        self._later(follow(self.store, self.keyring.again))

    async def stop(self) -> None:
        """After the last request: let what outlives it finish, then close everything."""
        for task in self._background:
            task.cancel()
        await self.keyring.mark_used()
        if self._gateway is not None:
            await self._gateway.drain()
        for upstream in self.places.upstreams.values():
            await upstream.close()
        await self.store.close()
        if self._spans is not None:
            await asyncio.to_thread(self._spans.close)
        self._counter.close()
        self._workers.shutdown(wait=False)

    async def read_keys(self) -> None:
        """Take the configured and the stored keys into use. Raises Refused, StoreUnavailable."""
        await self.keyring.read()

    def reload(self) -> None:
        """SIGHUP: read policies, agents and skills again."""
        self._later(self._reload_all())

    def _routes(self, gateway: Gateway) -> tuple[Mapping[str, ASGIApp], ASGIApp]:
        limits = self.settings.server.limits
        desk = Desk(
            gateway=gateway,
            directory=self.places,
            accounts=Accounts(self.store, required=self.settings.store.required),
            conversing=Conversing(gateway, self.store.conversations),
            beginnings=Beginnings(),
            drain=self.drain,
            decoded=Decoded(),
            bounds=Bounds(messages=limits.messages, tools=limits.tools, depth=limits.depth, choices=limits.choices),
            hold=self.settings.server.hold,
            ping=self.settings.server.ping,
            body_limit=limits.body,
            overload=self.overload,
            streams_per_key=limits.streams_per_key,
        )
        listing = Listing(self.settings, self.places, gateway)
        admin = Admin(
            store=self.store,
            pepper=self.keyring.pepper,
            configured=self.keyring.configured(),
            rules=self.keyring.rules,
            refresh=self.read_keys,
            settings=self.settings,
            policies=lambda: self.watch.current.hash,
            upstreams=self.places.states,
            reload=self._reload_all,
        )
        endpoints = [
            Chat(desk),
            Embeddings(desk),
            Models(desk, listing),
            OwnSettings(desk),
            Traces(desk),
            Explain(desk),
            Conversations(desk),
            Conversation(desk),
            Items(desk),
            OneItem(desk),
            Rewind(desk),
            Cancel(desk),
            Compact(desk),
            Health(desk),
            Ready(desk),
            Scrape(desk),
            *admin_routes(desk, admin),
        ]
        exact = {endpoint.route: endpoint for endpoint in endpoints if "{" not in endpoint.route}
        return exact, Others([each for each in endpoints if "{" in each.route], Missing(desk))

    def _later(self, work: Coroutine[None, None, object]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _look_after(self) -> None:
        """What changed on disk is taken into use; what nobody used for the retention time is deleted once a day."""
        retention = self.settings.store.retention_days
        purged = time.monotonic() - _DAY
        while True:
            await asyncio.sleep(_POLL)
            for what, watched in self._watches.items():
                await self._reload(what, watched.poll)
            await self.keyring.look_after()
            if retention is not None and time.monotonic() - purged >= _DAY:
                purged = time.monotonic()
                with contextlib.suppress(StoreUnavailable):
                    await self.store.retire(time.time() - retention * _DAY)

    async def _reload(self, what: str, read: Callable[[], Reloaded | None]) -> tuple[str, ...]:
        """What keeps `what` as it was, after it was read again where it looked other than before."""
        done = await asyncio.to_thread(read)
        if done is None:
            return ()
        (self._refused.add if done.kept else self._refused.discard)(what)
        self.metrics.reload_ok.value = 0.0 if self._refused else 1.0
        self.metrics.reloads.labels("refused" if done.kept else "taken").inc()
        if not done.kept:
            self.metrics.reloaded_at.value = time.time()
        problems = [str(problem) for problem in done.problems]
        if done.kept:
            await asyncio.to_thread(log, "error", f"{what} kept as they were", problems=problems)
            return tuple(problems)
        if done.changed:
            self.places.forget()
            left_out = {"problems": problems} if problems else {}
            level: Literal["info", "warning"] = "warning" if problems else "info"
            await asyncio.to_thread(log, level, f"{what} replaced", hash=done.current.hash, **left_out)
        return ()

    async def _reload_all(self) -> tuple[str, ...]:
        """Read everything again. Returns why something was kept as it was."""
        told = [await self._reload(what, watched.reload) for what, watched in self._watches.items()]
        return tuple(problem for problems in told for problem in problems)


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


def health_of(settings: Settings, metrics: Metrics) -> Mapping[str, UpstreamHealth]:
    """How each upstream does, by name."""
    return {
        name: UpstreamHealth(
            name,
            upstream.breaker.rules() if upstream.breaker is not None else None,
            metrics.breaker_state.labels(name),
            time.monotonic,
        )
        for name, upstream in settings.upstreams.items()
    }


def _priced(card: ModelCard, policy: Policy) -> ModelCard:
    """The card with the policy's multipliers for the provider's prompt cache in place of the catalogue's prices."""
    tariff = card.tariff
    if tariff is None or (policy.cache_read is None and policy.cache_write is None):
        return card
    cached = tariff.cached if policy.cache_read is None else round(tariff.input * policy.cache_read)
    written = tariff.cache_write if policy.cache_write is None else round(tariff.input * policy.cache_write)
    priced = msgspec.structs.replace(tariff, cached=cached, cache_write=written, source="policy")
    return msgspec.structs.replace(card, tariff=priced)
