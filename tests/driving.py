"""A gateway with its edges, for the tests of the driver: scripted providers, a watched store, calls of any length."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from proxy.attempt import Target
from proxy.calibration import Calibrations
from proxy.core.policy import ModelCard, Policy, Tariff
from proxy.core.steps import Call, Caller
from proxy.core.usage import UsageRow
from proxy.dialects.chat.messages import read_message
from proxy.dialects.chat.request import decode_call
from proxy.gateway import Answer as Served
from proxy.gateway import Gateway
from proxy.metrics import Metrics
from proxy.snapshots import Destination
from tests import edges
from tests.edges import Counting, Provider, Reader, WatchedStore, watched
from tests.replies import usage

WORDS = "the quick brown fox goes on and on "
OVERFLOW = "This model's maximum context length is 1500 tokens, however you requested 9000 tokens."
USAGE = usage(100, 20)


def history(turns: int, size: int = 12) -> list[dict[str, Any]]:
    talk: list[dict[str, Any]] = []
    for turn in range(turns):
        talk.append({"role": "user", "content": f"Question {turn}: {WORDS * size}"})
        talk.append({"role": "assistant", "content": f"Answer {turn}: {WORDS * size}"})
    return [*talk, {"role": "user", "content": "And now?"}]


def chat(turns: int = 1, *, tenant: str = "t", headers: dict[str, str] | None = None, **more: Any) -> Call:
    body = json.dumps({"model": "asked", "messages": history(turns), **more}).encode()
    return decode_call(body, Caller(tenant=tenant, key="k"), read_message, headers or {})


class House:
    """A gateway with its edges."""

    def __init__(self, store: WatchedStore, workers: Executor, **gateway: Any) -> None:
        self.store = store
        self.metrics = Metrics()
        self.calibrations = Calibrations()
        self.reader = Reader()
        self.gateway = Gateway(
            store=store,
            counter=Counting(),
            metrics=self.metrics,
            calibrations=self.calibrations,
            secret=b"s" * 32,
            workers=workers,
            **gateway,
        )

    async def serve(self, call: Call, provider: Provider, **destination: Any) -> Served:
        async with asyncio.timeout(edges.BOUND):
            return await self.gateway.serve(call, to(provider, **destination), self.reader, "req_1", "Bearer key")

    async def rows(self) -> list[UsageRow]:
        async with asyncio.timeout(edges.BOUND):
            await self.gateway.drain()
        return await self.store.rows()

    def count(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


def to(provider: Provider, window: int | None = 4000, **more: Any) -> Destination:
    policy = more.pop("policy", None) or Policy(window=window, name="p", hash="h", summary_asked=False)
    card = ModelCard(name="real", tariff=Tariff(input=1, output=2))
    return Destination(target=Target(upstream=provider, card=card), policy=policy, pattern="*", **more)


@asynccontextmanager
async def opened(url: str, **gateway: Any) -> AsyncIterator[House]:
    """A house whose background work is awaited; what nobody retrieved is an error."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    store = watched(url)
    await store.open(1.0)
    with ThreadPoolExecutor(2) as workers:
        house = House(store, workers, **gateway)
        try:
            yield house
        finally:
            async with asyncio.timeout(edges.BOUND):
                await house.gateway.drain()
            await store.close()
    gc.collect()
    assert complaints == []
    assert house.gateway.leases.held == 0


def closed_once(house: House) -> None:
    """Promise 2: what was opened was closed, once."""
    opened = [row.id for row in house.store.verbs("open_row")]
    assert sorted(opened) == sorted(row.id for row in house.store.verbs("close_row"))


Housed = Callable[..., AbstractAsyncContextManager[House]]
