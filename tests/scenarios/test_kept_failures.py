"""Turns of conversations that the gateway keeps before a store that gives out and a key that has spent its limits:
nothing is acknowledged that is not kept, nothing stays busy for ever, and a request that was refused leaves nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from proxy.core.errors import StoreUnavailable
from proxy.core.quota import Quota
from proxy.store.sqlite import SqliteStore
from proxy.turn import HELD
from tests.fakes import BOUND, ScriptedUpstream
from tests.scenarios.gate import Gate, Wire, dialogue, gate
from tests.scenarios.skilled import saying, scripted
from tests.scenarios.speaking import held
from tests.scenarios.test_conversation_items import PATH, Kept, kept
from tests.scenarios.test_kept_interruptions import ask, desk, said
from tests.scenarios.test_kept_pauses import later

both = pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
FULL = StoreUnavailable("The store cannot be written.")
SECRET = "client-secret-of-this-test"


class Failing:
    """Conversations whose verbs fail, each as often as is said."""

    def __init__(self, of: Any) -> None:
        self._of = of
        self.left: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        if self.left.get(name, 0) == 0:
            return getattr(self._of, name)
        self.left[name] -= 1
        if name == "finish":
            failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            failed.set_exception(FULL)
            return lambda *given, **more: failed
        return self._fail

    async def _fail(self, *given: Any, **more: Any) -> None:
        raise FULL


class Store(SqliteStore):
    def __init__(self) -> None:
        super().__init__(":memory:")
        self.kept = Failing(self.conversations)
        self.conversations = self.kept


@asynccontextmanager
async def failing(*acts: Any) -> AsyncIterator[tuple[Gate, ScriptedUpstream, Failing]]:
    store = Store()
    async with ScriptedUpstream(scripted(*acts)) as up, gate(up.url, store=store) as weir:
        yield weir, up, store.kept


@both
async def test_a_turn_that_cannot_be_begun_asks_nobody(stream: bool) -> None:
    async with failing(saying("Well.")) as (weir, up, store):
        talk = await kept(weir, stream=stream, model="scripted")
        for verb in ("find", "begin"):
            store.left = {verb: 1}
            answer = await ask(talk, "Hello")
            assert (answer.status, answer.code) == (503, "storage_unavailable")
        assert up.ledger == [] and await said(talk) == []
        assert (await ask(talk, "Hello")).text == "Well."


@both
@pytest.mark.parametrize("times", [1, 2])
async def test_an_answer_that_cannot_be_kept_is_not_acknowledged(stream: bool, times: int) -> None:
    async with failing(saying("Well.")) as (weir, up, store):
        talk = await kept(weir, stream=stream, model="scripted")
        store.left = {"finish": times}
        answer = await ask(talk, "Hello")
        assert (answer.done, answer.code) == (False, "storage_unavailable")
        if times == 2:  # the end of the turn could not be written either: it is over when nobody renews it
            assert (await ask(talk, "Hello")).code == "conversation_busy"
            later(weir, HELD + 1)
        again = await ask(talk, "Hello")
        assert again.text == "Well."
        assert len(up.ledger) == 2
        assert (await said(talk))[-1] == ("assistant", "Well.")
        assert [text for role, text in await said(talk) if role == "user"] == ["Hello"] * (1 + (stream and times == 1))


async def test_a_sign_of_life_that_fails_costs_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.turn._RENEWED", 0.01)
    slow, going, release = held(saying("Well."))
    async with failing(slow) as (weir, _, store), asyncio.timeout(BOUND):
        talk = await kept(weir, model="scripted")
        store.left = {"renew": 3}
        first = ask(talk, "Hello")
        await going.wait()
        while store.left["renew"]:
            await asyncio.sleep(0.01)
        release.set()
        assert (await first).text == "Well."


async def test_the_whole_conversation_counts_against_the_limits_of_its_key() -> None:
    alone = SqliteStore(":memory:")  # where replicas share a store, limits set by hand hold until keys are read again
    async with ScriptedUpstream(scripted(saying("Well."))) as up, gate(up.url, store=alone) as weir:
        talk = await kept(weir, model="scripted")
        await talk.put(dialogue(8))
        await limited(weir, 2000)  # the history alone is about 2,600 tokens
        refused = await ask(talk, "And now?")
        assert (refused.status, refused.code) == (429, "rate_limit_exceeded")
        assert up.ledger == [] and len(await said(talk)) == 16
        assert (await compacted(talk))["error"]["code"] == "rate_limit_exceeded"
        await limited(weir, 20_000)
        assert (await ask(talk, "And now?")).text == "Well."


async def limited(weir: Gate, tokens: int) -> None:
    assert weir.app._gateway is not None
    await weir.app._gateway.metering.take({("local", "open"): Quota(tokens_per_minute=tokens)})


async def compacted(talk: Kept) -> Wire:
    value: Wire = (await talk.weir.client.post(f"{PATH}/{talk.id}/compact", json={"model": "scripted"})).json()
    return value


async def test_a_key_with_few_streams_has_no_more_of_them_by_leaving_each() -> None:
    slow, going, release = held(saying("Well."))
    limited: Any = {"keys": [("t", "k", SECRET)], "key_limits": {"streams": 1}}
    async with ScriptedUpstream(scripted(slow)) as up, gate(up.url, **limited) as weir, asyncio.timeout(BOUND):
        weir.client.headers["authorization"] = f"Bearer {SECRET}"
        one, two = [await kept(weir, model="scripted") for _ in range(2)]
        first = ask(one, "Hello")
        await going.wait()
        first.cancel()
        await asyncio.wait([first])
        assert (await ask(two, "Hello")).status == 429
        release.set()
        await weir.rows()
        assert (await ask(two, "Hello")).text == "Well."
        assert desk(weir).running == {}


async def test_a_conversation_goes_on_with_one_answer() -> None:
    async with ScriptedUpstream(scripted(saying("Well."))) as up, gate(up.url) as weir:
        talk = await kept(weir, model="scripted")
        refused = await ask(talk, "Hello", n=2)
        assert (refused.status, refused.code) == (400, "out_of_range")
        assert up.ledger == [] and await said(talk) == []
        assert (await ask(talk, "Hello", n=1)).text == "Well."
