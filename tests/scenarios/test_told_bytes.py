"""What a model must get back as it gave it: reasoning, signatures and opaque parts of the turn that is still open.

Providers refuse an open tool loop without them (research/compaction.md F20-F26); the gateway understands none of them,
and keeps them because the newest messages of a compacted prompt go out byte for byte.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.core.tail import clip
from proxy.dialects.chat.messages import read_message, write_message
from tests.fakes import ScriptedUpstream, tool_call
from tests.scenarios.gate import Wire, assistant, dialogue, gate, raw_messages, system, tool, user
from tests.strict import StrictUpstream

WINDOW = 3_000

THINKING: Wire = {
    **assistant("Let me look.", tool_call("c1", "read", {"path": "a.py"})),
    "thinking_blocks": [{"type": "thinking", "thinking": "Hm, a.py first.", "signature": "EqQBCkYIBxgCKkB"}],
}
REASONING: Wire = {
    **assistant(None, tool_call("c1", "read", {"path": "a.py"})),
    "reasoning_content": "The user wants a.py; I read it before I answer.",
}
SIGNED: Wire = assistant(
    None,
    {
        **tool_call("c1", "read", {"path": "a.py"}),
        "extra_content": {"google": {"thought_signature": "CvcQAdHtim9x/signed=="}},
    },
)
OPAQUE: Wire = {
    "role": "assistant",
    "content": [
        {"type": "compaction", "id": "cmp_01", "encrypted_content": "gAAAAABo+/blob=="},
        {"type": "text", "text": "I go on from there."},
    ],
    "tool_calls": [tool_call("c1", "read", {"path": "a.py"})],
}


async def told(newest: Wire) -> tuple[tuple[bytes, ...], bytes]:
    """The messages that went upstream where `newest` stands in the open loop of a compacted conversation; its bytes."""
    sent = json.dumps(newest, indent=1).encode()
    history = [system("Be brief."), *dialogue(12, words=80), user("Read a.py.")]
    rest = json.dumps(tool("c1", "x = 1")).encode()
    wires = [*(json.dumps(message).encode() for message in history), sent, rest]
    body = b'{"model":"scripted","messages":[' + b",".join(wires) + b"]}"
    strict = StrictUpstream(window=WINDOW, answer=lambda request: "Well.")
    async with ScriptedUpstream(strict) as up, gate(up.url, window=WINDOW) as weir:
        answer = await weir.send(body)
        assert (answer.status, answer.compaction, strict.violations) == (200, "auto", [])
        return raw_messages(up.ledger[-1].request.body), sent


async def test_the_thinking_of_an_open_loop_goes_out_byte_for_byte() -> None:
    prompt, sent = await told(THINKING)
    assert prompt[-2] == sent


async def test_the_reasoning_of_an_open_loop_goes_out_byte_for_byte() -> None:
    prompt, sent = await told(REASONING)
    assert prompt[-2] == sent


async def test_the_signature_of_a_call_goes_out_byte_for_byte() -> None:
    prompt, sent = await told(SIGNED)
    assert prompt[-2] == sent


async def test_a_part_that_nobody_here_can_read_goes_out_byte_for_byte() -> None:
    prompt, sent = await told(OPAQUE)
    assert prompt[-2] == sent


@pytest.mark.parametrize(
    "signed",
    [
        {"thinking_blocks": [{"type": "thinking", "thinking": "Hm.", "signature": "EqQBCkYIBxgCKkB"}]},
        {"reasoning_details": [{"type": "reasoning.encrypted", "data": "gAAAAABo"}]},
    ],
    ids=["thinking", "encrypted"],
)
def test_a_signature_leaves_with_the_text_that_it_signed(signed: dict[str, Any]) -> None:
    said = read_message(json.dumps({**assistant("word " * 400), **signed}).encode(), 0)
    cut = json.loads(write_message(clip(said, 200)))
    assert set(cut) == {"role", "content"}
    assert "characters were left out here by the gateway" in cut["content"]
