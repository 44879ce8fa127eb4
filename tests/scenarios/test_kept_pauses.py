"""A model asks its user in a conversation that the gateway keeps: the client answers with one message and nothing else.

What the model is told is what it is told of a client that sends its history (`test_pauses`).
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import BOUND, ScriptedUpstream
from tests.scenarios.gate import Gate, dialogue, prompts, shown, tool, user
from tests.scenarios.pausing import QUESTION, WEEK, approves, asking, asks, before, extends, last, pause_of
from tests.scenarios.skilled import FOUND, GREP, TONE, saying, scripted
from tests.scenarios.speaking import held, into, left_for
from tests.scenarios.test_conversation_items import PATH, Kept, brief, kept

both = pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
ASKED = saying("Let me see.", asks())
DONE = saying("Dear Ann.")
CLOSED = "The call timed out: the user did not answer before the question expired."


async def asked(weir: Gate, *, stream: bool, first: str = "Write to Ann.") -> Kept:
    """A conversation whose user has been asked something."""
    talk = await kept(weir, stream=stream)
    await talk.say(first)
    assert (await talk.state())["state"] == "paused"
    return talk


def later(weir: Gate, seconds: float) -> None:
    """From now on it is `seconds` later."""
    assert weir.app._gateway is not None
    weir.app._gateway.wall = lambda: time.time() + seconds
    weir.app._gateway.snapshots._wall = weir.app._gateway.wall


# -- the answer -------------------------------------------------------------------------------------------------------


@both
async def test_one_message_answers_the_question_and_the_turn_goes_on(stream: bool, tmp_path: Path) -> None:
    async with asking(tmp_path, ASKED, DONE, saying("Sent.")) as (weir, up):
        talk = await asked(weir, stream=stream)
        state = await talk.state()
        assert (state["turns"], state["pause"]["kind"], state["pause"]["options"]) == (
            1,
            "clarification_request",
            ["Ann Berg", "Ann Cole"],
        )
        assert await talk.say("2") == "Dear Ann."
        assert last(up, 3) == [
            {"role": "user", "content": "Write to Ann."},
            {"role": "assistant", "content": "Let me see.", "calls": ["q1"]},
            {"role": "tool", "content": "2", "answers": "q1"},
        ]
        state = await talk.state()
        assert (state["state"], state["turns"], "pause" in state) == ("idle", 1, False)
        await talk.say("Send it.")
        assert extends(up)
        assert (await talk.state())["turns"] == 2
        assert [row.conversation for row in await weir.rows()] == [talk.id] * 3


@both
async def test_an_approval_is_refused_in_the_users_own_words(stream: bool, tmp_path: Path) -> None:
    async with asking(tmp_path, saying(None, approves()), saying("Then not.")) as (weir, up):
        talk = await asked(weir, stream=stream)
        assert (await talk.state())["pause"]["action"] == "Send the letter"
        await talk.say("No, not today.")
        assert last(up, 1) == [{"role": "tool", "content": "No, not today.", "answers": "q1"}]


@both
async def test_the_answer_tells_its_client_what_was_asked(stream: bool, tmp_path: Path) -> None:
    async with asking(tmp_path, ASKED) as (weir, _):
        talk = await kept(weir)
        answer = await weir.ask([user("Write.")], model="support", conversation=talk.id, stream=stream)
        pause = pause_of(answer)
        assert (answer.finish, pause is not None and pause["id"]) == ("stop", "q1")
        assert answer.text == f"Let me see.\n\n{QUESTION}"


@both
async def test_a_slash_at_the_start_of_an_answer_selects_no_skill(stream: bool, tmp_path: Path) -> None:
    async with asking(tmp_path, ASKED, DONE) as (weir, up):
        talk = await asked(weir, stream=stream)
        await talk.say("/nobody /tone The second.")
        assert last(up, 1)[0]["content"] == "/nobody /tone The second."
        assert TONE not in shown(prompts(up)[-1][0])


@both
async def test_the_effort_of_the_turn_holds_for_its_answer(stream: bool, tmp_path: Path) -> None:
    async with asking(tmp_path, ASKED, DONE, DONE, agent={"effort": "low"}) as (weir, up):
        talk = await kept(weir, stream=stream)
        await talk.say("Write to Ann.", reasoning_effort="high")
        assert (await talk.state())["effort"] == "high"
        await talk.say("2")
        await talk.say("Thanks.")
        assert [entry.request.json.get("reasoning_effort") for entry in up.ledger] == ["high", "high", "low"]


@both
async def test_a_skill_that_was_withdrawn_meanwhile_refuses_the_answer_and_keeps_the_question(
    stream: bool, tmp_path: Path
) -> None:
    async with asking(tmp_path, ASKED, DONE) as (weir, up):
        talk = await asked(weir, stream=stream, first="/tone Write to Ann.")
        place = tmp_path / "skills" / "shared" / "tone" / "SKILL.md"
        text = place.read_text()
        for content, status in ((text.replace("description:", "users: [anna]\ndescription:"), 404), (text, 200)):
            place.write_text(content)
            weir.app.skills.reload()
            weir.app.places.forget()
            answer = await weir.ask([user("2")], model="support", conversation=talk.id, stream=stream)
            assert answer.status == status
            assert (await talk.state())["state"] == ("paused" if status == 404 else "idle")
        assert len(up.ledger) == 2
        assert last(up, 1) == [{"role": "tool", "content": "2", "answers": "q1"}]


@both
async def test_a_second_question_follows_the_first_in_one_turn(stream: bool, tmp_path: Path) -> None:
    async with asking(tmp_path, ASKED, saying(None, approves(id="q2")), DONE) as (weir, up):
        talk = await asked(weir, stream=stream)
        await talk.say("2")
        assert (await talk.state())["pause"]["kind"] == "approval_request"
        assert await talk.say("yes") == "Dear Ann."
        assert (await talk.state())["turns"] == 1
        assert extends(up)


@both
async def test_a_question_beside_the_clients_calls_waits_until_they_have_run(stream: bool, tmp_path: Path) -> None:
    async with asking(tmp_path, saying("See.", asks(), FOUND), saying(None, asks(id="q2")), DONE) as (weir, up):
        talk = await kept(weir, stream=stream)
        await talk.say("Write to Ann.", tools=[GREP])
        assert (await talk.state())["state"] == "waiting"
        assert await talk.say(tool("g1", "found"), tools=[GREP]) == QUESTION
        assert (await talk.state())["state"] == "paused"
        await talk.say("2", tools=[GREP])
        assert extends(up)


# -- no answer --------------------------------------------------------------------------------------------------------


@both
async def test_a_question_that_expired_is_closed_and_the_message_opens_a_turn(stream: bool, tmp_path: Path) -> None:
    async with asking(tmp_path, ASKED, DONE, DONE) as (weir, up):
        talk = await asked(weir, stream=stream)
        later(weir, WEEK + 60)
        assert (await talk.state())["state"] == "idle"
        await talk.say("/tone Good morning.")
        assert last(up, 2) == [
            {"role": "tool", "content": CLOSED, "answers": "q1"},
            {"role": "user", "content": "/tone Good morning."},
        ]
        assert TONE in shown(prompts(up)[-1][0])
        assert (await talk.state())["turns"] == 2
        await talk.say("And now?")
        *_, first, second = prompts(up)
        assert second[1 : len(first)] == first[1:]


@both
async def test_an_answer_in_time_stays_one_for_good(stream: bool, tmp_path: Path) -> None:
    async with asking(tmp_path, ASKED, DONE, DONE) as (weir, up):
        talk = await asked(weir, stream=stream)
        later(weir, WEEK - 60)
        await talk.say("2")
        later(weir, 10 * WEEK)
        await talk.say("Thanks.")
        assert extends(up)
        assert {"role": "tool", "content": "2", "answers": "q1"} in last(up, 3)


@both
async def test_a_policy_may_let_questions_wait_for_ever_or_not_long(stream: bool, tmp_path: Path) -> None:
    for expires, role in (("0", "tool"), ("30.5", "user")):
        folder = tmp_path / expires
        (folder / "policies").mkdir(parents=True)
        (folder / "policies" / "default.yaml").write_text(f'match: "*"\npause: {{expires: {expires}}}\n')
        async with asking(folder, ASKED, DONE, policies=folder / "policies") as (weir, up):
            talk = await asked(weir, stream=stream)
            later(weir, 100 * WEEK if expires == "0" else 60)
            await talk.say("2")
            assert last(up, 1)[0]["role"] == role
            assert (await talk.state())["turns"] == (1 if role == "tool" else 2)


@both
async def test_a_rewound_question_is_asked_no_more(stream: bool, tmp_path: Path) -> None:
    async with asking(tmp_path, ASKED, DONE) as (weir, up):
        talk = await asked(weir, stream=stream)
        back = await weir.client.post(f"{PATH}/{talk.id}/rewind", json={"turns": 1})
        assert back.json()["weirgate"]["state"] == "idle"
        await talk.say("2")
        assert last(up, 1) == [{"role": "user", "content": "2"}]


# -- who, and when ----------------------------------------------------------------------------------------------------


@both
async def test_of_two_clients_that_answer_at_once_one_is_heard(stream: bool, tmp_path: Path) -> None:
    slow, going, release = held(DONE)
    async with asking(tmp_path, ASKED, slow) as (weir, up), asyncio.timeout(BOUND):
        talk = await asked(weir, stream=stream)
        one = asyncio.create_task(talk.say("1"))
        await going.wait()
        two = await weir.ask([user("2")], model="support", conversation=talk.id, stream=stream)
        assert (two.status, two.code) == (409, "conversation_busy")
        assert (await talk.state())["state"] == "running"
        release.set()
        assert await one == "Dear Ann."
        assert last(up, 1) == [{"role": "tool", "content": "1", "answers": "q1"}]


@both
async def test_two_conversations_that_open_with_the_same_words_have_their_own_questions(
    stream: bool, tmp_path: Path
) -> None:
    async with asking(tmp_path, ASKED, saying("Hm.", asks("Which letter?", ())), DONE) as (weir, up):
        one, two = await asked(weir, stream=stream), await asked(weir, stream=stream)
        await two.say("The long one.")
        assert "Which letter?" in prompts(up)[-1][-2]["tool_calls"][0]["function"]["arguments"]
        assert (await one.state())["pause"]["question"] == "Which Ann?"
        await one.say("2")
        assert "Which Ann?" in prompts(up)[-1][-2]["tool_calls"][0]["function"]["arguments"]


@both
async def test_a_question_is_still_open_after_a_restart(stream: bool, tmp_path: Path) -> None:
    async with ScriptedUpstream(scripted(ASKED, DONE)) as up:
        async with before(up, tmp_path, file=tmp_path / "w.db") as weir:
            talk = await asked(weir, stream=stream)
        async with before(up, tmp_path, file=tmp_path / "w.db") as talk.weir:
            assert (await talk.state())["pause"]["question"] == "Which Ann?"
            await talk.say("2")
            assert (await talk.state())["state"] == "idle"
        assert last(up, 1) == [{"role": "tool", "content": "2", "answers": "q1"}]


@both
async def test_what_was_said_before_an_approval_was_asked_for_does_not_give_it(stream: bool, tmp_path: Path) -> None:
    slow, going, release = held(saying("Hm.", approves()))
    async with asking(tmp_path, slow, saying("Sent.")) as (weir, up), asyncio.timeout(BOUND):
        talk = await kept(weir, stream=stream)
        first = asyncio.create_task(talk.say("Write to Ann."))
        await going.wait()
        hurry = asyncio.create_task(into(talk, "Yes, but hurry."))
        await left_for(weir, 1)
        release.set()
        await first
        assert ((await hurry).status, (await hurry).code) == (409, "conversation_paused")
        assert (await talk.state())["state"] == "paused"
        assert len(up.ledger) == 1
        await talk.say("yes")
        assert last(up, 1) == [{"role": "tool", "content": "yes", "answers": "q1"}]
        assert "hurry" not in str(await talk.items())


# -- compaction -------------------------------------------------------------------------------------------------------


@both
async def test_nothing_is_compacted_while_a_question_is_open(stream: bool, tmp_path: Path) -> None:
    async with asking(tmp_path, saying("Hm.", asks()), DONE) as (weir, up):
        talk = await kept(weir, stream=stream)
        await talk.put(dialogue(8))
        await talk.say("Write to Ann.")
        said = await weir.client.post(f"{PATH}/{talk.id}/compact", json={})
        assert (said.json()["compaction"]["reason"], said.json()["weirgate"]["state"]) == ("running", "paused")
        typed = await talk.say("/compact")
        assert typed == said.json()["compaction"]["line"]
        assert (await talk.state())["compactions"] == []
        assert [brief(item)[2] for item in (await talk.items())[-4:]] == ["/compact", typed] * 2
        await talk.say("2")
        assert last(up, 1) == [{"role": "tool", "content": "2", "answers": "q1"}]


async def test_a_command_is_not_spoken_into_a_turn(tmp_path: Path) -> None:
    slow, going, release = held(DONE)
    async with asking(tmp_path, slow) as (weir, _), asyncio.timeout(BOUND):
        talk = await kept(weir)
        first = asyncio.create_task(talk.say("Write to Ann."))
        await going.wait()
        refused: list[Any] = [await into(talk, "/compact")]
        refused.append(await weir.ask([user("/compact")], model="support", conversation=talk.id))
        assert {(answer.status, answer.code) for answer in refused} == {(409, "conversation_busy")}
        said = await weir.client.post(f"{PATH}/{talk.id}/compact", json={"model": "support"})
        assert (said.status_code, said.json()["error"]["code"]) == (409, "conversation_busy")
        release.set()
        await first
        assert [brief(item)[2] for item in await talk.items()] == ["Write to Ann.", "Dear Ann."]
