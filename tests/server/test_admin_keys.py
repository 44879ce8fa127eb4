"""The operator's routes for keys: limits set while the server runs, stops, expiry, and what is shown of a key."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.fakes import Script, SeenRequest, chat_reply, usage
from tests.server.wired import ADMIN, HELLO, Wired, bearer, wired

KEYS = "/v1/weirgate/keys"
SECRET, OTHER = "client-secret-of-this-test", "another-secret-of-this-test"
CONFIGURED: dict[str, Any] = {
    "keys": [
        {"id": "k", "tenant": "a", "secret": SECRET, "limits": {"requests_per_day": 7}},
        {"id": "o", "tenant": "b", "secret": OTHER},
    ],
    "admin": {"secret": ADMIN},
}


async def hello(request: SeenRequest, reply: Script) -> None:
    await reply.json(200, chat_reply("Hello.", usage=usage(9, 3)))


async def ask(weir: Wired, secret: str = SECRET) -> httpx.Response:
    return await weir.client.post("/v1/chat/completions", json=HELLO, headers=bearer(secret))


async def patch(weir: Wired, path: str, body: object) -> httpx.Response:
    return await weir.client.patch(f"/v1/weirgate/{path}", json=body, headers=bearer(ADMIN))


async def get(weir: Wired, path: str) -> Any:
    return (await weir.client.get(f"/v1/weirgate/{path}", headers=bearer(ADMIN))).json()


async def test_limits_of_a_configured_key_are_changed_one_by_one_and_taken_back() -> None:
    async with wired(hello, **CONFIGURED) as weir:
        got = await patch(weir, "keys/a/k", {"limits": {"requests_per_minute": 1, "cost_per_day": 0.25}})
        assert got.status_code == 200
        assert got.json()["limits"] == {"requests_per_day": 7, "requests_per_minute": 1, "cost_per_day": 0.25}
        assert [(await ask(weir)).status_code for _ in range(2)] == [200, 429]
        got = await patch(weir, "keys/a/k", {"limits": {"requests_per_minute": None, "requests_per_day": 9}})
        assert got.json()["limits"] == {"requests_per_day": 9, "cost_per_day": 0.25}
        assert (await ask(weir)).status_code == 200
        got = await patch(weir, "keys/a/k", {"limits": {"requests_per_day": None, "cost_per_day": None}})
        assert got.json()["limits"] == {"requests_per_day": 7}


async def test_a_new_key_has_its_limits_from_its_first_request_on() -> None:
    async with wired(hello, **CONFIGURED) as weir:
        body = {"tenant": "c", "id": "new", "limits": {"requests_per_minute": 1}}
        made = (await weir.client.post(KEYS, json=body, headers=bearer(ADMIN))).json()
        assert made["limits"] == {"requests_per_minute": 1} and made["state"] == "open"
        assert [(await ask(weir, made["secret"])).status_code for _ in range(2)] == [200, 429]
        again = await weir.client.post(KEYS, json={**body, "limits": {}}, headers=bearer(ADMIN))
        assert again.json()["error"]["code"] == "key_exists"
        assert (await get(weir, "keys/c/new"))["limits"] == {"requests_per_minute": 1}


async def test_a_stopped_key_opens_nothing_at_once_and_says_so_to_people_and_programs() -> None:
    async with wired(hello, **CONFIGURED) as weir:
        assert (await patch(weir, "keys/a/k", {"limits": {"stopped": True}})).json()["state"] == "stopped"
        got = await ask(weir)
        assert (got.status_code, got.json()["error"]["code"], got.headers["x-should-retry"]) == (
            403,
            "key_stopped",
            "false",
        )
        assert (await weir.client.get("/v1/models", headers=bearer(SECRET))).status_code == 403
        assert (await ask(weir, OTHER)).status_code == 200
        assert (await patch(weir, "keys/a/k", {"limits": {"stopped": None}})).json()["state"] == "open"
        assert (await ask(weir)).status_code == 200


async def test_a_tenant_is_stopped_whole_and_no_other() -> None:
    async with wired(hello, **CONFIGURED) as weir:
        assert (await patch(weir, "tenants/a", {"stopped": True})).json() == {"tenant": "a", "stopped": True}
        await patch(weir, "keys/a/k", {"limits": {"stopped": False}})
        assert [(await ask(weir)).status_code, (await ask(weir, OTHER)).status_code] == [403, 200]
        await patch(weir, "tenants/a", {"stopped": False})
        assert (await ask(weir)).status_code == 200
        assert (await patch(weir, "tenants/none", {"stopped": True})).status_code == 404


async def test_a_key_whose_time_is_over_is_refused_as_a_wrong_one() -> None:
    async with wired(hello, **CONFIGURED) as weir:
        now = weir.app._gateway.wall()  # type: ignore[union-attr]
        assert (await patch(weir, "keys/a/k", {"limits": {"expires": now + 3600}})).json()["state"] == "open"
        assert weir.app.places.keys().until == now + 3600
        assert (await ask(weir)).status_code == 200
        assert (await patch(weir, "keys/a/k", {"limits": {"expires": now - 1}})).json()["state"] == "expired"
        got = await ask(weir)
    assert (got.status_code, got.json()["error"]["code"]) == (401, "invalid_api_key")


async def test_what_a_key_used_and_when_is_shown() -> None:
    async with wired(hello, **CONFIGURED) as weir:
        assert (await get(weir, "keys/a/k"))["last_used"] is None
        assert (await ask(weir)).status_code == 200
        shown = await get(weir, "keys/a/k")
        assert shown["today"] == {"requests": 1, "tokens": 12, "cost": 0}
        (row,) = await weir.rows()
        assert 0 <= shown["last_used"] - row.opened_at < 60
        await weir.app.keyring.mark_used()
        ((key, at),) = [(each.key, each.last_used) for each in await weir.app.store.standings()]
        assert key == "k" and at is not None and 0 <= at - row.opened_at < 60
        assert (await get(weir, "keys"))["data"][0]["last_used"] == at


@pytest.mark.parametrize(
    ("limits", "code", "param"),
    [
        ({"requests_per_minute": -1}, "out_of_range", "limits.requests_per_minute"),
        ({"requests_per_minute": 1.5}, "out_of_range", "limits.requests_per_minute"),
        ({"requests_per_minute": "1"}, "invalid_type", "limits.requests_per_minute"),
        ({"requests_per_minute": True}, "invalid_type", "limits.requests_per_minute"),
        ({"cost_per_day": -0.1}, "out_of_range", "limits.cost_per_day"),
        ({"cost_per_day": 1e300}, "out_of_range", "limits.cost_per_day"),
        ({"stopped": 1}, "invalid_type", "limits.stopped"),
        ({"expires": "tomorrow"}, "invalid_type", "limits.expires"),
        ({"requests": 1}, "unknown_parameter", "limits.requests"),
    ],
)
async def test_a_limit_that_is_none_is_refused_and_changes_nothing(
    limits: dict[str, object], code: str, param: str
) -> None:
    async with wired(hello, **CONFIGURED) as weir:
        got = await patch(weir, "keys/a/k", {"limits": limits})
        assert (got.status_code, got.json()["error"]["code"], got.json()["error"]["param"]) == (400, code, param)
        assert await weir.app.store.standings() == ()


async def test_a_key_of_another_tenant_is_no_key() -> None:
    async with wired(hello, **CONFIGURED) as weir:
        for path in ("keys/b/k", "keys/a/o", "keys/c/k"):
            assert (await patch(weir, path, {"limits": {}})).status_code == 404
        assert (await patch(weir, "keys/a/k", {"models": []})).status_code == 400
