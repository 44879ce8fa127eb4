"""GET /v1/models: configured names, what an upstream offers, and the window of each."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes import Script, SeenRequest, chat_reply
from tests.server.wired import bearer, wired

KEY = "client-secret-of-this-test"


def offering(*names: Any) -> Any:
    async def answer(request: SeenRequest, reply: Script) -> None:
        if request.path.endswith("/models"):
            await reply.json(200, {"object": "list", "data": [{"id": name, "created": 7} for name in names]})
        else:
            await reply.json(200, chat_reply("x"))

    return answer


async def listed(weir: Any, **headers: str) -> dict[str, dict[str, Any]]:
    got = await weir.client.get("/v1/models", headers=headers)
    assert got.status_code == 200 and got.json()["object"] == "list"
    return {entry["id"]: entry for entry in got.json()["data"]}


async def test_without_configured_models_the_upstreams_own_are_listed_with_their_windows() -> None:
    async with wired(offering("gpt-4o", "nobody-knows-this")) as weir:
        found = await listed(weir)
    assert [*found] == ["gpt-4o", "nobody-knows-this"]
    assert found["gpt-4o"]["context_length"] == 128_000 == found["gpt-4o"]["max_model_len"]
    assert found["gpt-4o"] | {"context_length": 0, "max_model_len": 0} == {
        "id": "gpt-4o",
        "object": "model",
        "created": 7,
        "owned_by": "main",
        "context_length": 0,
        "max_model_len": 0,
    }
    assert "context_length" not in found["nobody-knows-this"]


async def test_the_clients_own_key_is_passed_on_to_the_upstream() -> None:
    async with wired(offering("m")) as weir:
        await listed(weir, **bearer("the-clients-own"))
        assert weir.up.ledger[0].request.headers["authorization"] == "Bearer the-clients-own"


async def test_named_models_come_without_asking_and_a_pattern_asks() -> None:
    models = {"fast": {"upstream": "main", "model": "gpt-4o"}}
    async with wired(offering("x-1", "y-1"), models=models) as weir:
        assert [*await listed(weir)] == ["fast"]
        assert weir.up.ledger == []
    async with wired(offering("x-1", "y-1"), models={**models, "x-*": {"upstream": "main"}}) as weir:
        assert [*await listed(weir)] == ["fast", "x-1"]


async def test_a_key_sees_only_what_it_may_use() -> None:
    keys = [{"id": "k", "tenant": "t", "secret": KEY, "models": ["x-*"]}]
    async with wired(offering("x-1", "y-1"), keys=keys) as weir:
        assert [*await listed(weir, **bearer(KEY))] == ["x-1"]


@pytest.mark.parametrize("body", [b"<html>", b'{"data":7}', b'{"data":[7,{"id":7},{}]}', b"[]", b"[" * 5000])
async def test_a_list_that_makes_no_sense_is_left_out(body: bytes) -> None:
    async def nonsense(request: SeenRequest, reply: Script) -> None:
        await reply.json(200, body)

    async with wired(nonsense, models={"fast": {"upstream": "main"}, "*": {"upstream": "main"}}) as weir:
        assert [*await listed(weir)] == ["fast"]


async def test_an_upstream_that_refuses_its_list_is_left_out() -> None:
    async def refuse(request: SeenRequest, reply: Script) -> None:
        await reply.json(500, b"{}")

    async with wired(refuse) as weir:
        assert await listed(weir) == {}
