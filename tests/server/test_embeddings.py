"""POST /v1/embeddings: passed through byte for byte, and accounted for."""

from __future__ import annotations

import asyncio

import pytest

from tests.fakes import Script, SeenRequest, error_body
from tests.server.wired import Exchange, wired

PATH = "/v1/embeddings"
ASK = {"model": "text-embedding-3-small", "input": ["one", "two"], "unknown_field": 7}
ANSWER = {
    "object": "list",
    "data": [{"object": "embedding", "index": 0, "embedding": [0.1, 0.2]}],
    "usage": {"prompt_tokens": 2, "total_tokens": 2},
}


async def embed(request: SeenRequest, reply: Script) -> None:
    await reply.json(200, ANSWER)


async def test_it_is_passed_through_and_leaves_a_priced_row() -> None:
    async with wired(embed) as weir:
        body = b'{ "model":"text-embedding-3-small",\n "input":["one","two"], "unknown_field":7 }'
        got = await weir.client.post(PATH, content=body, headers={"content-type": "application/json"})
        (row,) = await weir.rows()
        assert weir.up.ledger[0].request.body == body
        assert weir.up.ledger[0].request.path == "/v1/embeddings"
    assert got.status_code == 200 and got.json() == ANSWER
    assert (row.purpose, row.status, row.input, row.output) == ("embeddings", "ok", 2, 0)
    assert row.cost is not None and row.cost > 0
    assert got.headers["x-request-id"] == row.request


async def test_the_models_name_is_the_only_thing_that_is_changed() -> None:
    models = {"small": {"upstream": "main", "model": "text-embedding-3-small"}}
    async with wired(embed, models=models) as weir:
        got = await weir.client.post(PATH, json={**ASK, "model": "small"})
        assert got.status_code == 200
        assert weir.up.ledger[0].request.json == ASK


@pytest.mark.parametrize(
    ("status", "body", "told", "code"),
    [
        (200, b"<html>hello</html>", 502, "upstream_invalid_response"),
        (200, b"", 502, "upstream_invalid_response"),
        (200, error_body("no"), 502, "upstream_invalid_response"),
        (500, error_body("no"), 502, "upstream_error"),
        (429, error_body("no"), 429, "upstream_rate_limited"),
    ],
)
async def test_an_upstream_that_fails_is_told_and_leaves_a_failed_row(
    status: int, body: object, told: int, code: str
) -> None:
    async def fail(request: SeenRequest, reply: Script) -> None:
        await reply.json(status, body)

    async with wired(fail) as weir:
        got = await weir.client.post(PATH, json=ASK)
        (row,) = await weir.settled()
    assert (got.status_code, got.json()["error"]["code"]) == (told, code)
    assert (row.status, row.error, row.input) == ("failed", code, 0)


async def test_a_client_that_leaves_closes_the_upstream_and_leaves_a_cancelled_row() -> None:
    async def never(request: SeenRequest, reply: Script) -> None:
        await reply.hang()

    async with wired(never) as weir:
        asked = Exchange(weir.app, path=PATH, body=b'{"model":"m","input":"x"}').start()
        entry = await weir.up.arrived()
        asked.leave()
        async with asyncio.timeout(1):
            await entry.gone.wait()
        await asked.done()
        (row,) = await weir.settled()
    assert row.status == "cancelled"
