"""The gateway's own line, as strict clients read it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.core.command import Reason, Result, refused
from proxy.core.steps import Call, Caller
from proxy.dialects.chat.own import own_answer

DONE = Result(
    status="compacted",
    line="Conversation compacted: turns 1-34, 118,200 -> 21,900 tokens.",
    turns=34,
    part=False,
    tokens_before=118_200,
    tokens_after=21_900,
    compaction_id="cmp_x",
    writer="m",
)


def a_call(**more: Any) -> Call:
    return Call(caller=Caller(tenant="t", key="k"), model="fast", messages=(), fields={}, body=b"", **more)


def test_a_body_is_a_finished_choice_with_what_became_of_the_command() -> None:
    body, rest = own_answer(a_call(), DONE, "chatcmpl-1", 1_700_000_000.9)
    said = json.loads(body)
    assert rest == ()
    assert (said["id"], said["object"], said["created"], said["model"]) == (
        "chatcmpl-1",
        "chat.completion",
        1_700_000_000,
        "fast",
    )
    (choice,) = said["choices"]
    assert (choice["finish_reason"], choice["message"]["role"]) == ("stop", "assistant")
    assert choice["message"]["content"] == DONE.line
    told = choice["message"]["weirgate"]["compaction"]
    assert (told["status"], told["turns"], told["tokens_after"], told["writer"]) == ("compacted", 34, 21_900, "m")
    assert said["usage"] == {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


def test_a_refusal_says_its_reason_and_no_numbers() -> None:
    body, _ = own_answer(a_call(), refused(Reason.RUNNING), "chatcmpl-1", 0.0)
    told = json.loads(body)["choices"][0]["message"]["weirgate"]["compaction"]
    assert (told["status"], told["reason"]) == ("not_compacted", "running")
    assert "tokens_after" not in told


@pytest.mark.parametrize("include_usage", [False, True])
def test_a_stream_ends_like_any_other(include_usage: bool) -> None:
    body, rest = own_answer(a_call(stream=True, include_usage=include_usage), DONE, "chatcmpl-1", 0.0)
    assert body == b""
    assert rest[-1] == b"data: [DONE]\n\n"
    chunks = [json.loads(frame.removeprefix(b"data: ")) for frame in rest[:-1]]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    spoken = [chunk for chunk in chunks if chunk["choices"]]
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in spoken) == DONE.line
    assert [chunk["choices"][0]["finish_reason"] for chunk in spoken] == [None, "stop"]
    assert all(("usage" in chunk) is include_usage for chunk in chunks)
    assert len(chunks) - len(spoken) == include_usage
