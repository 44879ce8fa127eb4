"""POST /v1/conversations/{id}/compact: what `/compact` does as a message, with each refusal."""

from __future__ import annotations

from pathlib import Path

from tests.fakes import ScriptedUpstream
from tests.scenarios.gate import Wire, dialogue, gate, user
from tests.scenarios.pausing import asking, asks, honest
from tests.scenarios.skilled import FOUND, GREP, saying
from tests.scenarios.test_conversation_items import PATH, Kept, kept


async def compact(talk: Kept, **body: str) -> Wire:
    answer = await talk.weir.client.post(f"{PATH}/{talk.id}/compact", json=body)
    assert answer.status_code == 200, answer.text
    told: Wire = answer.json()
    assert (told["id"], told["object"]) == (talk.id, "conversation")
    return told


async def reason(talk: Kept, **body: str) -> str:
    """Why nothing was compacted."""
    told = await compact(talk, **body)
    said: Wire = told["compaction"]
    assert said["status"] == "not_compacted"
    assert (await talk.items())[-1]["content"][0]["text"] == said["line"]
    return str(said["reason"])


async def test_a_conversation_is_compacted_as_the_message_would(tmp_path: Path) -> None:
    said: list[list[str]] = []
    sent: list[list[str]] = []
    for typed in (True, False):
        async with ScriptedUpstream(honest("Well.")) as up, gate(up.url, window=8_192) as weir:
            talk = await kept(weir, model="scripted")
            await talk.put(dialogue(8))
            if typed:
                line = await talk.say("/compact the gate")
            else:
                told = await compact(talk, model="scripted", keep=" the \n gate ")
                assert told["compaction"]["line"] == line and line.startswith("Conversation compacted: ")
                assert told["compaction"]["status"] == "compacted"
                (made,) = told["weirgate"]["compactions"]
                assert (made["id"], made["trigger"]) == (told["compaction"]["compaction_id"], "MANUAL")
                assert (told["weirgate"]["state"], told["weirgate"]["turns"]) == ("idle", 9)
            await talk.say("And now?")
            items = await talk.items()
            said.append([item["trigger"] if "trigger" in item else item["content"][0]["text"] for item in items])
            sent.append([message["role"] for message in up.ledger[-1].request.messages])
            assert "Notes on turns 1-" in up.ledger[-1].request.messages[0]["content"]
    assert said[0] == said[1]
    assert said[0][-5:] == ["/compact the gate", "MANUAL", line, "And now?", "Well."]
    assert sent[0] == sent[1]


async def test_each_refusal_says_why_and_changes_nothing(tmp_path: Path) -> None:
    async with ScriptedUpstream(honest("Well.")) as up, gate(up.url, window=8_192) as weir:
        talk = await kept(weir, model="scripted")
        assert await reason(talk, model="scripted") == "nothing_yet"
        await talk.put(dialogue(8))
        assert (await compact(talk, model="scripted"))["compaction"]["status"] == "compacted"
        assert await reason(talk) == "nothing_new"
        assert len((await talk.state())["compactions"]) == 1
        assert up.ledger == []


async def test_nothing_is_compacted_while_the_turn_waits_for_somebody(tmp_path: Path) -> None:
    async with asking(tmp_path, saying("See.", FOUND)) as (weir, _):
        waiting = await kept(weir)
        await waiting.put(dialogue(8))
        await waiting.say("Write.", tools=[GREP])
        assert (await waiting.state())["state"] == "waiting"
        assert await reason(waiting) == "running"
    async with asking(tmp_path, saying(None, asks())) as (weir, _):
        paused = await kept(weir)
        await paused.put(dialogue(8))
        await paused.say("Write.")
        assert (await paused.state())["state"] == "paused"
        assert await reason(paused) == "running"


async def test_the_wish_reaches_the_model_that_writes_the_notes(tmp_path: Path) -> None:
    policy = "summary: {model: scripted}\n"
    async with (
        ScriptedUpstream(honest("Well.")) as up,
        gate(up.url, window=8_192, policy=policy, folder=tmp_path) as weir,
    ):
        talk = await kept(weir, model="scripted")
        await talk.put([*dialogue(8), user("Go on."), {"role": "assistant", "content": "I do."}])
        told = await compact(talk, model="scripted", keep="every gate by its number")
        assert told["compaction"]["status"] == "compacted"
        assert any("every gate by its number" in str(entry.request.messages) for entry in up.ledger)
        assert {row.end_user for row in await weir.rows()} == {None}
