"""The whole application in this process, before a provider on a real socket: what every scenario here is played on.

    async with ScriptedUpstream(handler) as up, gate(up.url, window=8_192) as weir:
        answer = await weir.ask([user("Hello")], stream=True)
        answer.status, answer.text, answer.context, weir.rows(), weir.stored()

The client's side is httpx's ASGI transport (no listening socket); the way to the provider is the one that ships.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import msgspec

from proxy.app import Application
from proxy.catalogue import ranks_folder
from proxy.core.usage import UsageRow
from proxy.server.lifecycle import Drain
from proxy.settings import load
from proxy.store import UsageQuery
from proxy.store.address import from_url
from proxy.store.owned import KeepingStore
from proxy.upstream.counter import Counter
from tests import engine
from tests.fakes import ScriptedUpstream
from tests.server.wired import BUILT_IN

Wire = dict[str, Any]
"""A message as it stands in a request."""

TABLES = ("conversation", "reply", "compaction", "hidden", "result", "usage")


def user(text: str) -> Wire:
    return {"role": "user", "content": text}


def system(text: str) -> Wire:
    return {"role": "system", "content": text}


def assistant(text: str | None, *calls: Wire) -> Wire:
    return {"role": "assistant", "content": text, **({"tool_calls": list(calls)} if calls else {})}


def tool(id: str, text: str) -> Wire:
    return {"role": "tool", "tool_call_id": id, "content": text}


def dialogue(turns: int, *, words: int = 60, name: str = "harbour") -> list[Wire]:
    """`turns` settled turns of plain talk, each of about 2.7 x `words` tokens, all different and reproducible."""
    made: list[Wire] = []
    for turn in range(turns):
        said = " ".join(f"{name}{turn}x{place}" for place in range(words // 2))
        made += [user(f"Question {turn} about {said}?"), assistant(f"Answer {turn}: {said}.")]
    return made


class Answer:
    """What the client got: one JSON body, or the frames of a stream."""

    def __init__(self, response: httpx.Response) -> None:
        self.status = response.status_code
        self.headers = response.headers
        self.body = response.content
        self.streamed = response.headers.get("content-type", "").startswith("text/event-stream")

    @property
    def json(self) -> Wire:
        value: Wire = json.loads(self.body)
        return value

    @property
    def payloads(self) -> list[bytes]:
        """The data of each frame, `[DONE]` included; comments are left out."""
        lines = self.body.replace(b"\r\n", b"\n").split(b"\n")
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]

    @property
    def frames(self) -> list[Wire]:
        return [json.loads(data) for data in self.payloads if data != b"[DONE]"]

    @property
    def done(self) -> bool:
        return b"[DONE]" in self.payloads

    @property
    def error(self) -> Wire | None:
        """The error object, of a body or inside a stream."""
        found = self.frames if self.streamed else [self.json]
        return next((value["error"] for value in found if value.get("error")), None)

    @property
    def code(self) -> str | None:
        return self.error.get("code") if self.error else None

    @property
    def message(self) -> Wire:
        """The assistant message as an SDK would put it together, fit to be sent again."""
        if not self.streamed:
            said: Wire = self.json["choices"][0]["message"]
            return {name: value for name, value in said.items() if value is not None or name == "content"}
        text = ""
        calls: dict[int, Wire] = {}
        for delta in self._deltas():
            text += delta.get("content") or ""
            for part in delta.get("tool_calls") or ():
                call = calls.setdefault(part["index"], {"id": "", "type": "function", "function": _blank()})
                call["id"] = part.get("id") or call["id"]
                for name in ("name", "arguments"):
                    call["function"][name] += (part.get("function") or {}).get(name) or ""
        return assistant(text or None, *(calls[index] for index in sorted(calls)))

    @property
    def text(self) -> str:
        return self.message["content"] or ""

    @property
    def finish(self) -> str | None:
        """The finish reason, None where the client was given none."""
        choices = self._choices() if self.streamed else self.json["choices"]
        return next((choice["finish_reason"] for choice in choices if choice.get("finish_reason")), None)

    @property
    def usages(self) -> list[Wire]:
        found = self.frames if self.streamed else [self.json]
        return [value["usage"] for value in found if value.get("usage")]

    @property
    def context(self) -> dict[str, str]:
        """`x-weirgate-context`, taken apart; where the head had gone before, the comment at the end of the stream."""
        stated = self.headers.get("x-weirgate-context", "")
        late = re.findall(rb"(?m)^: weirgate (tokens=.*)$", self.body) if self.streamed else []
        stated = late[-1].decode() if late else stated
        return dict(part.strip().split("=", 1) for part in stated.split(";") if part)

    @property
    def compaction(self) -> str:
        return self.context["compaction"]

    @property
    def conversation(self) -> str:
        return str(self.headers["x-weirgate-conversation"])

    def _choices(self) -> list[Wire]:
        return [choice for frame in self.frames for choice in frame.get("choices") or ()]

    def _deltas(self) -> list[Wire]:
        return [choice.get("delta") or {} for choice in self._choices()]


def _blank() -> Wire:
    return {"name": "", "arguments": ""}


class Gate:
    """A running application and a client of it."""

    def __init__(self, app: Application, client: httpx.AsyncClient, store: KeepingStore, url: str) -> None:
        self.app = app
        self.client = client
        self.store = store
        self._url = url

    async def ask(
        self,
        messages: Sequence[Wire],
        *,
        headers: Mapping[str, str] | None = None,
        model: str = "scripted",
        **more: Any,
    ) -> Answer:
        """One chat completion; `more` are further members of the body."""
        return await self.send({"model": model, "messages": list(messages), **more}, headers=headers)

    async def send(self, body: Wire | bytes, *, headers: Mapping[str, str] | None = None) -> Answer:
        data = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
        told = {"content-type": "application/json", **(headers or {})}
        return Answer(await self.client.post("/v1/chat/completions", content=data, headers=told))

    async def get(self, path: str) -> httpx.Response:
        return await self.client.get(path)

    async def rows(self) -> list[UsageRow]:
        """Every usage row, oldest first, once all that outlives its request is done."""
        assert self.app._gateway is not None
        await self.app._gateway.drain()
        found = [row for row in await self.store.usage(UsageQuery(limit=100_000)) if isinstance(row, UsageRow)]
        return sorted(found, key=lambda row: (row.opened_at, row.id))

    async def stored(self) -> dict[str, int]:
        """How many rows each table holds."""
        return {name: (await self.read(f"SELECT count(*) FROM {name}"))[0][0] for name in TABLES}

    async def read(self, sql: str) -> list[tuple[Any, ...]]:
        """What stands in the tables."""
        return await engine.read(self.store, self._url, sql)

    async def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        text = (await self.get("/metrics")).text
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))


class _Shared(Counter):
    """Outlives the applications that use it."""

    def close(self) -> None:
        pass


@cache
def counting() -> Counter:
    """One counter for all applications of a run: reading the vocabulary takes it a third of a second."""
    return _Shared(ranks_folder())


@asynccontextmanager
async def gate(
    upstream: str,
    *,
    window: int | None = None,
    file: Path | None = None,
    store: KeepingStore | None = None,
    policy: str | None = None,
    folder: Path | None = None,
    keys: Sequence[tuple[str, str, str] | tuple[str, str, str, Sequence[str]]] = (),
    api_key: str | None = None,
    **overrides: Any,
) -> AsyncIterator[Gate]:
    """The application in front of `upstream`, until the block ends.

    `file` is the store's file (None: in memory); `policy` the text of a default.yaml, written to `folder`; `keys` are
    (tenant, id, secret) and, where they may not ask for all of them, models; `overrides` further settings, `__` for a
    dot. No model is asked for a narrative unless the policy says so.
    """
    stated: dict[str, Any] = {"upstreams.main.base_url": upstream, "upstreams.main.api_key": api_key, "window": window}
    stated["policies"] = BUILT_IN
    stated |= {name.replace("__", "."): value for name, value in overrides.items()}
    if keys:
        stated["keys"] = [dict(zip(("tenant", "id", "secret", "models"), key, strict=False)) for key in keys]
    if policy is not None:
        assert folder is not None
        (folder / "policies").mkdir(exist_ok=True)
        asked = "" if "summary:" in policy else "\nsummary: {model: false}\n"
        (folder / "policies" / "default.yaml").write_text(policy + asked)
        stated["policies"] = folder / "policies"
    async with engine.database(file) as url:
        opened = store or from_url(url)
        app = Application(load(None, {}, stated), Drain(), opened)
        app._counter = counting()
        await app.start()
        try:
            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=None) as client:
                yield Gate(app, client, opened, url)
        finally:
            await app.stop()


def shown(message: Wire) -> str:
    """All that a model reads of a message on the wire: prose and calls."""
    content = message.get("content")
    parts = [content] if isinstance(content, str) else [part.get("text") or "" for part in content or ()]
    for call in message.get("tool_calls") or ():
        parts += [call["function"]["name"], call["function"]["arguments"]]
    return "\n".join(parts)


def prompts(up: ScriptedUpstream) -> list[list[Wire]]:
    """The messages of every request that the provider saw."""
    return [entry.request.messages for entry in up.ledger]


def raw_messages(body: bytes) -> tuple[bytes, ...]:
    """The `messages` of an upstream body as they stand in it, byte for byte."""
    return tuple(bytes(raw) for raw in msgspec.json.decode(body, type=_Body).messages)


class _Body(msgspec.Struct):
    messages: list[msgspec.Raw]
