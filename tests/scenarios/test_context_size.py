"""A turn's context size (DESIGN 12) is that of its newest call on its own model. A summary has its own, in its row."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.core.usage import UsageRow
from tests.fakes import ScriptedUpstream, SeenRequest, tool_call
from tests.scenarios.gate import Wire, dialogue, gate, user
from tests.scenarios.summarisers import GOOD, is_summary
from tests.strict import StrictUpstream

READ = "read_tool_result"
WINDOW = 8_192


def says(request: SeenRequest) -> Wire | str:
    """Writes notes when asked for them; in the conversation it reads something first, and then answers."""
    if is_summary(request):
        return GOOD
    if request.messages[-1]["role"] == "tool":
        return "There is none."
    return {"content": None, "tool_calls": [tool_call("r", READ, {"reference": "res_" + "a" * 24})]}


@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
async def test_each_call_of_the_turn_overwrites_it_and_a_summary_does_not(stream: bool, tmp_path: Path) -> None:
    strict = StrictUpstream(window=WINDOW, answer=says)
    agents = {"clerk": {"model": "fast", "instructions": "Help.", "tools": [READ], "memory": False}}
    models = {"fast": {"upstream": "main", "model": "scripted"}}
    policy = f"window: {WINDOW}\nsummary: {{retries: 0}}\n"
    history = [*dialogue(50), user("What did the notes refer to?")]
    async with (
        ScriptedUpstream(strict) as up,
        gate(up.url, window=WINDOW, policy=policy, folder=tmp_path, models=models, agents=agents) as weir,
    ):
        answer = await weir.ask(history, model="clerk", stream=stream, headers={"x-session-id": "talk"})
        rows: dict[str, UsageRow] = {row.purpose: row for row in await weir.rows()}
    assert answer.status == 200 and strict.violations == []
    summary, first, last = rows["compaction"], rows["chat"], rows["tool_round"]
    assert summary.projected and first.projected and last.projected
    assert first.projected < last.projected, "the round was added"
    assert int(answer.context["tokens"]) == last.projected != summary.projected
    assert last.input == strict.prompts[-1], "as the provider counts it"
    assert answer.usages == [] if stream else answer.usages[-1]["prompt_tokens"] == last.input
    assert {row.request for row in rows.values()} == {first.request}
    assert summary.conversation == first.conversation
