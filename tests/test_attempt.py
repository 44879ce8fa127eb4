"""One upstream call: its row is closed once whatever happens, and the client reads nothing too early."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from proxy.attempt import Attempt, Target
from proxy.core.chain import message
from proxy.core.conversation import Text
from proxy.core.errors import (
    ClientLeft,
    InvalidReply,
    RateLimited,
    Rejected,
    StoreUnavailable,
    TooLong,
    Unreachable,
    WeirgateError,
)
from proxy.core.policy import ModelCard, Tariff
from proxy.core.steps import Prompt, Reply, Report
from proxy.core.usage import UsageRow
from proxy.showing import Showing, Whole, context
from proxy.upstream import Request
from tests.edges import Answer, Piece, Provider, Reader, events, failing, stream, streamed, whole
from tests.playbook import a_call, changed
from tests.replies import chat_chunks, chat_reply, tool_call, usage

REQUEST = Request(path="/chat/completions", body=b"{}")
ROW = UsageRow(
    id="use_1", request="r", tenant="t", key="k", upstream="main", asked_model="a", model="m", opened_at=1_800_000_000.0
)
REPORT = Report(conversation="conv_1", tokens=900, window=1000)
USAGE = usage(800, 20, cached=500)
OVERFLOW = "This model's maximum context length is 1000 tokens, however you requested 1200 tokens."


class Clock:
    """Goes on by a second with every look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


class Tried:
    """An attempt, with the edges it meets."""

    def __init__(
        self,
        *answers: Any,
        stream: bool = False,
        include_usage: bool = True,
        report: Report = REPORT,
        client: Reader | None = None,
        opened: BaseException | None = None,
        **target: Any,
    ) -> None:
        self.provider = Provider(*answers)
        self.client = client or Reader()
        told = (message("user", (Text(text="hi"),)),)
        call = a_call(told, stream=stream, include_usage=include_usage)
        prompt = Prompt(messages=told, untouched=True, max_output=None, estimated=900, shape=b"", report=report)
        card = ModelCard(name="m", tariff=Tariff(input=10, output=100, cached=1))
        self._opened = opened
        shown = Showing(self.client, "m", include_usage=include_usage)
        self.showing = shown if stream else Whole(self.client)
        self.attempt = Attempt(
            call=call,
            prompt=prompt,
            target=Target(upstream=self.provider, card=card, **target),
            row=ROW,
            showing=self.showing,
            clock=Clock(),
        )
        self._prompt = prompt

    async def _open(self) -> None:
        if self._opened is not None:
            raise self._opened

    async def run(self) -> Reply:
        async with asyncio.timeout(10):
            if not isinstance(self.showing, Showing):
                return await self.attempt.run(REQUEST, self._open)
            await self.showing.begin(self._prompt)
            reply = await self.attempt.run(REQUEST, self._open)
            self.rest = self.showing.end()
            return reply

    async def fails(self, kind: type[BaseException]) -> Any:
        with pytest.raises(kind) as caught:
            await self.run()
        if isinstance(caught.value, WeirgateError):
            assert self.row.error == caught.value.code
        assert self.showing.body == b""
        return caught.value

    @property
    def row(self) -> UsageRow:
        return self.attempt.row

    @property
    def answer(self) -> Answer:
        return self.provider.given[-1]

    def numbers(self) -> tuple[str, int, int, bool]:
        return self.row.status, self.row.input, self.row.output, self.row.estimated


# -- whole answers -----------------------------------------------------------------------------------------------------


async def test_a_whole_answer_is_handed_over_as_it_came_and_its_row_closed() -> None:
    tried = Tried(whole("hello", usage=USAGE))
    reply = await tried.run()
    assert reply.message is not None
    assert reply.message.text == "hello"
    assert json.loads(tried.showing.body) == chat_reply("hello", usage=USAGE)
    assert tried.numbers() == ("ok", 800, 20, False)
    row = tried.row
    assert (row.cached, row.cost, row.finish, row.http_status, row.error) == (
        500,
        300 * 10 + 500 + 2000,
        "stop",
        200,
        None,
    )
    assert row.first_token is not None
    assert row.duration is not None
    assert 0 < row.first_token < row.duration
    assert tried.client.read == []
    assert tried.answer.closed == 1
    assert tried.provider.requests == [REQUEST]


async def test_where_no_usage_is_reported_our_own_measure_stands_in_and_says_so() -> None:
    tried = Tried(whole("word " * 40, calls=[tool_call("c", "f", {"a": 1})]))
    await tried.run()
    status, read, written, estimated = tried.numbers()
    assert (status, read, estimated) == ("ok", 900, True)
    assert written > 40


async def test_only_with_normalise_is_an_answer_repaired() -> None:
    bent = chat_reply(None, calls=[tool_call("c", "f", "{}")])
    bent["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] = {"a": 1}
    for normalise, arguments in ((False, {"a": 1}), (True, '{"a":1}')):
        tried = Tried(Answer(json.dumps(bent).encode()), normalise=normalise)
        await tried.run()
        call = json.loads(tried.showing.body)["choices"][0]["message"]["tool_calls"][0]
        found = call["function"]["arguments"]
        assert (json.loads(found) if isinstance(found, str) else found) == {"a": 1}
        assert isinstance(found, type(arguments))


@pytest.mark.parametrize("body", [b"<html>", b"", b"[]", b'{"choices":[]}'])
@pytest.mark.parametrize("streaming", [False, True])
async def test_what_is_no_answer_is_the_upstreams_fault(body: bytes, streaming: bool) -> None:
    tried = Tried(Answer(body), stream=streaming)
    error = await tried.fails(InvalidReply)
    assert error.status == 502
    assert tried.numbers() == ("failed", 0, 0, True)
    assert tried.row.http_status == 200
    assert tried.answer.closed == 1


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_refusal_keeps_its_status_and_patience(streaming: bool) -> None:
    tried = Tried(failing(429, headers={"retry-after": "7"}), stream=streaming)
    error = await tried.fails(RateLimited)
    assert (error.retry_after, error.upstream_status) == (7.0, 429)
    assert tried.numbers() == ("failed", 0, 0, True)
    assert tried.row.http_status == 429
    assert tried.client.read == []
    assert tried.answer.closed == 1


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_refusal_that_says_too_long_is_an_overflow(streaming: bool) -> None:
    tried = Tried(failing(400, OVERFLOW), stream=streaming)
    error = await tried.fails(TooLong)
    assert (error.overflow.limit, error.said, error.upstream_status) == (1000, False, 400)
    assert (tried.row.status, tried.row.error, tried.row.http_status) == ("failed", "context_length_exceeded", 400)


async def test_a_refusal_without_a_reason_is_an_overflow_only_near_the_window() -> None:
    await Tried(Answer(b"", status=400)).fails(TooLong)
    far = Tried(Answer(b"", status=400), report=changed(REPORT, tokens=100))
    await far.fails(Rejected)
    unread = Tried(Answer(b"", status=400), report=Report(conversation="c", tokens=0, window=None))
    await unread.fails(Rejected)


@pytest.mark.parametrize("streaming", [False, True])
async def test_an_error_with_status_200_is_no_answer(streaming: bool) -> None:
    tried = Tried(failing(200, "boom"), stream=streaming)
    error = await tried.fails(InvalidReply)
    assert "boom" in error.message
    overflow = Tried(failing(200, OVERFLOW), stream=streaming)
    assert (await overflow.fails(TooLong)).said is False


async def test_an_upstream_that_cannot_be_reached_costs_nothing() -> None:
    tried = Tried(Unreachable("refused", sent=False))
    await tried.fails(Unreachable)
    assert tried.numbers() == ("failed", 0, 0, True)
    assert (tried.row.http_status, tried.row.cost) == (None, 0)


@pytest.mark.parametrize("streaming", [False, True])
async def test_an_answer_that_ended_because_the_window_was_full_is_an_overflow(streaming: bool) -> None:
    full: dict[str, Any] = {"finish": "length", "usage": usage(1000, 0)}
    tried = Tried(streamed(None, **full) if streaming else whole("", **full), stream=streaming)  # type: ignore[arg-type]
    error = await tried.fails(TooLong)
    assert (error.upstream_status, error.said) == (200, False)
    assert tried.numbers() == ("failed", 1000, 0, False)
    assert tried.client.read == []


@pytest.mark.parametrize("streaming", [False, True])
async def test_an_answer_that_was_cut_for_length_but_says_something_is_an_answer(streaming: bool) -> None:
    cut: dict[str, Any] = {"finish": "length", "usage": usage(980, 20)}
    tried = Tried(streamed("half", **cut) if streaming else whole("half", **cut), stream=streaming)
    assert (await tried.run()).finish == "length"
    assert tried.row.status == "ok"


# -- streams -----------------------------------------------------------------------------------------------------------


async def test_frames_go_out_as_they_came_and_the_end_is_held() -> None:
    chunks = chat_chunks("hello there", usage=USAGE)
    tried = Tried(streamed("hello there", usage=USAGE), stream=True)
    reply = await tried.run()
    assert b"".join(tried.client.read) == events(*chunks[:-2])
    assert b"".join(tried.rest) == events(*chunks[-2:], b"[DONE]")
    assert len(tried.client.read) == 2  # the role waited for the first text
    assert reply.finish == "stop"
    assert tried.numbers() == ("ok", 800, 20, False)
    assert tried.row.first_token is not None
    assert tried.showing.body == b""


async def test_usage_that_the_client_did_not_ask_for_is_kept_for_the_row() -> None:
    tried = Tried(streamed("hi", usage=USAGE), stream=True, include_usage=False)
    await tried.run()
    assert b"usage" not in b"".join((*tried.client.read, *tried.rest))
    assert tried.numbers() == ("ok", 800, 20, False)


async def test_nothing_is_said_before_the_first_content() -> None:
    role = events(chat_chunks("")[0])
    failed = events({"error": {"message": "slow down", "code": 429}})
    tried = Tried(stream(b": ping\n\n", role, failed), stream=True)
    error = await tried.fails(RateLimited)
    assert error.upstream_status == 429
    assert tried.client.read == []
    assert not tried.attempt.said
    assert tried.row.status == "failed"


async def test_an_overflow_inside_a_stream_can_be_cured_until_something_was_said() -> None:
    role, text, *_ = chat_chunks("hello")
    broken = {"error": {"message": OVERFLOW}}
    early = Tried(stream(events(role), events(broken)), stream=True)
    assert (await early.fails(TooLong)).said is False
    assert early.client.read == []
    late = Tried(stream(events(role, text), events(broken)), stream=True)
    assert (await late.fails(TooLong)).said is True
    assert late.row.status == "partial"


@pytest.mark.parametrize("said", [False, True])
async def test_an_overflow_in_another_shape_inside_a_stream_is_one_too(said: bool) -> None:
    chunks = chat_chunks("hello")[: 2 if said else 1]
    failed = {
        "type": "response.failed",
        "response": {"error": {"code": "context_length_exceeded", "message": OVERFLOW}},
    }
    for told in (events(failed), b'error: {"code":400,"message":"%b"}\n\n' % OVERFLOW.encode()):
        tried = Tried(stream(events(*chunks), told), stream=True)
        assert (await tried.fails(TooLong)).said is said
        body = Tried(Answer(json.dumps(failed).encode()), stream=said)
        await body.fails(TooLong)


async def test_a_comment_that_speaks_of_overflows_is_only_a_comment() -> None:
    tried = Tried(stream(b": " + OVERFLOW.encode() + b"\n\n", events(*chat_chunks("hello"), b"[DONE]")), stream=True)
    assert (await tried.run()).finish == "stop"


async def test_text_before_an_error_in_the_same_piece_was_said() -> None:
    role, text, *_ = chat_chunks("hello")
    tried = Tried(stream(events(role, text, {"error": {"code": 503, "message": "x"}})), stream=True)
    await tried.fails(InvalidReply)
    assert b"".join(tried.client.read) == events(role, text)
    assert tried.row.status == "partial"


@pytest.mark.parametrize(
    "end",
    [
        (),
        (events(b"[DONE]"),),
        (InvalidReply("reset"),),
        (b'data: {"choices":',),
        (events(b"nonsense"),),
    ],
)
async def test_a_stream_that_breaks_off_is_partial_and_never_looks_whole(end: tuple[Piece, ...]) -> None:
    role, text, *_ = chat_chunks("hello " * 20, size=120)
    tried = Tried(stream(events(role), events(text), *end), stream=True)
    await tried.fails(InvalidReply)
    assert b"".join(tried.client.read) == events(role, text)
    status, read, written, estimated = tried.numbers()
    assert (status, read, estimated) == ("partial", 900, True)
    assert written >= 20
    assert tried.answer.closed == 1


async def test_usage_heard_before_the_break_is_believed() -> None:
    role, text, *_ = chat_chunks("hello")
    tried = Tried(stream(events(role, text, {"choices": [], "usage": USAGE})), stream=True)
    await tried.fails(InvalidReply)
    assert tried.numbers() == ("partial", 800, 20, False)


@pytest.mark.parametrize("end", [b"", b"data: [DONE]", b"data: [DONE]\n", b": bye\n\n"])
async def test_a_finish_is_an_end_with_or_without_the_mark(end: bytes) -> None:
    tried = Tried(stream(events(*chat_chunks("hello")), end), stream=True)
    assert (await tried.run()).finish == "stop"
    assert b"".join(tried.rest).endswith(b"data: [DONE]\n\n")
    assert b"".join(tried.rest).count(b"[DONE]") == 1


async def test_a_finish_without_its_blank_line_is_still_read() -> None:
    tried = Tried(stream(events(*chat_chunks("hello")).rstrip(b"\n")), stream=True)
    assert (await tried.run()).finish == "stop"
    assert b'"stop"' in b"".join(tried.rest)


async def test_an_answer_that_says_nothing_is_whole_and_all_of_it_is_held() -> None:
    tried = Tried(streamed("", usage=usage(10, 0)), stream=True)
    await tried.run()
    assert tried.client.read == []
    assert b"".join(tried.rest) == events(*chat_chunks("", usage=usage(10, 0)), b"[DONE]")


async def test_one_event_is_bounded() -> None:
    tried = Tried(stream(b"data: " + b"x" * 500), stream=True, line_limit=100)
    await tried.fails(InvalidReply)
    assert tried.row.status == "failed"


async def test_a_stream_without_a_content_type_is_taken_for_one() -> None:
    answer = streamed("hello")
    answer._headers = {}
    tried = Tried(answer, stream=True)
    assert (await tried.run()).finish == "stop"


@pytest.mark.parametrize("done", [True, False])
async def test_with_normalise_the_usage_of_every_chunk_becomes_one_at_the_end(done: bool) -> None:
    chunks = [{**chunk, "usage": usage(10, place)} for place, chunk in enumerate(chat_chunks("hello"), 1)]
    tried = Tried(stream(*map(events, chunks), *([events(b"[DONE]")] if done else [])), stream=True, normalise=True)
    await tried.run()
    said = b"".join((*tried.client.read, *tried.rest))
    assert said.count(b'"usage"') == 1
    assert said.count(b"[DONE]") == 1
    assert tried.numbers() == ("ok", 10, len(chunks), False)


async def test_with_normalise_a_sound_frame_and_a_comment_stay_as_they_are() -> None:
    chunks = chat_chunks("hello", usage=USAGE)
    tried = Tried(stream(b": hi\n\n" + events(*chunks, b"[DONE]")), stream=True, normalise=True)
    await tried.run()
    assert b"".join((*tried.client.read, *tried.rest)) == events(*chunks, b"[DONE]")


@pytest.mark.parametrize(
    ("begun", "compaction", "told"),
    [(True, "recovered", 1), (False, "recovered", 0), (True, "auto", 1), (True, "none", 0)],
)
async def test_a_compaction_is_told_in_a_comment_once_the_head_is_gone(begun: bool, compaction: str, told: int) -> None:
    report = changed(REPORT, compaction=compaction)
    tried = Tried(streamed(""), stream=True, client=Reader(begun=begun), report=report)
    await tried.run()
    assert tried.rest.count(f": weirgate {context(report)}\n\n".encode()) == told


def test_a_model_name_that_a_client_made_up_breaks_no_header() -> None:
    told = context(changed(REPORT, compaction="auto", writer="m\r\nset-cookie: a=b; paused=no\u2028" + "x" * 999))
    assert told == f"tokens=900; window=1000; compaction=auto; notes={'m__set-cookie:_a_b__paused_no_' + 'x' * 98}"


# -- the connection afterwards -----------------------------------------------------------------------------------------


async def test_after_the_end_mark_the_rest_is_left_to_the_connection_and_nobody_waits() -> None:
    answer = stream(events(*chat_chunks("hello"), b"[DONE]"), asyncio.Event())
    tried = Tried(answer, stream=True)
    async with asyncio.timeout(10):
        await tried.run()
    assert (answer.left, answer.closed, answer.read_whole) == (1, 0, False)


async def test_an_answer_without_an_end_mark_is_closed() -> None:
    answer = stream(events(*chat_chunks("hello")))
    await Tried(answer, stream=True).run()
    assert (answer.left, answer.closed) == (0, 1)


# -- what ends it early ------------------------------------------------------------------------------------------------


async def cancelled(tried: Tried, reached: asyncio.Event) -> None:
    task = asyncio.create_task(tried.run())
    async with asyncio.timeout(10):
        await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def reaching(reached: asyncio.Event) -> Piece:
    """A piece that never comes, and says that it is waited for."""

    async def hang() -> None:
        reached.set()
        await asyncio.Event().wait()

    return hang


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_call_that_is_cancelled_in_its_body_is_closed_as_cancelled(streaming: bool) -> None:
    reached = asyncio.Event()
    role, text, *_ = chat_chunks("hello " * 20, size=120)
    answer = stream(events(role, text), reaching(reached)) if streaming else Answer(b"{", reaching(reached))
    tried = Tried(answer, stream=streaming)
    await cancelled(tried, reached)
    status, read, written, estimated = tried.numbers()
    assert (status, read, estimated, tried.row.http_status) == ("cancelled", 900, True, 200)
    assert (written >= 20) == streaming
    assert answer.closed == 1


async def test_a_call_that_is_cancelled_before_its_head_is_closed_as_cancelled() -> None:
    reached = asyncio.Event()

    async def never(request: Request) -> Answer:
        reached.set()
        await asyncio.Event().wait()
        raise AssertionError

    tried = Tried(never)
    await cancelled(tried, reached)
    assert tried.numbers() == ("cancelled", 900, 0, True)  # it may have read all of it, and bill for that
    assert tried.row.http_status is None


async def test_a_call_that_is_cancelled_before_it_was_made_cost_nothing() -> None:
    tried = Tried(whole(), opened=asyncio.CancelledError())
    await tried.fails(asyncio.CancelledError)
    assert tried.numbers() == ("cancelled", 0, 0, True)
    assert tried.provider.requests == []


async def test_a_client_that_leaves_while_it_is_written_to_makes_the_call_cancelled() -> None:
    reader = Reader()
    reader.fault = ClientLeft(said=True)
    tried = Tried(streamed("hello"), stream=True, client=reader)
    await tried.fails(ClientLeft)
    assert tried.row.status == "cancelled"
    assert tried.answer.closed == 1


async def test_a_fault_of_ours_closes_the_row_too() -> None:
    tried = Tried(ZeroDivisionError())
    await tried.fails(ZeroDivisionError)
    assert (tried.row.status, tried.row.error) == ("failed", "internal_error")


async def test_where_the_row_cannot_be_opened_no_call_is_made() -> None:
    tried = Tried(whole(), opened=StoreUnavailable("down"))
    await tried.fails(StoreUnavailable)
    assert tried.provider.requests == []
    assert (tried.row.status, tried.row.input, tried.row.http_status) == ("failed", 0, None)
