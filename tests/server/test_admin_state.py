"""What the operator is shown of upstreams and of the configuration: how they do, and nothing that is secret."""

from __future__ import annotations

import json

from tests.fakes import Script, SeenRequest, chat_reply, error_body, usage
from tests.server.wired import ADMIN, HELLO, bearer, wired

CLIENT, PROVIDER, HEADER = "client-secret-of-this-test", "provider-secret-of-this-test", "header-secret-of-this-test"


async def hello(request: SeenRequest, reply: Script) -> None:
    await reply.json(200, chat_reply("Hello.", usage=usage(9, 3)))


async def test_the_configuration_is_told_without_its_secrets() -> None:
    given = {
        "keys": [{"id": "k", "tenant": "a", "secret": CLIENT, "limits": {"cost_per_day": 2}}],
        "admin": {"secret": ADMIN},
        "upstreams__main__api_key": PROVIDER,
        "upstreams__main__headers": {"x-special": HEADER},
        "store__url": "postgresql://weir:database-secret-of-this-test@db/weirgate",
    }
    async with wired(hello, **given) as weir:
        got = await weir.client.get("/v1/weirgate/config", headers=bearer(ADMIN))
        assert (await weir.client.get("/v1/weirgate/config", headers=bearer(CLIENT))).status_code == 401
    told = got.json()
    assert "secret-of-this-test" not in got.text and json.dumps(told).count('"***"') == 4
    assert told["store"]["url"] == "postgresql://db/weirgate"
    assert told["upstreams"]["main"]["base_url"] == weir.up.url
    assert told["upstreams"]["main"]["breaker"]["pause"] == 15.0
    assert told["keys"][0]["limits"]["cost_per_day"] == 2.0
    assert told["policies_hash"] == weir.app.watch.current.hash


async def test_how_each_upstream_does_is_told() -> None:
    async def failing(request: SeenRequest, reply: Script) -> None:
        await reply.json(500, error_body("it went wrong"))

    async with wired(failing, admin={"secret": ADMIN}, upstreams__main__breaker={"consecutive": 2}) as weir:
        path = "/v1/weirgate/upstreams"
        (before,) = (await weir.client.get(path, headers=bearer(ADMIN))).json()["data"]
        for _ in range(3):
            await weir.client.post("/v1/chat/completions", json=HELLO)
        (after,) = (await weir.client.get(path, headers=bearer(ADMIN))).json()["data"]
        row = (await weir.rows())[0]
    assert (before["state"], before["calls"], before["last_error"]) == ("closed", 0, None)
    assert (after["name"], after["state"], after["in_flight"]) == ("main", "open", 0)
    assert (after["calls"], after["failures"], after["last_error"]) == (2, 2, "upstream_error")
    assert row.duration is not None and after["last_error_at"] == row.opened_at + row.duration
    assert after["learned"] == []
