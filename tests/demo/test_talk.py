"""The demo's conversation over the real SDK, against a scripted provider: what is kept, counted and reported."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from openai import OpenAI

from demo.conversation import RECALL, TURNS
from demo.talk import Spoken, compacted, context, hold
from tests.clients.replay import Provider, Recording, provider

ANSWER = [
    b'{"id":"1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"Yes."}}]}',
    b'{"id":"1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}',
    b'{"id":"1","object":"chat.completion.chunk","created":1,"model":"m","choices":[],'
    b'"usage":{"prompt_tokens":70,"completion_tokens":2,"total_tokens":72}}',
]
REFUSAL = {"message": "request (2090 tokens) exceeds the available context size (2048 tokens)", "n_prompt_tokens": 2090}


@pytest.fixture
def server() -> Iterator[Provider]:
    recordings = {
        "yes": Recording(ANSWER),
        "full": Recording([json.dumps({"error": REFUSAL}).encode()], status=400),
        "cut": Recording(ANSWER[:1], done=False),
        "silent": Recording(ANSWER[1:]),
    }
    with provider(recordings) as running:
        yield running


def _hold(server: Provider, model: str, turns: int = 2) -> list[Spoken]:
    with OpenAI(base_url=server.base_url, api_key="k", timeout=10, max_retries=0) as client:
        return list(hold(client, model, "Be brief.", TURNS[:turns]))


def test_an_answered_turn_reports_its_text_and_usage(server: Provider) -> None:
    first, second = _hold(server, "yes")
    assert (first.number, first.answered, first.answer, first.tokens, first.completion) == (1, True, "Yes.", 70, 2)
    assert (second.number, second.error, second.compaction, second.window) == (2, "", "none", None)


def test_a_refused_turn_is_no_answer_and_names_the_size_that_was_refused(server: Provider) -> None:
    (first, _) = _hold(server, "full")
    assert (first.answered, first.tokens, first.answer) == (False, 2090, "")
    assert first.error.startswith("400: request (2090 tokens) exceeds")


@pytest.mark.parametrize("model", ["cut", "silent", "unknown"])
def test_a_stream_without_an_end_or_without_words_is_no_answer(server: Provider, model: str) -> None:
    assert [one.answered for one in _hold(server, model)] == [False, False]


def test_the_context_header_is_read_in_any_spacing() -> None:
    assert context("tokens=812; window=2048;compaction=auto") == {
        "tokens": "812",
        "window": "2048",
        "compaction": "auto",
    }
    assert context(None) == {} == context("")


def _turn(number: int, tokens: int, compaction: str = "none") -> Spoken:
    return Spoken(
        number=number, answered=True, tokens=tokens, window=2048, compaction=compaction,
        prompt=tokens, completion=1, seconds=0.1, answer="Yes.",
    )  # fmt: skip


def test_a_compaction_is_a_turn_whose_prompt_became_smaller() -> None:
    spoken = [_turn(1, 1600), _turn(2, 1700), _turn(3, 900, "auto"), _turn(4, 960, "auto"), _turn(5, 700, "recovered")]
    assert [one.number for one in compacted(spoken)] == [3, 5]


def test_the_conversation_has_forty_turns_and_asks_at_the_end_for_what_was_said_at_the_start() -> None:
    assert len(TURNS) == 40 == len(set(TURNS))
    name, code = (TURNS[at] for at in RECALL)
    assert "name of my son" in name and "Felix" in TURNS[0]
    assert "booking code" in code and "QX7-41LM" in TURNS[2]
