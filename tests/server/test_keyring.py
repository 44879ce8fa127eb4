"""Keys in force: what cannot be read leaves them as they are, and uses are kept once a minute."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.core.errors import StoreUnavailable
from proxy.core.quota import Quota
from tests.fakes import Script, SeenRequest, chat_reply
from tests.server.wired import HELLO, Wired, bearer, wired

SECRET = "client-secret-of-this-test"
GIVEN: dict[str, Any] = {"keys": [{"id": "k", "tenant": "a", "secret": SECRET}]}


async def hello(request: SeenRequest, reply: Script) -> None:
    await reply.json(200, chat_reply("Hello."))


async def ask(weir: Wired) -> int:
    return (await weir.client.post("/v1/chat/completions", json=HELLO, headers=bearer(SECRET))).status_code


async def test_a_key_is_closed_when_its_time_is_over_though_nobody_changed_anything() -> None:
    async with wired(hello, **GIVEN) as weir:
        keyring = weir.app.keyring
        await weir.app.store.set_quota("a", "k", Quota(expires=4e9))
        await keyring.read()
        await keyring.look_after()
        assert await ask(weir) == 200
        await weir.app.store.set_quota("a", "k", Quota(expires=1e9))
        await keyring.look_after()
        assert await ask(weir) == 200  # nobody looked: the next end that was known lies far ahead
        keyring._until = 1e9
        await keyring.look_after()
        assert await ask(weir) == 401


async def test_a_store_that_is_away_leaves_the_keys_as_they_are_and_is_asked_again() -> None:
    async with wired(hello, **GIVEN) as weir:
        keyring, standings = weir.app.keyring, weir.app.store.standings

        async def away() -> Any:
            raise StoreUnavailable("away")

        await weir.app.store.set_quota("a", "k", Quota(expires=1e9))
        weir.app.store.standings = away  # type: ignore[method-assign]
        keyring._until = 1e9
        await keyring.look_after()
        with pytest.raises(StoreUnavailable):
            await keyring.again()
        assert await ask(weir) == 200
        weir.app.store.standings = standings  # type: ignore[method-assign]
        await keyring.look_after()
        assert await ask(weir) == 401


async def test_uses_are_kept_once_a_minute_and_only_of_keys_that_exist() -> None:
    async with wired(hello, **GIVEN) as weir:
        keyring = weir.app.keyring
        assert keyring.metering is not None
        await ask(weir)
        keyring.metering.seen.add(("a", "gone"))
        await keyring.look_after()
        assert await weir.app.store.standings() == ()
        keyring._marked -= 60.0
        await keyring.look_after()
        assert [each.key for each in await weir.app.store.standings()] == ["k"]
        assert keyring.metering.seen == set()
