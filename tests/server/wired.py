"""The whole application without a socket in front of it: settings, a store in memory, a scripted upstream, and two ways
to call it: httpx over ASGI for whole answers, `Exchange` for what must be watched while it happens.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from proxy.app import Application
from proxy.core.usage import UsageRow
from proxy.server.fence import Fence
from proxy.server.lifecycle import Drain
from proxy.settings import load
from proxy.store import UsageQuery
from proxy.store.address import from_url
from tests import engine
from tests.fakes import BOUND, Handler, ScriptedUpstream

BUILT_IN = Path(__file__).parent.parent / "policies"
ADMIN = "admin-secret-of-this-test"
HELLO = {"model": "known", "messages": [{"role": "user", "content": "Hello there."}]}


@dataclass
class Wired:
    """An application that runs, with what is around it."""

    app: Application
    up: ScriptedUpstream
    client: httpx.AsyncClient

    async def rows(self) -> list[UsageRow]:
        """Every usage row, the newest first."""
        found = await self.app.store.usage(UsageQuery())
        return [row for row in found if isinstance(row, UsageRow)]

    async def settled(self) -> list[UsageRow]:
        """The rows once no one is open any more: they are closed in tasks of their own."""
        async with asyncio.timeout(BOUND):
            while any(row.status == "open" for row in await self.rows()):
                await asyncio.sleep(0)
        return await self.rows()


@asynccontextmanager
async def wired(handler: Handler, **overrides: object) -> AsyncIterator[Wired]:
    """Overrides are settings with `__` between their parts: `server__hold=0`."""
    async with ScriptedUpstream(handler) as up:
        given = {"policies": str(BUILT_IN), **{name.replace("__", "."): value for name, value in overrides.items()}}
        settings = load(None, {}, {"upstreams.main.base_url": up.url, **given})
        async with engine.database() as url:
            app = Application(settings, Drain(), store=from_url(url))
            await app.start()
            transport = httpx.ASGITransport(Fence(app))
            try:
                async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8400") as client:
                    yield Wired(app=app, up=up, client=client)
            finally:
                await app.stop()


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


@dataclass
class Exchange:
    """One request whose answer is read as it comes, and whose client can leave."""

    app: Any
    path: str = "/v1/chat/completions"
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    sent: asyncio.Queue[dict[str, Any]] = field(default_factory=asyncio.Queue)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    _asked: bool = False

    def start(self) -> Exchange:
        self.task = asyncio.get_running_loop().create_task(Fence(self.app)(self._scope(), self._receive, self.sent.put))
        return self

    def leave(self) -> None:
        self.left.set()

    async def head(self) -> tuple[int, dict[str, str]]:
        message = await self.next()
        assert message["type"] == "http.response.start"
        return message["status"], {name.decode(): value.decode() for name, value in message["headers"]}

    async def next(self) -> dict[str, Any]:
        async with asyncio.timeout(BOUND):
            return await self.sent.get()

    async def piece(self) -> bytes:
        message = await self.next()
        assert message["type"] == "http.response.body"
        body: bytes = message["body"]
        return body

    async def rest(self) -> bytes:
        """The body from here to its end."""
        pieces: list[bytes] = []
        while True:
            message = await self.next()
            pieces.append(message["body"])
            if not message.get("more_body"):
                return b"".join(pieces)

    async def done(self) -> None:
        assert self.task is not None
        async with asyncio.timeout(BOUND):
            await self.task

    async def _receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": self.body, "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}

    def _scope(self) -> dict[str, Any]:
        headers = {"host": "127.0.0.1:8400", "content-type": "application/json", **self.headers}
        return {
            "type": "http",
            "method": self.method,
            "path": self.path,
            "raw_path": self.path.encode(),
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }


def chat(app: Any, value: Mapping[str, Any], **headers: str) -> Exchange:
    """A chat request that has begun."""
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return Exchange(app, body=json.dumps(value).encode(), headers=named).start()
