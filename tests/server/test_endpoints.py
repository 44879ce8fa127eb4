"""Chat through the whole application: answers, early errors, limits of our own, and what the open routes say."""

from __future__ import annotations

import asyncio
import json

import pytest

from proxy.core.errors import StoreUnavailable
from tests.fakes import Script, SeenRequest, chat_chunks, chat_reply, error_body, in_turn, usage
from tests.server.wired import HELLO, bearer, chat, wired

CHAT = "/v1/chat/completions"
STREAM = {**HELLO, "stream": True}


async def hello(request: SeenRequest, reply: Script) -> None:
    if request.stream:
        await reply.sse(chat_chunks("Hello.", usage=usage(9, 3)))
    else:
        await reply.json(200, chat_reply("Hello.", usage=usage(9, 3)))


async def test_an_answer_comes_with_its_headers_and_leaves_one_row() -> None:
    async with wired(hello, window=8192) as weir:
        got = await weir.client.post(CHAT, json=HELLO, headers={"x-request-id": "mine-1"})
        (row,) = await weir.rows()
    assert got.status_code == 200 and got.json()["usage"]["prompt_tokens"] == 9
    assert got.headers["x-request-id"] == "mine-1" == row.request
    assert got.headers["x-weirgate-conversation"] == row.conversation
    assert got.headers["x-weirgate-context"] == f"tokens={row.projected}; window=8192; compaction=none"
    assert (row.status, row.input, row.output, row.http_status) == ("ok", 9, 3, 200)


async def test_a_stream_ends_with_done_after_its_row_is_closed() -> None:
    async with wired(hello) as weir:
        got = await weir.client.post(CHAT, json=STREAM)
        (row,) = await weir.rows()
    assert got.headers["content-type"].startswith("text/event-stream")
    assert got.text.endswith("data: [DONE]\n\n") and got.text.count("[DONE]") == 1
    assert row.status == "ok" and row.stream and row.first_token is not None


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("status", "told", "code", "retry"),
    [
        (400, 400, "upstream_rejected", "false"),
        (401, 401, "invalid_api_key", "false"),
        (404, 404, "model_not_found", "false"),
        (429, 429, "upstream_rate_limited", "true"),
        (500, 502, "upstream_error", "false"),
        (503, 503, "upstream_overloaded", "true"),
    ],
)
async def test_an_early_error_keeps_its_true_status(
    status: int, told: int, code: str, retry: str, stream: bool
) -> None:
    async def refuse(request: SeenRequest, reply: Script) -> None:
        await reply.json(status, error_body("no"), {"retry-after": "30"} if status in (429, 503) else None)

    async with wired(refuse) as weir:
        got = await weir.client.post(CHAT, json=STREAM if stream else HELLO)
        rows = await weir.settled()
    assert (got.status_code, got.json()["error"]["code"]) == (told, code)
    assert got.headers["x-should-retry"] == retry
    assert ("retry-after" in got.headers) == (status in (429, 503))
    assert [row.status for row in rows] == ["failed"]


async def test_an_upstream_that_is_not_there_is_a_502() -> None:
    async with wired(hello, upstreams__main__attempts=1) as weir:
        weir.up._server.close()  # type: ignore[union-attr]
        got = await weir.client.post(CHAT, json=HELLO)
    assert (got.status_code, got.json()["error"]["code"]) == (502, "upstream_unreachable")


async def test_a_stream_that_breaks_ends_with_an_error_frame_and_never_done() -> None:
    async def breaks(request: SeenRequest, reply: Script) -> None:
        await reply.head(200, {"content-type": "text/event-stream"})
        for chunk in chat_chunks("Hello, this breaks off.", finish=None):
            await reply.event(chunk)
        await reply.reset()

    async with wired(breaks) as weir:
        got = await weir.client.post(CHAT, json=STREAM)
        (row,) = await weir.settled()
    last = json.loads(got.text.strip().split("\n\n")[-1].removeprefix("data: "))
    assert got.status_code == 200 and "[DONE]" not in got.text
    assert [*last["error"]] == ["message", "type", "param", "code"]
    assert row.status == "partial"


async def test_a_stream_cut_before_any_word_is_a_502() -> None:
    async def breaks(request: SeenRequest, reply: Script) -> None:
        await reply.head(200, {"content-type": "text/event-stream"})
        await reply.reset()

    async with wired(breaks) as weir:
        got = await weir.client.post(CHAT, json=STREAM)
    assert (got.status_code, got.json()["error"]["code"]) == (502, "upstream_invalid_response")


# -- the held stream -------------------------------------------------------------------------------------------------


async def test_after_the_hold_the_head_goes_out_with_a_comment_and_then_the_stream() -> None:
    release = asyncio.Event()

    async def slow(request: SeenRequest, reply: Script) -> None:
        await reply.hang(release)
        await reply.sse(chat_chunks("Hello.", usage=usage(9, 3)))

    async with wired(slow, server__hold=0.01, server__ping=0.01) as weir:
        asked = chat(weir.app, STREAM)
        status, headers = await asked.head()
        assert (status, headers["x-accel-buffering"], headers["cache-control"]) == (200, "no", "no-store, no-transform")
        pieces = [await asked.piece() for _ in range(3)]
        assert all(piece.startswith(b": ") and piece.endswith(b"\n\n") for piece in pieces)
        release.set()
        rest = await asked.rest()
        await asked.done()
    assert rest.endswith(b"data: [DONE]\n\n")
    assert rest.count(b'"content":"Hello."') == 1


async def test_an_error_after_the_hold_is_a_frame_and_never_done() -> None:
    release = asyncio.Event()

    async def slow(request: SeenRequest, reply: Script) -> None:
        await reply.hang(release)
        await reply.json(400, error_body("no"))

    async with wired(slow, server__hold=0) as weir:
        asked = chat(weir.app, STREAM)
        status, _ = await asked.head()
        release.set()
        rest = await asked.rest()
    assert status == 200 and b"[DONE]" not in rest
    frame = next(line for line in rest.split(b"\n\n") if line.startswith(b"data: "))
    assert json.loads(frame.removeprefix(b"data: "))["error"]["code"] == "upstream_rejected"


async def test_before_the_hold_nothing_is_sent_so_that_an_error_keeps_its_status() -> None:
    release = asyncio.Event()

    async def slow(request: SeenRequest, reply: Script) -> None:
        await reply.hang(release)
        await reply.json(400, error_body("no"))

    async with wired(slow, server__hold=60) as weir:
        asked = chat(weir.app, STREAM)
        await weir.up.arrived()
        assert asked.sent.empty()
        release.set()
        status, headers = await asked.head()
    assert (status, headers["content-type"]) == (400, "application/json")


# -- the client leaves -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [HELLO, STREAM], ids=["json", "stream"])
async def test_a_client_that_leaves_before_the_answer_closes_the_upstream_and_leaves_a_cancelled_row(
    body: dict[str, object],
) -> None:
    async def never(request: SeenRequest, reply: Script) -> None:
        await reply.hang()

    async with wired(never) as weir:
        asked = chat(weir.app, body)
        entry = await weir.up.arrived()
        asked.leave()
        async with asyncio.timeout(1):
            await entry.gone.wait()
        await asked.done()
        (row,) = await weir.settled()
        assert row.status == "cancelled"
        assert asked.sent.empty(), "an answer for nobody"
        assert weir.app.drain.running == 0


async def test_a_client_that_leaves_in_the_middle_of_a_stream_closes_the_upstream() -> None:
    async def endless(request: SeenRequest, reply: Script) -> None:
        await reply.head(200, {"content-type": "text/event-stream"})
        for chunk in chat_chunks("Hello, this goes on.", finish=None):
            await reply.event(chunk)
        await reply.hang()

    async with wired(endless) as weir:
        asked = chat(weir.app, STREAM)
        await asked.head()
        assert b"data: " in await asked.piece()
        asked.leave()
        async with asyncio.timeout(1):
            await (await weir.up.arrived()).gone.wait()
        await asked.done()
        (row,) = await weir.settled()
    # No word of the provider about it, so the prompt is our measure.
    assert (row.status, row.estimated) == ("cancelled", True)
    assert row.output > 0


# -- limits of our own -----------------------------------------------------------------------------------------------


async def test_one_request_too_many_is_a_429_and_a_place_is_given_back() -> None:
    release = asyncio.Event()

    async def slow(request: SeenRequest, reply: Script) -> None:
        await reply.hang(release)
        await hello(request, reply)

    async with wired(slow, server__limits__streams_per_key=1) as weir:
        asked = chat(weir.app, HELLO)
        await weir.up.arrived()
        got = await weir.client.post(CHAT, json=HELLO)
        assert (got.status_code, got.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert (got.headers["retry-after"], got.headers["x-should-retry"]) == ("1", "true")
        other = asyncio.create_task(weir.client.post(CHAT, json=HELLO, headers=bearer("another-person")))
        await weir.up.arrived(2)
        release.set()
        assert (await other).status_code == 200
        assert (await asked.head())[0] == 200
        await asked.done()
        assert (await weir.client.post(CHAT, json=HELLO)).status_code == 200


async def test_fifty_requests_at_once_for_a_key_and_as_many_as_there_are_places_where_there_are_no_keys() -> None:
    async def waiting(request: SeenRequest, reply: Script) -> None:
        await reply.hang()

    async with wired(waiting) as weir:
        asked = [chat(weir.app, HELLO) for _ in range(60)]
        await weir.up.arrived(60)
        for one in asked:
            one.leave()
            await one.done()
    secret = "client-secret-of-this-test"
    async with wired(waiting, keys=[{"id": "a", "tenant": "a", "secret": secret}]) as weir:
        asked = [chat(weir.app, HELLO, **bearer(secret)) for _ in range(50)]
        await weir.up.arrived(50)
        got = await weir.client.post(CHAT, json=HELLO, headers=bearer(secret))
        assert (got.status_code, got.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        for one in asked:
            one.leave()
            await one.done()


async def test_a_server_that_leaves_refuses_new_requests_and_says_so_beforehand() -> None:
    async with wired(hello) as weir:
        assert (await weir.client.get("/readyz")).json() == {"status": "ready"}
        weir.app.drain.ready = False
        draining = await weir.client.get("/readyz")
        assert (draining.status_code, draining.json()) == (503, {"status": "draining"})
        weir.app.drain.closed = True
        got = await weir.client.post(CHAT, json=HELLO)
    assert (got.status_code, got.json()["error"]["code"]) == (503, "shutting_down")
    assert (got.headers["x-should-retry"], got.headers["connection"]) == ("true", "close")
    assert weir.up.ledger == []


async def test_a_stream_that_is_told_to_end_gets_an_error_frame() -> None:
    async def endless(request: SeenRequest, reply: Script) -> None:
        await reply.head(200, {"content-type": "text/event-stream"})
        await reply.event(chat_chunks("Hello", finish=None)[0])
        await reply.event(chat_chunks("Hello", finish=None)[1])
        await reply.hang()

    async with wired(endless) as weir:
        asked = chat(weir.app, STREAM)
        await asked.head()
        await asked.piece()
        weir.app.drain.end()
        rest = await asked.rest()
    assert b"shutting_down" in rest and b"[DONE]" not in rest


async def test_without_its_store_no_call_is_made() -> None:
    async with wired(hello) as weir:

        async def gone(*_: object) -> None:
            raise StoreUnavailable("The database file cannot be opened.")

        weir.app.store.recall = gone  # type: ignore[method-assign, assignment]
        weir.app.store.ready = gone  # type: ignore[method-assign]
        got = await weir.client.post(CHAT, json=HELLO)
        ready = await weir.client.get("/readyz")
    assert (
        (got.status_code, got.json()["error"]["code"])
        == (503, "storage_unavailable")
        == (
            ready.status_code,
            ready.json()["error"]["code"],
        )
    )
    assert weir.up.ledger == []


async def test_a_bug_is_a_500_without_its_text_and_leaves_nothing_running() -> None:
    async with wired(hello, server__hold=0) as weir:

        async def broken(*_: object) -> None:
            raise LookupError("canary of a message")

        weir.app.store.recall = broken  # type: ignore[method-assign, assignment]
        asked = chat(weir.app, STREAM)
        status, _ = await asked.head()
        told = await asked.rest()
        await asked.done()
        assert weir.app.drain.running == 0
        # The hold is over by now; a timer that was left alone would write comments behind the answer.
        loop = asyncio.get_running_loop()
        turned: asyncio.Future[None] = loop.create_future()
        loop.call_later(0.01, turned.set_result, None)
        await turned
        assert asked.sent.empty()
    assert (status, json.loads(told)["error"]["code"]) == (500, "internal_error")
    assert b"canary" not in told


# -- open routes -----------------------------------------------------------------------------------------------------


async def test_the_open_routes_answer_without_a_key_and_name_nobody() -> None:
    keys = [{"id": "team-canary", "tenant": "tenant-canary", "secret": "0123456789abcdef-client"}]
    async with wired(hello, keys=keys) as weir:
        served = {**HELLO, "model": "model-canary"}
        done = await weir.client.post(CHAT, json=served, headers=bearer("0123456789abcdef-client"))
        health = await weir.client.get("/healthz")
        metrics = await weir.client.get("/metrics")
    assert done.status_code == 200
    assert health.json() == {"status": "ok"} and health.headers["x-request-id"]
    assert metrics.headers["content-type"].startswith("text/plain")
    assert 'weirgate_requests_total{route="/v1/chat/completions",status="200"} 1.0' in metrics.text
    assert "canary" not in metrics.text


async def test_the_second_attempt_of_a_call_is_a_row_of_its_own() -> None:
    async def busy(request: SeenRequest, reply: Script) -> None:
        await reply.json(503, error_body("busy"), {"retry-after": "0"})

    async with wired(in_turn(busy, hello)) as weir:
        got = await weir.client.post(CHAT, json=HELLO)
        rows = await weir.settled()
    assert got.status_code == 200
    assert sorted((row.purpose, row.status) for row in rows) == [("chat", "failed"), ("retry", "ok")]
