"""What goes wrong, how it is told, and that nothing goes uncounted: one usage row for each upstream call, closed once.

The ledger of the scripted provider is the other side of the books: as many rows as it saw calls, and the same sums.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import pytest
import structlog

from proxy.core.errors import StoreUnavailable
from proxy.core.steps import Memory, Recall, Remember
from proxy.core.usage import UsageRow
from proxy.store.sqlite import SqliteStore
from tests.edges import failed
from tests.fakes import Script, ScriptedUpstream, SeenRequest, chat_chunks, chat_reply, error_body, in_turn, usage
from tests.scenarios.acts import HELLO, Act, balanced, refusing, streaming, weir, well, whole
from tests.scenarios.conftest import Figure
from tests.scenarios.gate import Answer, gate, user

both = pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])

# -- refusals --------------------------------------------------------------------------------------------------------

REFUSALS = [
    (refusing(400), 400, "upstream_rejected", "false"),
    (refusing(401), 502, "upstream_auth_failed", "false"),
    (refusing(402), 429, "insufficient_quota", "false"),
    (refusing(403), 502, "upstream_auth_failed", "false"),
    (refusing(404), 404, "model_not_found", "false"),
    (refusing(422), 400, "upstream_rejected", "false"),
    (refusing(429, {"retry-after": "60"}), 429, "upstream_rate_limited", "true"),
    (refusing(500), 502, "upstream_error", "false"),
    (refusing(503, {"retry-after": "60"}), 503, "upstream_overloaded", "true"),
    (refusing(529, {"retry-after": "60"}), 503, "upstream_overloaded", "true"),
    (refusing(302, {"location": "http://127.0.0.1:1/"}), 502, "upstream_invalid_response", "false"),
    (whole(b"<html>Bad gateway</html>", "text/html"), 502, "upstream_invalid_response", "false"),
    (whole(b""), 502, "upstream_invalid_response", "false"),
    (whole(b"{}"), 502, "upstream_invalid_response", "false"),
    (whole(b'{"choices": []}'), 502, "upstream_invalid_response", "false"),
    (whole(b'{"choices": [{"message": {'), 502, "upstream_invalid_response", "false"),
    (whole(b"[1]"), 502, "upstream_invalid_response", "false"),
]


@both
@pytest.mark.parametrize(("act", "status", "code", "again"), REFUSALS)
async def test_what_the_provider_refuses_is_told_with_its_true_status(
    act: Act, status: int, code: str, again: str, stream: bool
) -> None:
    async with weir(act, api_key="the-key") as (opened, up):
        answer = await opened.ask(HELLO, stream=stream)
        assert (answer.status, answer.code, answer.headers["x-should-retry"]) == (status, code, again)
        assert set(answer.json["error"]) == {"message", "type", "param", "code"}
        assert len(up.ledger) == 1
        assert [row.status for row in await opened.rows()] == ["failed"]


@both
async def test_a_provider_that_is_not_there_is_a_502_and_a_row(stream: bool) -> None:
    async with gate("http://127.0.0.1:9/v1") as opened:
        answer = await opened.ask(HELLO, stream=stream)
        rows = await opened.rows()
    assert (answer.status, answer.code) == (502, "upstream_unreachable")
    assert [(row.purpose, row.status) for row in rows] == [("chat", "failed"), ("retry", "failed")]


@both
async def test_a_compressed_answer_that_nobody_asked_for_is_understood_or_told(stream: bool) -> None:
    body = gzip.compress(json.dumps(chat_reply("Well.", usage=usage(11, 3))).encode())
    async with weir(whole(body, content_encoding="gzip")) as (opened, up):
        answer = await opened.ask(HELLO, stream=stream)
        assert up.ledger[0].request.headers.get("accept-encoding") in (None, "identity")
        assert (answer.status, answer.code) == (502, "upstream_invalid_response") or answer.text == "Well."


# -- one retry -------------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("status", [429, 503, 529])
async def test_an_overloaded_provider_is_asked_once_more(status: int, stream: bool) -> None:
    act = in_turn(refusing(status, {"retry-after": "0"}), well)
    async with weir(act) as (opened, up):
        answer = await opened.ask(HELLO, stream=stream)
        rows = await balanced(opened, up)
    assert (answer.status, answer.text) == (200, "Well.")
    assert [(row.purpose, row.status, row.http_status) for row in rows] == [
        ("chat", "failed", status),
        ("retry", "ok", 200),
    ]
    assert rows[1].parent == rows[0].id and rows[0].request == rows[1].request


async def test_a_provider_that_stays_overloaded_is_asked_twice_and_its_patience_is_passed_on() -> None:
    async with weir(refusing(429, {"retry-after": "1"})) as (opened, up):
        answer = await opened.ask(HELLO)
        assert len(up.ledger) == 2
    assert (answer.status, answer.headers["retry-after"], answer.headers["x-should-retry"]) == (429, "1", "true")


async def test_a_provider_that_wants_a_long_wait_is_left_to_the_client() -> None:
    async with weir(refusing(503, {"retry-after": "120"})) as (opened, up):
        answer = await opened.ask(HELLO)
        assert len(up.ledger) == 1
    assert (answer.status, answer.headers["retry-after"]) == (503, "120")


async def test_repeats_stay_within_their_budget(figure: Figure) -> None:
    calls = 60
    async with weir(refusing(429, {"retry-after": "0"})) as (opened, up):
        for _ in range(calls):
            assert (await opened.ask(HELLO)).status == 429
        repeats = len(up.ledger) - calls
    assert repeats >= 3
    figure("retries of a provider that always refuses, a call", repeats / calls, "<= 0.3")


async def test_nothing_is_repeated_that_may_have_been_worked_on() -> None:
    async def reset(_: SeenRequest, reply: Script) -> None:
        await reply.reset()

    for act in (refusing(500), refusing(502), reset):
        async with weir(act) as (opened, up):
            assert (await opened.ask(HELLO)).status == 502
            assert len(up.ledger) == 1


# -- streams that break ----------------------------------------------------------------------------------------------

CHUNKS = chat_chunks("Half of an answer", finish=None)
DONE = b"[DONE]"
BROKEN = {
    "cut": streaming(*CHUNKS, end=False),
    "closed": streaming(*CHUNKS),
    "done without finish": streaming(*CHUNKS, DONE),
    "error frame": streaming(*CHUNKS, error_body("boom")),
    "not JSON": streaming(*CHUNKS, b"{oops", DONE),
    "an array": streaming(*CHUNKS, b"[1]", DONE),
}


@pytest.mark.parametrize("act", BROKEN.values(), ids=BROKEN)
async def test_a_stream_that_broke_ends_in_an_error_frame_and_never_in_done(act: Act) -> None:
    async with weir(act) as (opened, up):
        answer = await opened.ask(HELLO, stream=True)
        assert (answer.status, answer.done, answer.finish) == (200, False, None)
        assert answer.text == "Half of an answer"
        assert answer.code == "upstream_invalid_response" or answer.code == "upstream_error"
        assert answer.payloads[-1] == json.dumps({"error": answer.error}, separators=(",", ":")).encode()
        rows = await opened.rows()
        assert [(row.status, row.estimated) for row in rows] == [("partial", True)]
        assert rows[0].output > 0 and rows[0].input > 0
        assert len(up.ledger) == 1


SILENT = {
    "nothing": streaming(),
    "done alone": streaming(DONE),
    "role alone": streaming(*CHUNKS[:1]),
    "error frame": streaming(error_body("boom")),
    "error after the role": streaming(*CHUNKS[:1], error_body("boom")),
    "cut": streaming(*CHUNKS[:1], end=False),
}


@pytest.mark.parametrize("act", SILENT.values(), ids=SILENT)
async def test_a_stream_that_broke_before_its_first_word_has_its_true_status(act: Act) -> None:
    async with weir(act) as (opened, up):
        answer = await opened.ask(HELLO, stream=True)
        assert (answer.status, answer.streamed, answer.done) == (502, False, False)
        assert len(up.ledger) == 1


async def test_an_error_frame_with_a_status_is_told_with_it_before_the_first_word() -> None:
    frame = {"error": {"message": "slow down", "code": 429}}
    async with weir(streaming(frame)) as (opened, _):
        answer = await opened.ask(HELLO, stream=True)
    assert (answer.status, answer.code) == (429, "upstream_rate_limited")


@both
async def test_a_body_that_ends_too_early_is_an_error(stream: bool) -> None:
    async def short(request: SeenRequest, reply: Script) -> None:
        body = json.dumps(chat_reply("Well.", usage=usage(1, 1))).encode()
        await reply.head(200, {"content-type": "application/json"}, length=len(body))
        await reply.write(body[:-20])
        await reply.close()

    async with weir(short) as (opened, _):
        answer = await opened.ask(HELLO, stream=stream)
    assert (answer.status, answer.code) == (502, "upstream_invalid_response")


# -- usage -----------------------------------------------------------------------------------------------------------

STRANGE: list[Any] = [
    None,
    {},
    {"prompt_tokens": -5, "completion_tokens": -1},
    {"prompt_tokens": 10**18, "completion_tokens": 1},
]
STRANGE += [{"prompt_tokens": "many"}, "none", [1], {"prompt_tokens": 0, "completion_tokens": 0}]
STRANGE += [{"prompt_tokens": 10**400}]


@both
@pytest.mark.parametrize("told", STRANGE, ids=lambda told: repr(told)[:40])
async def test_usage_that_cannot_be_believed_is_estimated_and_says_so(told: Any, stream: bool) -> None:
    async def act(request: SeenRequest, reply: Script) -> None:
        if request.stream:
            base = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": []}
            await reply.sse([*chat_chunks("Well."), {**base, "usage": told}])
        else:
            await reply.json(200, {**chat_reply("Well."), "usage": told})

    async with weir(act) as (opened, up):
        answer = await opened.ask(HELLO, stream=stream)
        assert (answer.status, answer.text) == (200, "Well.")
        row = (await balanced(opened, up))[0]
        assert row.status == "ok" and 0 <= row.input < 1_000_000 and 0 <= row.output < 1_000_000
        assert row.estimated or row.output == 1


async def test_usage_that_comes_twice_is_counted_once() -> None:
    first, second = chat_chunks("Well.", usage=usage(5, 1))[-1], chat_chunks("", usage=usage(11, 3))[-1]
    async with weir(streaming(*chat_chunks("Well."), first, second, DONE)) as (opened, up):
        answer = await opened.ask(HELLO, stream=True, stream_options={"include_usage": True})
        row = (await balanced(opened, up))[0]
    assert (row.input, row.output) == (11, 3)
    assert answer.done


async def test_the_books_agree_with_the_providers_ledger(figure: Figure) -> None:
    """Answers, refusals, retries and broken streams in one run: rows and tokens are those that the provider counted."""
    told = {"calls": 0, "input": 0, "output": 0}

    async def act(request: SeenRequest, reply: Script) -> None:
        told["calls"] += 1
        number = told["calls"]
        if number % 7 == 0:
            await reply.json(503, error_body("busy"), {"retry-after": "0"})
        elif number % 11 == 0:
            await reply.json(500, error_body("no"))
        else:
            told["input"] += number
            told["output"] += 2
            counted = usage(number, 2)
            if request.stream:
                await reply.sse(chat_chunks("Well.", usage=counted))
            else:
                await reply.json(200, chat_reply("Well.", usage=counted))

    async with weir(act) as (opened, up):
        await asyncio.gather(*(opened.ask([user(f"Hello {n}")], stream=n % 2 == 0) for n in range(80)))
        rows = await balanced(opened, up)
        counted = [row for row in rows if row.status == "ok"]
        figure.all(
            ("books: rows less the provider's calls", len(rows) - told["calls"], "== 0"),
            ("books: input tokens less the provider's", sum(row.input for row in counted) - told["input"], "== 0"),
            ("books: output tokens less the provider's", sum(row.output for row in counted) - told["output"], "== 0"),
            ("books: rows closed otherwise than once", sum(row.status == "open" for row in rows), "== 0"),
        )
        assert await opened.metric("weirgate_upstream_calls_total") == len(rows)


# -- secrets ---------------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("own", [True, False], ids=["gateway's key", "client's key"])
async def test_a_key_that_the_provider_echoes_reaches_nobody(
    own: bool, stream: bool, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    shaped, shapeless = "sk-proj-CANARYcanary0123456789abcdefABCDEF", "my.CANARY.key"
    caplog.set_level(0)
    with structlog.testing.capture_logs() as logs:
        for status, key in ((401, shaped), (401, shapeless), (403, shapeless), (400, shaped), (500, shapeless)):
            said = f"Incorrect API key provided: {key}. You can find your key at the provider."
            async with weir(refusing(status, message=said), api_key=key if own else None) as (opened, up):
                headers = {} if own else {"authorization": f"Bearer {key}"}
                answer = await opened.ask(HELLO, stream=stream, headers=headers)
                assert up.ledger[0].request.headers["authorization"] == f"Bearer {key}"
                seen = [answer.body, str(answer.headers).encode(), repr(await opened.rows()).encode()]
                seen.append((await opened.get("/metrics")).content)
                assert answer.status >= 400 and not any(b"CANARY" in text for text in seen)
    printed = capsys.readouterr()
    assert "CANARY" not in f"{logs}{printed.out}{printed.err}{caplog.text}"


async def test_no_word_of_the_conversation_is_logged(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(0)
    for act in (well, refusing(500), BROKEN["cut"], BROKEN["not JSON"]):
        async with weir(act) as (opened, _):
            await opened.ask([user("CANARYword")], stream=True)
            assert b"CANARY" not in (await opened.get("/metrics")).content
    printed = capsys.readouterr()
    assert "CANARY" not in f"{printed.out}{printed.err}{caplog.text}"


# -- the store -------------------------------------------------------------------------------------------------------


class Failing(SqliteStore):
    """Fails where it is told to: a disk that is full, a file that is gone."""

    def __init__(self, *places: str) -> None:
        super().__init__(":memory:")
        self.places = set(places)

    def _fail(self, place: str) -> None:
        if place in self.places:
            raise StoreUnavailable("The store cannot be written.")

    async def recall(self, tenant: str, ask: Recall, now: float) -> Memory:
        self._fail("recall")
        return await super().recall(tenant, ask, now)

    def remember(self, tenant: str, what: Remember, now: float) -> asyncio.Future[None]:
        if "remember" in self.places:
            return failed(StoreUnavailable("The store cannot be written."))
        return super().remember(tenant, what, now)

    def open_row(self, row: UsageRow) -> None:
        self._fail("open_row")
        super().open_row(row)

    async def opened(self) -> None:
        self._fail("opened")
        await super().opened()

    def close_row(self, row: UsageRow) -> asyncio.Future[None]:
        if "close_row" in self.places:
            return failed(StoreUnavailable("The store cannot be written."))
        return super().close_row(row)


async def through(stream: bool, *places: str, **more: Any) -> tuple[Answer, int, float]:
    """The answer with a store that fails at `places`, the provider's calls, and how many went unremembered."""
    async with ScriptedUpstream(well) as up, gate(up.url, store=Failing(*places), **more) as opened:
        answer = await opened.ask(HELLO, stream=stream)
        return answer, len(up.ledger), await opened.metric("weirgate_unremembered_calls_total")


@both
@pytest.mark.parametrize("place", ["recall", "open_row"])
async def test_a_store_that_is_down_is_a_503_before_any_call(place: str, stream: bool) -> None:
    answer, calls, _ = await through(stream, place)
    assert (answer.status, answer.code, answer.headers["x-should-retry"]) == (503, "storage_unavailable", "true")
    assert calls == 0


async def test_an_opening_that_is_not_durable_stops_the_call_where_usage_is_strict() -> None:
    answer, calls, _ = await through(False, "opened", usage__strict=True)
    assert (answer.status, calls) == (503, 0)


@both
@pytest.mark.parametrize("place", ["close_row", "remember"])
async def test_an_answer_whose_row_cannot_be_kept_is_never_acknowledged(place: str, stream: bool) -> None:
    answer, calls, _ = await through(stream, place)
    assert calls == 1
    assert answer.code == "storage_unavailable"
    if stream:
        assert (answer.status, answer.text, answer.finish, answer.done) == (200, "Well.", None, False)
    else:
        assert answer.status == 503 and b"Well." not in answer.body


@both
@pytest.mark.parametrize("place", ["recall", "open_row", "close_row", "remember"])
async def test_a_store_that_is_not_required_may_be_down_and_that_is_counted(place: str, stream: bool) -> None:
    places = ("open_row", "close_row") if place == "open_row" else (place,)
    answer, calls, unremembered = await through(stream, *places, store__required=False)
    assert (answer.status, answer.text, answer.finish, calls) == (200, "Well.", "stop", 1)
    assert answer.done is stream
    assert unremembered >= 1
