"""`/compact` in conversations that the gateway keeps, as a message and as a route: when it is refused, what is read
back of it, and what becomes of it when its client leaves, its user stops it or the process ends.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import BOUND, Script, ScriptedUpstream, SeenRequest
from tests.scenarios.gate import Wire, dialogue, gate, shown, user
from tests.scenarios.pausing import honest
from tests.scenarios.speaking import held
from tests.scenarios.summarisers import GOOD, is_summary
from tests.scenarios.test_conversation_items import PATH, Kept, brief, kept
from tests.scenarios.test_kept_interruptions import ask, stop

both = pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
WINDOW = 8_192
POLICY = "summary: {model: scripted}\n"
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGFsbG8="}}
NOTES = "Notes on turns 1-"


def lines(items: list[Wire]) -> list[str]:
    return [brief(item)[2] for item in items if item["type"] == "message"]


async def route(talk: Kept, **body: str) -> Wire:
    said = await talk.weir.client.post(f"{PATH}/{talk.id}/compact", json={"model": "scripted", **body})
    value: Wire = said.json()
    return value | {"status": said.status_code}


async def marks(talk: Kept) -> list[tuple[str, str]]:
    """Each compaction by its trigger, and the line or answer that it stands in."""
    items = await talk.items()
    return [(item["trigger"], brief(after)[2]) for item, after in pairwise(items) if item["type"] == "compaction"]


# -- refused ----------------------------------------------------------------------------------------------------------


@both
async def test_each_refusal_of_a_message_says_why_and_changes_nothing(stream: bool) -> None:
    async with ScriptedUpstream(honest("Well.")) as up, gate(up.url, window=WINDOW) as weir:
        talk = await kept(weir, stream=stream, model="scripted")
        nothing = await talk.say("/compact")
        assert nothing == (await route(talk))["compaction"]["line"]
        await talk.put(dialogue(8))
        attached = {"role": "user", "content": [{"type": "text", "text": "/compact"}, PICTURE]}
        pictured = await talk.say(attached)
        assert (await talk.state())["compactions"] == []
        done = await talk.say("/compact")
        again = await talk.say("/compact")
        assert done.startswith("Conversation compacted: ")
        assert len({nothing, pictured, done, again}) == 4
        assert again == (await route(talk))["compaction"]["line"]
        assert len((await talk.state())["compactions"]) == 1
        assert await marks(talk) == [("MANUAL", done)]
        assert not any(item.get("phase") == "final_answer" for item in (await talk.items())[-8:])
        assert up.ledger == []


@both
async def test_a_conversation_whose_turn_runs_is_not_compacted(stream: bool) -> None:
    slow, going, release = held(honest("Well."))
    async with ScriptedUpstream(slow) as up, gate(up.url, window=WINDOW) as weir, asyncio.timeout(BOUND):
        talk = await kept(weir, stream=stream, model="scripted")
        await talk.put(dialogue(8))
        first = ask(talk, "Go on.")
        await going.wait()
        by_route = await route(talk)
        assert (by_route["status"], by_route["error"]["code"]) == (409, "conversation_busy")
        assert (await ask(talk, "/compact")).code == "conversation_busy"
        assert (await ask(talk, "/compact", headers={"x-weirgate-interject": "true"})).code == "conversation_busy"
        release.set()
        assert (await first).text == "Well."
        assert lines(await talk.items())[-2:] == ["Go on.", "Well."]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"keep": 7}, 400),
        ({"keep": "x" * 100_000}, 400),
        ({"model": "unknown", "keep": "a"}, 200),
        ({"what": "a"}, 400),
        ([], 400),
    ],
)
async def test_a_body_that_says_nothing_of_the_sort_is_refused(body: Any, code: int) -> None:
    async with ScriptedUpstream(honest("Well.")) as up, gate(up.url, window=WINDOW) as weir:
        talk = await kept(weir, model="scripted")
        await talk.put(dialogue(8))
        if isinstance(body, dict):
            body = {"model": "scripted", **body}
        answer = await weir.client.post(f"{PATH}/{talk.id}/compact", json=body)
        assert answer.status_code == code
        assert len((await talk.state())["compactions"]) == int(code == 200)


# -- done -------------------------------------------------------------------------------------------------------------


@both
async def test_what_was_compacted_is_told_after_a_restart_and_gone_with_a_rewind(stream: bool, tmp_path: Path) -> None:
    file = tmp_path / "w.db"
    async with ScriptedUpstream(honest("Well.")) as up:
        async with gate(up.url, window=WINDOW, file=file) as weir:
            talk = await kept(weir, stream=stream, model="scripted")
            await talk.put(dialogue(8))
            done = await talk.say("/compact the gate")
        async with gate(up.url, window=WINDOW, file=file) as talk.weir:
            await talk.say("And now?")
            assert NOTES in shown(up.ledger[-1].request.messages[0])
            assert await marks(talk) == [("MANUAL", done)]
            assert [each["turn"] for each in (await talk.state())["compactions"]] == [9]
            await talk.weir.client.post(f"{PATH}/{talk.id}/rewind", json={"turns": 2})
            assert await marks(talk) == []
            await talk.say("And now?")
            assert lines(await talk.items())[-2:] == ["And now?", "Well."]


# -- while the notes are written --------------------------------------------------------------------------------------


def writing() -> tuple[Any, asyncio.Event, asyncio.Event]:
    """A model that waits when it is asked for notes."""
    slow, going, release = held(honest(GOOD))

    async def model(request: SeenRequest, reply: Script) -> None:
        await (slow if is_summary(request) else honest("Well."))(request, reply)

    return model, going, release


@both
async def test_notes_whose_client_leaves_are_written_and_kept(stream: bool, tmp_path: Path) -> None:
    model, going, release = writing()
    more: dict[str, Any] = {"window": WINDOW, "policy": POLICY, "folder": tmp_path}
    async with ScriptedUpstream(model) as up, gate(up.url, **more) as weir, asyncio.timeout(BOUND):
        talk = await kept(weir, stream=stream, model="scripted")
        await talk.put(dialogue(8))
        first = ask(talk, "/compact")
        await going.wait()
        first.cancel()
        await asyncio.wait([first])
        assert (await talk.state())["state"] == "running"
        release.set()
        rows = await weir.rows()
        assert [(row.purpose, row.status, row.conversation) for row in rows] == [("compaction", "ok", talk.id)]
        assert [trigger for trigger, _ in await marks(talk)] == ["MANUAL"]
        assert (await talk.state())["state"] == "idle"


@both
@pytest.mark.parametrize("typed", [True, False], ids=["message", "route"])
async def test_notes_that_are_stopped_leave_the_command_and_no_line(stream: bool, typed: bool, tmp_path: Path) -> None:
    model, going, release = writing()
    more: dict[str, Any] = {"window": WINDOW, "policy": POLICY, "folder": tmp_path}
    async with ScriptedUpstream(model) as up, gate(up.url, **more) as weir, asyncio.timeout(BOUND):
        talk = await kept(weir, stream=stream, model="scripted")
        await talk.put(dialogue(8))
        first: asyncio.Task[Any] = ask(talk, "/compact") if typed else asyncio.create_task(route(talk))
        await going.wait()
        assert await stop(talk) == 200
        answer = await first
        assert (answer.code if typed else answer["error"]["code"]) == "turn_cancelled"
        state = await talk.state()
        assert (state["state"], state["compactions"]) == ("idle", [])
        release.set()
        await weir.rows()
        assert (await ask(talk, user("And now?"))).text == "Well."
        last = [shown(message) for message in up.ledger[-1].request.messages][-1]
        assert last == "And now?"
