"""What a provider may do with a request, and the gateway before it whose books are balanced at the end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from proxy.core.usage import UsageRow
from tests.fakes import Script, ScriptedUpstream, SeenRequest, chat_chunks, chat_reply, error_body, usage
from tests.scenarios.gate import Gate, gate, user

HELLO = [user("Hello")]
Act = Callable[[SeenRequest, Script], Awaitable[None]]
"""What a provider does with a request."""


async def well(request: SeenRequest, reply: Script) -> None:
    told = usage(11, 3)
    if request.stream:
        await reply.sse(chat_chunks("Well.", usage=told))
    else:
        await reply.json(200, chat_reply("Well.", usage=told))


def refusing(status: int, headers: dict[str, str] | None = None, message: str = "no") -> Act:
    async def act(_: SeenRequest, reply: Script) -> None:
        await reply.json(status, error_body(message), headers)

    return act


def whole(body: bytes, kind: str = "application/json", **headers: str) -> Act:
    async def act(_: SeenRequest, reply: Script) -> None:
        told = {name.replace("_", "-"): value for name, value in headers.items()}
        await reply.json(200, body, {"content-type": kind, **told})

    return act


def streaming(*pieces: Any, end: bool = True) -> Act:
    """A stream of these payloads; bytes stand as they are, without `[DONE]` unless it is one of them."""

    async def act(_: SeenRequest, reply: Script) -> None:
        await reply.head(200, {"content-type": "text/event-stream"})
        for piece in pieces:
            await reply.event(piece)
        if end:
            await reply.end()
        else:
            await reply.reset()

    return act


@asynccontextmanager
async def weir(act: Act, **more: Any) -> AsyncIterator[tuple[Gate, ScriptedUpstream]]:
    async with ScriptedUpstream(act) as up, gate(up.url, **more) as opened:
        yield opened, up
        await balanced(opened, up)


async def balanced(opened: Gate, up: ScriptedUpstream) -> list[UsageRow]:
    """As many rows as the provider saw calls, each closed, none twice."""
    rows = await opened.rows()
    assert len(rows) == len(up.ledger)
    assert all(row.status not in ("open", "unknown") and row.duration is not None for row in rows)
    assert len({row.id for row in rows}) == len(rows)
    return rows
