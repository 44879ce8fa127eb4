"""An upstream that fails is left alone: over the whole application, by a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.fakes import BOUND, Script, SeenRequest, chat_chunks, chat_reply, error_body, usage
from tests.server.wired import HELLO, Wired, chat, wired

CHAT = "/v1/chat/completions"
QUICK: dict[str, Any] = {"upstreams__main__breaker": {"consecutive": 3, "pause": 15}, "upstreams__main__attempts": 1}


class Provider:
    """Answers as it is told to."""

    def __init__(self) -> None:
        self.mood: Callable[[SeenRequest, Script], Any] = well

    async def __call__(self, request: SeenRequest, reply: Script) -> None:
        await self.mood(request, reply)


async def well(request: SeenRequest, reply: Script) -> None:
    await reply.json(200, chat_reply("Hello.", usage=usage(9, 3)))


def status(code: int) -> Callable[[SeenRequest, Script], Any]:
    async def failing(request: SeenRequest, reply: Script) -> None:
        await reply.json(code, error_body("it went wrong"))

    return failing


async def reset(request: SeenRequest, reply: Script) -> None:
    await reply.reset()


async def broken_off(request: SeenRequest, reply: Script) -> None:
    await reply.sse(chat_chunks("Hello.")[:2], done=False)


class Hands:
    """A clock that stands still until the test moves it."""

    def __init__(self, weir: Wired) -> None:
        self.now = 1000.0
        weir.app.places.health["main"]._clock = lambda: self.now
        weir.app._gateway.clock = lambda: self.now  # type: ignore[union-attr]


async def ask(weir: Wired, **more: Any) -> httpx.Response:
    return await weir.client.post(CHAT, json={**HELLO, **more})


def state(weir: Wired) -> float:
    return weir.app.metrics.breaker_state.labels("main").value


@pytest.mark.parametrize("mood", [status(500), status(503), status(502), reset])
async def test_an_upstream_that_fails_is_not_asked_any_more_and_tried_again_after_the_pause(mood: Any) -> None:
    provider = Provider()
    async with wired(provider, **QUICK) as weir:
        hands = Hands(weir)
        provider.mood = mood
        for _ in range(3):
            assert (await ask(weir)).status_code in (502, 503)
        assert (len(weir.up.ledger), state(weir)) == (3, 2)
        got = await ask(weir)
        error = got.json()["error"]
        assert (got.status_code, error["type"], error["code"]) == (503, "server_error", "circuit_open")
        assert (got.headers["retry-after"], got.headers["x-should-retry"]) == ("15", "true")
        assert len(weir.up.ledger) == 3 == len(await weir.rows())  # nothing was sent, so there is no row
        provider.mood = well
        hands.now += 15
        assert (await ask(weir)).status_code == 200
        assert (len(weir.up.ledger), state(weir)) == (4, 0)


async def test_a_trial_that_fails_leaves_it_alone_for_another_pause() -> None:
    provider = Provider()
    async with wired(provider, **QUICK) as weir:
        hands = Hands(weir)
        provider.mood = status(500)
        for _ in range(5):
            await ask(weir)
        hands.now += 15
        assert (await ask(weir)).json()["error"]["code"] == "upstream_error"
        assert (await ask(weir)).json()["error"]["code"] == "circuit_open"
        assert len(weir.up.ledger) == 4


async def test_one_trial_at_a_time_and_its_head_is_enough() -> None:
    provider, release = Provider(), asyncio.Event()

    async def slow(request: SeenRequest, reply: Script) -> None:
        await reply.head(200, {"content-type": "text/event-stream"})
        for chunk in chat_chunks("Hello.", usage=usage(9, 3)):
            await reply.event(chunk)
        await reply.hang(release)
        await reply.event(b"[DONE]")
        await reply.end()

    async def silent(request: SeenRequest, reply: Script) -> None:
        await reply.hang()

    async with wired(provider, **QUICK) as weir:
        hands = Hands(weir)
        provider.mood = status(500)
        for _ in range(3):
            await ask(weir)
        hands.now += 15
        provider.mood = silent
        trial = chat(weir.app, HELLO)
        await weir.up.arrived(4)
        assert state(weir) == 1 and (await ask(weir)).json()["error"]["code"] == "circuit_open"
        trial.leave()
        await trial.done()
        assert state(weir) == 1  # nobody knows how it would have ended
        provider.mood = slow
        stream = chat(weir.app, {**HELLO, "stream": True})
        async with asyncio.timeout(BOUND):
            while state(weir) != 0:
                await asyncio.sleep(0)
        provider.mood = well
        assert (await ask(weir)).status_code == 200
        release.set()
        await stream.done()


@pytest.mark.parametrize("code", [400, 401, 404, 429])
async def test_what_a_provider_says_of_requests_and_its_rate_limits_open_nothing(code: int) -> None:
    provider = Provider()
    async with wired(provider, **QUICK) as weir:
        provider.mood = status(code)
        for _ in range(8):
            await ask(weir)
        assert (len(weir.up.ledger), state(weir)) == (8, 0)
        condition = weir.app.places.health["main"].condition()
    assert (condition.failures, condition.rate_limited) == (0, 8 if code == 429 else 0)


async def test_streams_that_break_off_count_as_failures() -> None:
    provider = Provider()
    async with wired(provider, **QUICK) as weir:
        provider.mood = broken_off
        for _ in range(3):
            assert "upstream_invalid_response" in (await ask(weir, stream=True)).text
        assert state(weir) == 2


async def test_clients_that_leave_open_nothing() -> None:
    async def silent(request: SeenRequest, reply: Script) -> None:
        await reply.hang()

    async with wired(silent, **QUICK) as weir:
        for number in range(5):
            asked = chat(weir.app, HELLO)
            await weir.up.arrived(number + 1)
            asked.leave()
            await asked.done()
        assert state(weir) == 0


async def test_a_breaker_that_is_off_never_opens() -> None:
    provider = Provider()
    provider.mood = status(500)
    async with wired(provider, upstreams__main__breaker="off", upstreams__main__attempts=1) as weir:
        for _ in range(25):
            assert (await ask(weir)).json()["error"]["code"] == "upstream_error"
        assert weir.app.places.health["main"].condition().state == "off"


async def test_embeddings_ask_it_too() -> None:
    provider = Provider()
    async with wired(provider, **QUICK) as weir:
        provider.mood = status(500)
        answers = [await weir.client.post("/v1/embeddings", json={"model": "m", "input": "x"}) for _ in range(4)]
    assert [got.json()["error"]["code"] for got in answers] == ["upstream_error"] * 3 + ["circuit_open"]
