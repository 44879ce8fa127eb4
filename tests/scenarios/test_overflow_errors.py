"""Every recorded overflow error, and every recorded error that only looks like one, played by the provider.

The request is one that can be compacted. An overflow must lead to a smaller prompt and an answer, or to the one final
text; anything else must never cost the client a word of its conversation.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests import data
from tests.fakes import Script, ScriptedUpstream, SeenRequest, chat_chunks, chat_reply, usage
from tests.scenarios.conftest import Figure
from tests.scenarios.gate import Answer, Gate, Wire, dialogue, gate, system, user
from tests.strict import StrictUpstream, quarter

NOTES = "<conversation-notes"
ORDER = [system("Be brief."), *dialogue(12), user("And now?")]
"""About 4,000 tokens that a compaction halves."""


def compacted(request: SeenRequest) -> bool:
    return NOTES in request.body.decode("utf-8", "replace")


def decidable(row: dict[str, Any]) -> bool:
    """A text or a code decides it. Silent forms and reasons of finishing are scenarios of their own below."""
    return not (row["is_overflow"] and (row["where"] == "finish_reason" or row["note"].startswith("kind=silent")))


class Refusing:
    """Answers whatever holds no notes with a recorded error, everything else with a word."""

    def __init__(self, row: dict[str, Any]) -> None:
        body = row["body"]
        self.body = (body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)).encode()
        self.status: int = 400 if row["http_status"] is None else row["http_status"]
        self.sse: bool = row["where"] == "sse"

    @property
    def stream(self) -> bool:
        return self.sse and self.status == 200

    async def __call__(self, request: SeenRequest, reply: Script) -> None:
        if compacted(request) or request.json.get("max_tokens", 1 << 20) < 512:
            await say(request, reply, "Well.")
        elif not self.stream:
            await reply.json(self.status, self.body)
        else:
            framed = self.body.startswith((b"data:", b"event:", b"error:"))
            await reply.head(200, {"content-type": "text/event-stream"})
            await reply.write(self.body if framed else b"data: " + self.body + b"\n\n")
            await reply.end()


async def say(request: SeenRequest, reply: Script, text: str, used: int = 100) -> None:
    if request.stream:
        await reply.sse(chat_chunks(text, usage=usage(used, 2)))
    else:
        await reply.json(200, chat_reply(text, usage=usage(used, 2)))


async def asked(weir: Gate, row: dict[str, Any], provider: Refusing) -> Answer:
    # A model of its own for each row: what one teaches must not help or hinder the next.
    more: dict[str, Any] = {"stream": True} if provider.stream else {}
    if "input_plus_output" in row["note"]:
        more["max_tokens"] = 512
    return await weir.ask(ORDER, model=f"model-of-{row['id']}", **more)


@pytest.mark.data
async def test_recorded_overflows_are_cured_and_nothing_else_is(figure: Figure) -> None:
    rows = [row for row in data.overflow_errors() if decidable(row)]
    missed: list[str] = []
    alarms: list[str] = []
    async with ScriptedUpstream(lambda request, reply: current(request, reply)) as up, gate(up.url) as weir:
        for row in rows:
            current = Refusing(row)
            up.ledger.clear()
            answer = await asked(weir, row, current)
            assert answer.status < 600
            cured = answer.status == 200 and len(up.ledger) > 1 and answer.text == "Well."
            told = answer.code == "context_length_exceeded"
            if row["is_overflow"] and not (cured or told):
                missed.append(row["id"])
            if not row["is_overflow"] and (told or any(compacted(entry.request) for entry in up.ledger)):
                alarms.append(row["id"])
    print("missed:", missed, "false alarms:", alarms)
    overflows = sum(row["is_overflow"] for row in rows)
    assert overflows > 100 and len(rows) - overflows > 80
    figure.all(
        ("overflow errors through the gateway: recall", 1 - len(missed) / overflows, ">= 0.98"),
        ("overflow errors through the gateway: false alarms", len(alarms) / (len(rows) - overflows), "<= 0.01"),
    )


@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
async def test_what_nothing_can_cure_is_told_in_the_one_text_that_clients_know(stream: bool) -> None:
    provider = StrictUpstream(window=2_000, answer=lambda request: "Well.")
    async with ScriptedUpstream(provider) as up, gate(up.url, window=2_000) as weir:
        long = system(" ".join(f"rule{number}" for number in range(1_500)))
        answer = await weir.ask([long, *dialogue(3), user("And?")], stream=stream)
        rows = await weir.rows()
    assert (answer.status, answer.code, answer.streamed) == (400, "context_length_exceeded", False)
    assert answer.error is not None and "prompt is too long" in answer.error["message"]
    assert "maximum context length is 2000 tokens" in answer.error["message"]
    assert answer.headers["x-should-retry"] == "false"
    assert [row.status for row in rows] == ["failed"] * len(up.ledger)


async def test_an_overflow_is_tried_again_three_times_at_most_and_always_smaller() -> None:
    async def never(request: SeenRequest, reply: Script) -> None:
        await reply.json(400, {"error": {"message": "prompt is too long", "code": "context_length_exceeded"}})

    async with ScriptedUpstream(never) as up, gate(up.url, window=8_000) as weir:
        answer = await weir.ask([*dialogue(12, words=120), user("And now?")])
        sizes = [len(entry.request.body) for entry in up.ledger]
        rows = await weir.rows()
    assert answer.code == "context_length_exceeded"
    assert 2 <= len(sizes) <= 4
    assert sizes == sorted(set(sizes), reverse=True)
    assert [row.purpose for row in rows] == ["chat"] + ["recovery"] * (len(sizes) - 1)
    assert {row.parent for row in rows[1:]} == {rows[0].id}


# -- silent ----------------------------------------------------------------------------------------------------------


def front_cut(window: int, kept: Callable[[int, int], int]) -> StrictUpstream:
    """Answers everything, and reports what it read after cutting the front off in silence."""

    class Cutting(StrictUpstream):
        def measure(self, body: Any) -> int:
            whole = super().measure(body)
            return whole if whole <= window else kept(whole, window)

    return Cutting(window=None, answer=lambda request: "Well.")


@pytest.mark.parametrize(
    ("kept", "stated"),
    [
        (lambda whole, window: window // 2 + 3, 4_096),
        (lambda whole, window: window // 2 + 3, None),
        (lambda whole, window: window, 4_096),
        (lambda whole, window: window, None),
    ],
    ids=["half, window right", "half, window unknown", "stuck, window right", "stuck, window unknown"],
)
async def test_a_prompt_that_was_cut_in_silence_teaches_the_limit_and_the_next_call_compacts(
    kept: Callable[[int, int], int], stated: int | None, figure: Figure
) -> None:
    """Ollama answers 200 to a prompt whose front it threw away; only its report gives that away."""
    window = 4_096
    provider = front_cut(window, kept)
    policy_window = stated * 2 if stated else None  # too high, else nothing would ever be cut
    async with ScriptedUpstream(provider) as up, gate(up.url, window=policy_window) as weir:
        history: list[Wire] = [system("Be brief.")]
        cut: list[bool] = []
        calls: list[int] = []
        for turn in dialogue(40, words=80)[::2]:
            history.append(turn)
            before = len(up.ledger)
            answer = await weir.ask(history)
            calls.append(len(up.ledger) - before)
            sent = StrictUpstream.measure(provider, up.ledger[-1].request.json)
            whole = StrictUpstream(window=None).measure(up.ledger[-1].request.json)
            cut.append(whole > window)
            assert answer.status == 200 and sent
            history.append(answer.message)
        stored = await weir.stored()
    assert calls == [1] * len(calls), "something was sent twice"
    assert any(cut), "nothing was cut: the scenario is wrong"
    assert stored["compaction"] > 0
    figure(f"silent cut, window {stated}: prompts cut", sum(cut), "<= 3")


# -- mid-generation --------------------------------------------------------------------------------------------------


async def test_an_overflow_in_the_middle_of_an_answer_is_passed_on_as_an_error_frame() -> None:
    async def half(request: SeenRequest, reply: Script) -> None:
        await reply.head(200, {"content-type": "text/event-stream"})
        for chunk in chat_chunks("Half of an answer", finish=None):
            await reply.event(chunk)
        await reply.event({"error": {"message": "context size exceeded", "code": "context_length_exceeded"}})
        await reply.end()

    async with ScriptedUpstream(half) as up, gate(up.url, window=8_000) as weir:
        answer = await weir.ask(ORDER, stream=True)
        rows = await weir.rows()
    assert (answer.status, answer.text, answer.finish, answer.done) == (200, "Half of an answer", None, False)
    assert answer.code == "context_length_exceeded"
    assert len(up.ledger) == 1
    assert [row.status for row in rows] == ["partial"]


@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
async def test_an_answer_that_the_window_ended_is_valid_as_far_as_it_goes(stream: bool) -> None:
    async def full(request: SeenRequest, reply: Script) -> None:
        told, why = usage(7_000, 1_000), "model_context_window_exceeded"
        if request.stream:
            await reply.sse(chat_chunks("As far as it goes", finish=why, usage=told))
        else:
            await reply.json(200, chat_reply("As far as it goes", finish=why, usage=told))

    async with ScriptedUpstream(full) as up, gate(up.url, window=8_000) as weir:
        answer = await weir.ask(ORDER, stream=stream)
    assert (answer.status, answer.text, answer.finish) == (200, "As far as it goes", "model_context_window_exceeded")
    assert len(up.ledger) == 1


@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
@pytest.mark.parametrize("why", ["length", "model_context_window_exceeded"])
async def test_a_window_that_left_no_room_for_a_single_word_is_an_overflow(stream: bool, why: str) -> None:
    """MiMo and Z.ai end such an answer at once; it is cured like a refusal."""

    async def empty(request: SeenRequest, reply: Script) -> None:
        if compacted(request):
            await say(request, reply, "Well.")
            return
        told = usage(8_000, 0)
        if request.stream:
            await reply.sse(chat_chunks("", finish=why, usage=told))
        else:
            await reply.json(200, chat_reply("", finish=why, usage=told))

    async with ScriptedUpstream(empty) as up, gate(up.url, window=8_000) as weir:
        answer = await weir.ask(ORDER, stream=stream)
        rows = await weir.rows()
    assert (answer.status, answer.text, answer.compaction) == (200, "Well.", "recovered")
    assert len(up.ledger) == 2
    assert [row.purpose for row in rows] == ["chat", "recovery"]


# -- input and output together ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [4_000, None], ids=["window known", "window unknown"])
async def test_a_requested_output_that_does_not_fit_is_lowered_and_said_so(window: int | None) -> None:
    provider = StrictUpstream(window=4_000, answer=lambda request: "Well.")
    messages = [system("Be brief."), *dialogue(5, words=100), user("And now?")]
    async with ScriptedUpstream(provider) as up, gate(up.url, window=window) as weir:
        for stated in ("max_tokens", "max_completion_tokens"):
            limit: dict[str, Any] = {stated: 3_500}
            answer = await weir.ask(messages, **limit)
            assert answer.status == 200
            lowered = up.ledger[-1].request.json[stated]
            assert 16 <= lowered < 3_500
            assert answer.headers["x-weirgate-max-output"] == str(lowered)
            assert not compacted(up.ledger[-1].request)
        if window is not None:
            assert provider.overflows <= 1
    assert quarter("word") == 1
