"""What we say was used is what the provider says: every call of a mixed lot, on both of our databases.

The provider keeps its own books, by request. A call that it answered whole must stand in our rows with its numbers; one
that failed, or whose client left, must stand there as one row each and as an estimate, since nobody told us.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from proxy.app import Application
from proxy.core.usage import UsageRow
from proxy.server.lifecycle import Drain
from proxy.settings import load
from proxy.store import UsageQuery
from proxy.store.address import from_url
from tests.fakes import BOUND, Script, ScriptedUpstream, SeenRequest, chat_chunks, chat_reply, error_body, usage
from tests.postgres import Cluster
from tests.scenarios.conftest import Figure
from tests.server.wired import BUILT_IN, chat

MODEL, INPUT, OUTPUT = "gpt-4o-mini", 150, 600
"""Nano-dollars a token, as its provider publishes them."""
KINDS = {
    "whole": 30,
    "stream": 30,
    "rejected": 4,
    "failed": 5,
    "busy once": 8,
    "reset": 3,
    "broken off": 4,
    "leaves": 4,
    "leaves in mid-stream": 6,
    "says no usage": 6,
}
"""What happens to a call, and how often among a hundred."""
AT_ONCE = 40


@dataclass
class Entry:
    """One call in the provider's books. `told`: it was answered whole, numbers and all."""

    input: int
    output: int
    told: bool


@dataclass
class Provider:
    """Does to each request what its id says, and writes it down."""

    books: defaultdict[str, list[Entry]] = field(default_factory=lambda: defaultdict(list))
    reached: defaultdict[str, asyncio.Event] = field(default_factory=lambda: defaultdict(asyncio.Event))

    async def __call__(self, request: SeenRequest, reply: Script) -> None:
        id = request.headers["x-request-id"]
        kind, _, number = id.rpartition("-")
        chance = random.Random(f"{number}/{len(self.books[id])}")
        entry = Entry(input=chance.randrange(1, 5_000), output=chance.randrange(1, 900), told=False)
        self.books[id].append(entry)
        used = usage(entry.input, entry.output)
        chunks = chat_chunks("A weir keeps a river from overflowing.", usage=used)
        match kind:
            case "rejected":
                await reply.json(400, error_body("no"))
            case "failed":
                await reply.json(500, error_body("it went wrong"))
            case "busy_once" if len(self.books[id]) == 1:
                await reply.json(503, error_body("later"), {"retry-after": "0"})
            case "reset":
                await reply.reset()
            case "broken_off":
                await reply.sse(chunks[:3], done=False)
            case "leaves":
                self.reached[id].set()
                await reply.hang()
            case "leaves_in_mid-stream":
                await reply.head(200, {"content-type": "text/event-stream"})
                for chunk in chunks[:3]:
                    await reply.event(chunk)
                await reply.hang()
            case "says_no_usage":
                await reply.json(200, chat_reply("Hello."))
            case _:
                entry.told = True
                if request.stream:
                    await reply.sse(chunks)
                else:
                    await reply.json(200, chat_reply("Hello.", usage=used))


@asynccontextmanager
async def gateway(url: str, upstream: str) -> AsyncIterator[Application]:
    given = {"policies": str(BUILT_IN), "upstreams.main.base_url": upstream, "upstreams.main.breaker": "off"}
    app = Application(load(None, {}, {**given, "upstreams.main.retry_budget": 1}), Drain(), store=from_url(url))
    await app.start()
    try:
        yield app
    finally:
        await app.stop()


async def one(app: Application, provider: Provider, kind: str, number: int) -> None:
    id = f"{kind.replace(' ', '_')}-{number}"
    stream = kind in ("stream", "broken off", "leaves in mid-stream")
    messages = [{"role": "user", "content": f"Question {number}: how does a weir keep a river from overflowing?"}]
    body = {"model": MODEL, "messages": messages, "stream": stream, "stream_options": {"include_usage": True}}
    if not stream:
        del body["stream_options"]
    asked = chat(app, body, x_request_id=id)
    if kind == "leaves":
        async with asyncio.timeout(BOUND):
            await provider.reached[id].wait()
        asked.leave()
    elif kind == "leaves in mid-stream":
        await asked.head()
        await asked.piece()
        asked.leave()
    await asked.done()


async def mixed(url: str, calls: int, figure: Figure) -> None:
    chance = random.Random(20_261_130)
    kinds = chance.choices(list(KINDS), weights=list(KINDS.values()), k=calls)
    provider = Provider()
    async with ScriptedUpstream(provider) as up, gateway(url, up.url) as app:
        waiting = list(enumerate(kinds))

        async def client() -> None:
            while waiting:
                number, kind = waiting.pop()
                await one(app, provider, kind, number)

        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(client())
        assert app._gateway is not None
        await app._gateway.drain()
        rows = [row for row in await app.store.usage(UsageQuery(limit=10 * calls)) if isinstance(row, UsageRow)]
        spent = (await app.store.spent(0.0))["local", "open"]
    compare(provider, rows, figure)
    tokens = sum(row.input + row.output for row in rows)
    figure.all(
        ("ledger: the sums that limits rest on, tokens", spent.tokens - tokens, "== 0"),
        ("ledger: the sums that limits rest on, nano-dollars", spent.cost - sum(row.cost or 0 for row in rows), "== 0"),
        ("ledger: requests", spent.requests, f"== {calls}"),
    )
    assert set(kinds) == set(KINDS)


def compare(provider: Provider, rows: list[UsageRow], figure: Figure) -> None:
    """Our rows against the provider's books, request by request and in sum."""
    entries = [entry for some in provider.books.values() for entry in some]
    told = [entry for entry in entries if entry.told]
    known = [row for row in rows if not row.estimated]
    ours: defaultdict[str, list[UsageRow]] = defaultdict(list)
    for row in rows:
        ours[row.request].append(row)
    wrong = 0
    for id, some in provider.books.items():
        theirs = Counter((entry.input, entry.output) for entry in some if entry.told)
        mine = Counter((row.input, row.output) for row in ours[id] if not row.estimated)
        wrong += theirs != mine or len(ours[id]) != len(some)
    nano = sum(entry.input * INPUT + entry.output * OUTPUT for entry in told)
    figure.all(
        ("ledger: rows less upstream calls", len(rows) - len(entries), "== 0"),
        ("ledger: requests that differ", wrong, "== 0"),
        ("ledger: rows for requests that the provider never saw", len(ours.keys() - provider.books.keys()), "== 0"),
        ("ledger: rows left open", sum(row.status == "open" for row in rows), "== 0"),
        ("ledger: input tokens, ours less theirs", sum(r.input for r in known) - sum(e.input for e in told), "== 0"),
        ("ledger: output tokens, ours less theirs", sum(r.output for r in known) - sum(e.output for e in told), "== 0"),
        ("ledger: nano-dollars, ours less theirs", sum(row.cost or 0 for row in known) - nano, "== 0"),
    )
    print(f"{len(provider.books)} requests, {len(entries)} upstream calls, {nano / 1e9:.6f} dollars told")


async def test_five_hundred_mixed_calls_are_booked_as_the_provider_books_them(figure: Figure) -> None:
    await mixed("sqlite://", 500, figure)


async def test_they_are_on_postgresql_too(cluster: Cluster, figure: Figure) -> None:
    url = cluster.create("ledger")
    try:
        await mixed(url, 500, figure)
    finally:
        cluster.drop("ledger")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
async def test_ten_thousand_mixed_calls_are(
    engine: str, tmp_path: object, request: pytest.FixtureRequest, figure: Figure
) -> None:
    if engine == "sqlite":
        await mixed(f"sqlite:///{tmp_path}/weirgate.db", 10_000, figure)
        return
    cluster: Cluster = request.getfixturevalue("cluster")
    url = cluster.create("long_ledger")
    try:
        await mixed(url, 10_000, figure)
    finally:
        cluster.drop("long_ledger")
