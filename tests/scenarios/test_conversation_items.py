"""What was said in a conversation that the gateway keeps, read back: blocks of all seven kinds, in order."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from proxy.store.sqlite import REACH
from tests.fakes import BOUND, Script, ScriptedUpstream, SeenRequest, chat_chunks, chat_reply, usage
from tests.scenarios.acts import Act
from tests.scenarios.gate import Gate, Wire, dialogue, gate, tool, user
from tests.scenarios.pausing import QUESTION, approves, asking, asks, honest
from tests.scenarios.skilled import FOUND, GREP, TONE, loads, saying

both = pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
PATH = "/v1/conversations"


def thinking(text: str | None, *calls: Wire, thought: str) -> Act:
    """As `saying`, with reasoning before it, where DeepSeek puts it."""

    async def act(request: SeenRequest, reply: Script) -> None:
        counted = usage(40 + 10 * len(request.messages), 5)
        if request.stream:
            chunks = list(chat_chunks(text, calls=calls, usage=counted))
            first: Any = chunks[0]
            first["choices"][0]["delta"]["reasoning_content"] = thought
            await reply.sse(chunks)
        else:
            value = chat_reply(text, calls=calls, usage=counted)
            value["choices"][0]["message"]["reasoning_content"] = thought
            await reply.json(200, value)

    return act


class Kept:
    """One conversation, as a client of it sees it."""

    def __init__(self, weir: Gate, id: str, *, stream: bool = False, model: str = "support") -> None:
        self.weir = weir
        self.id = id
        self.stream = stream
        self.model = model

    async def say(self, *said: str | Wire, **more: Any) -> str:
        messages = [user(each) if isinstance(each, str) else each for each in said]
        answer = await self.weir.ask(messages, model=self.model, conversation=self.id, stream=self.stream, **more)
        assert answer.status == 200, answer.body
        assert answer.done is self.stream
        return answer.text

    async def put(self, messages: list[Wire]) -> None:
        for first in range(0, len(messages), 20):
            body = {"items": messages[first : first + 20]}
            answer = await self.weir.client.post(f"{PATH}/{self.id}/items", json=body)
            assert answer.status_code == 200, answer.text

    async def items(self) -> list[Wire]:
        found: list[Wire] = []
        more, after = True, ""
        while more:
            answer = await self.weir.get(f"{PATH}/{self.id}/items?order=asc&limit=40{after}")
            assert answer.status_code == 200, answer.text
            value = answer.json()
            found += value["data"]
            more, after = value["has_more"], f"&after={value['last_id']}"
        assert len({item["id"] for item in found}) == len(found)
        return found

    async def state(self) -> Wire:
        said: Wire = (await self.weir.get(f"{PATH}/{self.id}")).json()["weirgate"]
        return said


async def kept(weir: Gate, **more: Any) -> Kept:
    made = await weir.client.post(PATH, json={})
    return Kept(weir, made.json()["id"], **more)


def brief(item: Wire) -> tuple[str, str, str]:
    """(what it is, who hears it, what it says)."""
    kind = item["type"].removeprefix("weirgate.")
    if kind == "message" or kind == "reasoning":
        said = item["content"][0]["text"]
    elif kind == "function_call":
        said = item["name"]
    elif kind == "function_call_output":
        said = item["output"]
    elif kind == "compaction":
        said = item["trigger"]
    else:
        said = item["question"] if "question" in item else item["action"]
    return kind, item["audience"], said


@both
async def test_blocks_of_every_kind_are_told_in_the_order_in_which_they_came(stream: bool, tmp_path: Path) -> None:
    acts = (
        thinking("Let me see.", loads(), thought="A letter."),
        thinking("Hm.", asks(), thought="Two of them."),
        thinking("See.", loads(id="w2"), FOUND, thought="Where?"),
        thinking(None, approves(id="q2"), thought="Careful."),
        thinking("Dear Ann.", thought="Warm."),
    )
    async with asking(tmp_path, *acts) as (weir, _):
        talk = await kept(weir, stream=stream)
        assert await talk.say("Write to Ann.") == f"Let me see.\n\nHm.\n\n{QUESTION}"
        waits = await talk.state()
        assert (waits["state"], waits["turns"], waits["pause"]["question"]) == ("paused", 1, "Which Ann?")
        assert await talk.say("2", tools=[GREP]) == "See."
        assert (await talk.state())["state"] == "waiting"
        await talk.say(tool("g1", "nothing"), tools=[GREP])
        assert (await talk.state())["pause"]["action"] == "Send the letter"
        assert await talk.say("yes", tools=[GREP]) == "Dear Ann."
        ended = await talk.state()
        assert (ended["state"], ended["turns"], "pause" in ended) == ("idle", 1, False)
        items = await talk.items()
    letter = "Approval needed: Send the letter\nReason: It cannot be called back"
    told = [
        ("message", "both", "Write to Ann."),
        ("reasoning", "told", "A letter."),
        ("message", "both", "Let me see."),
        ("function_call", "told", "load_skill"),
        ("function_call_output", "told", f'<skill_content name="tone">\n{TONE}\n</skill_content>'),
        ("reasoning", "told", "Two of them."),
        ("message", "both", "Hm."),
        ("message", "shown", QUESTION),
        ("clarification_request", "both", "Which Ann?"),
        ("message", "both", "2"),
        ("reasoning", "told", "Where?"),
        ("message", "both", "See."),
        ("function_call", "told", "load_skill"),
        ("function_call", "both", "grep"),
        ("function_call_output", "told", 'The skill "tone" is loaded already above; follow it.'),
        ("function_call_output", "both", "nothing"),
        ("reasoning", "told", "Careful."),
        ("message", "shown", f"{letter}\n\nReply yes to allow it; or say no, or what to do instead."),
        ("approval_request", "both", "Send the letter"),
        ("message", "both", "yes"),
        ("reasoning", "shown", "Warm."),
        ("message", "both", "Dear Ann."),
    ]
    assert [brief(item) for item in items] == told
    assert {item["component"] for item in items} == {"main"}
    assert [item["content"][0]["text"] for item in items if item.get("phase") == "final_answer"] == ["Dear Ann."]
    called = [item["call_id"] for item in items if item["type"] == "function_call"]
    answered = [item["call_id"] for item in items if item["type"] == "function_call_output"]
    assert sorted(called) == sorted(answered)
    assert items[8]["options"] == ["Ann Berg", "Ann Cole"]


@both
async def test_notes_stand_in_the_answer_that_they_came_into_use_with(stream: bool, tmp_path: Path) -> None:
    async with ScriptedUpstream(honest("Well.")) as up, gate(up.url, window=4_096) as weir:
        talk = await kept(weir, stream=stream, model="scripted")
        await talk.put(dialogue(8))
        compacted = await talk.say("/compact")
        assert compacted.startswith("Conversation compacted: ")
        assert await talk.say("And now?") == "Well."
        items = await talk.items()
        (made,) = (await talk.state())["compactions"]
        notes = [place for place, item in enumerate(items) if item["type"] == "compaction"]
        assert [brief(items[place]) for place in range(notes[0] - 1, len(items))] == [
            ("message", "both", "/compact"),
            ("compaction", "both", "MANUAL"),
            ("message", "both", compacted),
            ("message", "both", "And now?"),
            ("message", "both", "Well."),
        ]
        assert len(notes) == 1 and "Notes on turns 1-6 of this conversation" in items[notes[0]]["notes"]
        assert (made["trigger"], made["turn"], made["tokens_before"] > made["tokens_after"]) == ("MANUAL", 9, True)
        assert [item["content"][0]["text"] for item in items if item.get("phase") == "final_answer"] == ["Well."]

        await talk.put(dialogue(20, name="meadow"))
        assert await talk.say("Still there?") == "Well."
        items = await talk.items()
        assert [brief(item)[2] for item in items if item["type"] == "compaction"] == ["MANUAL", "AUTO"]
        assert brief(items[-2]) == ("compaction", "both", "AUTO")
        assert [each["trigger"] for each in (await talk.state())["compactions"]] == ["MANUAL", "AUTO"]

        back = await weir.client.post(f"{PATH}/{talk.id}/rewind", json={"turns": 1})
        assert [each["trigger"] for each in back.json()["weirgate"]["compactions"]] == ["MANUAL"]
        assert [brief(item)[2] for item in await talk.items() if item["type"] == "compaction"] == ["MANUAL"]


async def test_every_compaction_is_told_once_however_many_there_were(tmp_path: Path) -> None:
    async with ScriptedUpstream(honest("Well.")) as up, gate(up.url, window=2_048) as weir:
        talk = await kept(weir, model="scripted")
        for round in range(20):  # more than the store tells of one branch
            await talk.put(dialogue(9, name=f"harbour{round}"))
            await talk.say("And now?")
        found = [brief(item) for item in await talk.items() if item["type"] == "compaction"]
        made = (await talk.state())["compactions"]
        assert found == [("compaction", "both", "AUTO")] * len(made)
        used = dict.fromkeys(row.compaction_id for row in await weir.rows() if row.compaction_id)
        assert [each["id"] for each in made] == [*used] and len(used) > REACH
        assert [each["turn"] for each in made] == sorted(each["turn"] for each in made)


async def test_what_was_said_into_a_turn_stands_behind_what_was_done_before_it(tmp_path: Path) -> None:
    asked, go = asyncio.Event(), asyncio.Event()

    async def looks(request: SeenRequest, reply: Script) -> None:
        asked.set()
        await go.wait()
        await saying("Let me look.", loads())(request, reply)

    async with asking(tmp_path, looks, saying("Dear Cole.")) as (weir, _), asyncio.timeout(BOUND):
        talk = await kept(weir)
        first = asyncio.create_task(talk.say("Write to Ann."))
        await asked.wait()
        body = {"model": "support", "conversation": talk.id, "messages": [user("To Cole, I mean.")]}
        into = asyncio.create_task(weir.send(body, headers={"x-weirgate-interject": "true"}))
        while not await left(weir):
            await asyncio.sleep(0)
        go.set()
        assert await first == "Let me look.\n\nDear Cole."
        assert (await into).text == "Let me look.\n\nDear Cole."
        assert [brief(item) for item in await talk.items()] == [
            ("message", "both", "Write to Ann."),
            ("message", "both", "Let me look."),
            ("function_call", "told", "load_skill"),
            ("function_call_output", "told", f'<skill_content name="tone">\n{TONE}\n</skill_content>'),
            ("message", "both", "To Cole, I mean."),
            ("message", "both", "Dear Cole."),
        ]
        assert [item["turn"] for item in await talk.items()] == [1] * 6


async def left(weir: Gate) -> int:
    """How many messages wait to be read by a running turn."""
    return int((await weir.read("SELECT count(*) FROM interjection"))[0][0])
