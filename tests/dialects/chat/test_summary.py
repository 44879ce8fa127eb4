"""What a summary model is sent: the members of the allow-list, and nothing of the call that is served."""

from __future__ import annotations

import json

import pytest

from proxy.core.chain import message
from proxy.core.conversation import Text
from proxy.core.steps import Call, Caller, Prompt, Report
from proxy.core.summary import FIELDS
from proxy.dialects.chat.request import encode_prompt
from proxy.dialects.chat.summary import summary_call

CALLER = Caller(tenant="t", key="k")
ASKED = (message("user", (Text(text="Write the notes."),)),)


def sent(call: Call, model: str) -> dict[str, object]:
    prompt = Prompt(
        messages=ASKED,
        untouched=False,
        max_output=call.max_output,
        estimated=9,
        shape=b"",
        report=Report(conversation="c", tokens=9, window=None),
    )
    body: dict[str, object] = json.loads(encode_prompt(call, prompt, model))
    return body


def test_only_what_is_allowed_is_sent() -> None:
    body = sent(summary_call(CALLER, "small", ASKED, 512), "small")
    assert set(body) == set(FIELDS)
    assert body["messages"] == [{"role": "user", "content": "Write the notes."}]
    assert (body["model"], body["max_tokens"], body["stream"]) == ("small", 512, True)
    assert body["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize(
    ("model", "stated", "member"),
    [
        ("gpt-4o", None, "max_tokens"),
        ("o3-mini", None, "max_completion_tokens"),
        ("openai/gpt-5", None, "max_completion_tokens"),
        ("proto3", None, "max_tokens"),
        ("gpt-4o", "max_completion_tokens", "max_completion_tokens"),
        ("gpt-5", "max_tokens", "max_tokens"),
    ],
)
def test_the_limit_goes_by_the_name_that_the_model_takes(model: str, stated: str | None, member: str) -> None:
    body = sent(summary_call(CALLER, model, ASKED, 64, output_field=stated), model)
    assert body[member] == 64
    assert len({"max_tokens", "max_completion_tokens"} & set(body)) == 1
