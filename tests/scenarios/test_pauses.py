"""A model asks its user, through the whole application: the turn waits, and his next message takes it up again.

The client sees text and `finish_reason: stop`; the model is told its own call, and the user's words as its result.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes import ScriptedUpstream, tool_call
from tests.scenarios.gate import Wire, assistant, prompts, shown, system, tool, user
from tests.scenarios.pausing import QUESTION, WEEK, Talk, approves, asking, asks, before, extends, last, later, pause_of
from tests.scenarios.skilled import FOUND, GREP, TONE, loads, saying, scripted

both = pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
ASKED = saying("Let me see.", asks())
DONE = saying("Dear Ann.")


# -- the answer -------------------------------------------------------------------------------------------------------


@both
async def test_what_the_user_answers_is_the_result_of_the_call_and_the_turn_goes_on(
    stream: bool, tmp_path: Path
) -> None:
    async with asking(tmp_path, ASKED, DONE, saying("Sent.")) as (weir, up):
        talk = Talk(weir, stream=stream)
        question = await talk.say("Write to Ann.")
        assert (question.text, question.finish) == (f"Let me see.\n\n{QUESTION}", "stop")
        assert not question.message.get("tool_calls")
        assert pause_of(question) == {
            "id": "q1",
            "kind": "clarification_request",
            "question": "Which Ann?",
            "options": ["Ann Berg", "Ann Cole"],
        }
        assert (await talk.say("2")).text == "Dear Ann."
        assert last(up, 3) == [
            {"role": "user", "content": "Write to Ann."},
            {"role": "assistant", "content": "Let me see.", "calls": ["q1"]},
            {"role": "tool", "content": "2", "answers": "q1"},
        ]
        await talk.say("Send it.")
        assert extends(up)
        assert [row.purpose for row in await weir.rows()] == ["chat"] * 3


@both
async def test_an_approval_says_how_to_answer_and_a_refusal_goes_to_the_model_as_it_was_said(
    stream: bool, tmp_path: Path
) -> None:
    async with asking(tmp_path, saying(None, approves()), saying("Then not.")) as (weir, up):
        talk = Talk(weir, stream=stream)
        question = await talk.say("Write to Ann.")
        assert question.text == (
            "Approval needed: Send the letter\nReason: It cannot be called back\n\n"
            "Reply yes to allow it; or say no, or what to do instead."
        )
        asked = {"action": "Send the letter", "reason": "It cannot be called back"}
        assert pause_of(question) == {"id": "q1", "kind": "approval_request", **asked}
        await talk.say("No, not today.")
        assert last(up, 1) == [{"role": "tool", "content": "No, not today.", "answers": "q1"}]


@both
async def test_any_text_answers_whatever_options_there_were(stream: bool, tmp_path: Path) -> None:
    async with asking(tmp_path, ASKED, DONE) as (weir, up):
        talk = Talk(weir, stream=stream)
        await talk.say("Write to Ann.")
        await talk.say('Neither. /tone Ask Bob, and "quote" him.\nTwice.')
        assert last(up, 1)[0]["content"] == 'Neither. /tone Ask Bob, and "quote" him.\nTwice.'


@both
async def test_a_slash_at_the_start_of_an_answer_selects_no_skill(stream: bool, tmp_path: Path) -> None:
    async with asking(tmp_path, ASKED, DONE) as (weir, up):
        talk = Talk(weir, stream=stream)
        await talk.say("Write to Ann.")
        assert (await talk.say("/nobody /tone The second.")).status == 200
        assert last(up, 1)[0]["content"] == "/nobody /tone The second."
        assert TONE not in shown(prompts(up)[-1][0])


@both
async def test_media_of_an_answer_follow_its_words(stream: bool, tmp_path: Path) -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGFsbG8="}}
    async with asking(tmp_path, ASKED, saying("A face.", asks("Send it?", (), id="q2")), DONE) as (weir, up):
        talk = Talk(weir, stream=stream)
        await talk.say("Write to Ann.")
        await talk.say({"role": "user", "content": [{"type": "text", "text": "This one."}, picture]})
        shows = {"role": "user", "content": [picture]}
        assert last(up, 2) == [{"role": "tool", "content": "This one.", "answers": "q1"}, shows]
        await talk.say({"role": "user", "content": [picture]})
        assert last(up, 2) == [
            {"role": "tool", "content": "(The answer is what is attached below.)", "answers": "q2"},
            shows,
        ]
        assert extends(up)


@both
async def test_what_stands_beside_the_answer_stays_what_it_is(stream: bool, tmp_path: Path) -> None:
    """Other users' messages behind it, and system messages between question and answer, which come behind both."""
    async with asking(tmp_path, ASKED, DONE, DONE) as (weir, up):
        talk = Talk(weir, stream=stream)
        await talk.say("Write to Ann.")
        await talk.say(system("It is noon."), "The second.", "/tone And be quick.")
        assert last(up, 3) == [
            {"role": "tool", "content": "The second.", "answers": "q1"},
            {"role": "system", "content": "It is noon."},
            {"role": "user", "content": "/tone And be quick."},
        ]
        await talk.say("Thanks.")
        assert extends(up)


# -- no answer --------------------------------------------------------------------------------------------------------


@both
async def test_a_question_that_expired_is_closed_by_a_sentence_and_the_message_is_a_new_turn(
    stream: bool, tmp_path: Path
) -> None:
    async with asking(tmp_path, ASKED, DONE, DONE) as (weir, up):
        talk = Talk(weir, stream=stream)
        await talk.say("Write to Ann.")
        later(weir, WEEK + 60)
        await talk.say("/tone Good morning.")
        closed = "The call timed out: the user did not answer before the question expired."
        assert last(up, 2) == [
            {"role": "tool", "content": closed, "answers": "q1"},
            {"role": "user", "content": "/tone Good morning."},
        ]
        assert TONE in shown(prompts(up)[-1][0])
        later(weir, WEEK + 120)
        await talk.say("And now?")
        *_, first, second = prompts(up)
        assert second[1 : len(first)] == first[1:]


@both
async def test_an_answer_in_time_stays_one_for_good(stream: bool, tmp_path: Path) -> None:
    async with asking(tmp_path, ASKED, DONE, DONE) as (weir, up):
        talk = Talk(weir, stream=stream)
        await talk.say("Write to Ann.")
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
            talk = Talk(weir, stream=stream)
            await talk.say("Write to Ann.")
            later(weir, 100 * WEEK if expires == "0" else 60)
            await talk.say("2")
            assert last(up, 1)[0]["role"] == role


@both
async def test_a_question_that_the_client_altered_is_told_as_it_is_shown(stream: bool, tmp_path: Path) -> None:
    async with asking(tmp_path, ASKED, DONE) as (weir, up):
        talk = Talk(weir, stream=stream)
        await talk.say("Write to Ann.")
        talk.messages[-1] = assistant("Which Ann do you mean?")
        await talk.say("/tone The second.")
        assert last(up, 2) == [
            {"role": "assistant", "content": "Which Ann do you mean?"},
            {"role": "user", "content": "/tone The second."},
        ]
        assert TONE in shown(prompts(up)[-1][0])  # it opens a turn


@both
async def test_without_a_label_the_question_is_part_of_the_conversation_and_nothing_else(
    stream: bool, tmp_path: Path
) -> None:
    async with asking(tmp_path, ASKED, DONE) as (weir, up):
        talk = Talk(weir, stream=stream, label=None)
        assert (await talk.say("Write to Ann.")).text == f"Let me see.\n\n{QUESTION}"
        await talk.say("2")
        # Our own member, which some clients send back, is no provider's affair.
        assert prompts(up)[-1][-2:] == [assistant(f"Let me see.\n\n{QUESTION}"), user("2")]
        assert (await weir.stored())["hidden"] == 0


@both
async def test_a_clients_own_compaction_request_is_no_answer(stream: bool, tmp_path: Path) -> None:
    wants = (
        "Your task is to create a detailed summary of the conversation so far, paying close attention to the user's "
        "explicit requests and your previous actions."
    )
    async with asking(tmp_path, saying("Hello."), ASKED, saying("A summary.")) as (weir, up):
        talk = Talk(weir, stream=stream)
        await talk.say("Hello.")
        await talk.say("Write to Ann.")
        await talk.say(wants)
        assert last(up, 2) == [
            {"role": "assistant", "content": f"Let me see.\n\n{QUESTION}"},
            {"role": "user", "content": wants},
        ]


# -- who asks, and when -----------------------------------------------------------------------------------------------


@both
async def test_two_clients_that_open_with_the_same_words_answer_their_own_questions(
    stream: bool, tmp_path: Path
) -> None:
    async with asking(tmp_path, ASKED, saying("Hm.", asks("Which letter?", ())), DONE, DONE) as (weir, up):
        one, two = Talk(weir, stream=stream, label="one"), Talk(weir, stream=stream, label="two")
        await one.say("Write to Ann.")
        await two.say("Write to Ann.")
        await two.say("The long one.")
        assert "Which letter?" in prompts(up)[-1][-2]["tool_calls"][0]["function"]["arguments"]
        await one.say("2")
        assert "Which Ann?" in prompts(up)[-1][-2]["tool_calls"][0]["function"]["arguments"]


@both
async def test_one_question_answered_in_two_windows_goes_on_in_both(stream: bool, tmp_path: Path) -> None:
    async with asking(tmp_path, ASKED, DONE) as (weir, up):
        one, two = Talk(weir, stream=stream), Talk(weir, stream=stream)
        await one.say("Write to Ann.")
        two.messages = list(one.messages)
        for talk, answer in ((one, "1"), (two, "2"), (one, "Thanks."), (two, "No.")):
            await talk.say(answer)
        results = [[item["content"] for item in prompt if item["role"] == "tool"] for prompt in prompts(up)[1:]]
        assert results == [["1"], ["2"], ["1"], ["2"]]


@both
async def test_a_question_is_still_open_after_a_restart(stream: bool, tmp_path: Path) -> None:
    async with ScriptedUpstream(scripted(ASKED, DONE)) as up:
        async with before(up, tmp_path, file=tmp_path / "w.db") as weir:
            talk = Talk(weir, stream=stream)
            await talk.say("Write to Ann.")
        async with before(up, tmp_path, file=tmp_path / "w.db") as talk.weir:
            await talk.say("2")
        assert last(up, 2)[0]["calls"] == ["q1"]
        assert last(up, 1) == [{"role": "tool", "content": "2", "answers": "q1"}]


@both
async def test_a_skill_that_was_withdrawn_meanwhile_refuses_the_answer(stream: bool, tmp_path: Path) -> None:
    async with asking(tmp_path, ASKED, DONE) as (weir, up):
        talk = Talk(weir, stream=stream)
        await talk.say("/tone Write to Ann.")
        place = tmp_path / "skills" / "shared" / "tone" / "SKILL.md"
        text = place.read_text()
        place.write_text(text.replace("description:", "users: [anna]\ndescription:"))
        weir.app.skills.reload()
        weir.app.places.forget()
        refused = await talk.say("2")
        assert (refused.status, refused.code) == (404, "skill_not_found")
        assert len(up.ledger) == 1
        place.write_text(text)
        weir.app.skills.reload()
        weir.app.places.forget()
        talk.messages.pop()
        await talk.say("2")
        assert TONE in shown(prompts(up)[-1][0])
        assert extends(up)


@both
async def test_the_effort_of_the_turn_holds_for_its_answer_and_no_longer(stream: bool, tmp_path: Path) -> None:
    async with asking(tmp_path, ASKED, DONE, DONE, agent={"effort": "low"}) as (weir, up):
        talk = Talk(weir, stream=stream)
        await talk.say("Write to Ann.", reasoning_effort="high")
        await talk.say("2")
        await talk.say("Thanks.")
        assert [entry.request.json.get("reasoning_effort") for entry in up.ledger] == ["high", "high", "low"]


# -- beside other tools -----------------------------------------------------------------------------------------------


@both
async def test_a_second_question_follows_the_first_in_one_turn(stream: bool, tmp_path: Path) -> None:
    async with asking(tmp_path, ASKED, saying(None, approves(id="q2")), DONE) as (weir, up):
        talk = Talk(weir, stream=stream)
        await talk.say("Write to Ann.")
        assert (await talk.say("2")).text.startswith("Approval needed: Send the letter")
        await talk.say("yes")
        assert [item["content"] for item in last(up, 4)] == ["Let me see.", "2", None, "yes"]
        assert extends(up)


@both
async def test_of_two_questions_at_once_one_is_asked(stream: bool, tmp_path: Path) -> None:
    async with asking(tmp_path, saying(None, asks(), approves(id="q2")), DONE) as (weir, up):
        talk = Talk(weir, stream=stream)
        assert (await talk.say("Write to Ann.")).text == QUESTION
        await talk.say("2")
        other, answer = last(up, 2)
        assert (other["answers"], answer["answers"], answer["content"]) == ("q2", "q1", "2")
        assert "one question at a time" in other["content"]


@both
async def test_a_skill_that_the_same_reply_loads_is_there_when_the_answer_comes(stream: bool, tmp_path: Path) -> None:
    async with asking(tmp_path, saying("Hm.", asks(), loads()), saying(None, loads(id="w2")), DONE) as (weir, up):
        talk = Talk(weir, stream=stream)
        assert (await talk.say("Write to Ann.")).text == f"Hm.\n\n{QUESTION}"
        assert (await talk.say("2")).text == "Dear Ann."
        call, skill, answer = last(up, 5)[:3]
        assert call["calls"] == ["q1", "w1"]
        assert (skill["answers"], TONE in skill["content"]) == ("w1", True)
        assert (answer["answers"], answer["content"]) == ("q1", "2")
        assert "loaded already" in last(up, 1)[0]["content"]
        assert extends(up)


@both
async def test_a_question_beside_the_clients_calls_waits_until_they_have_run(stream: bool, tmp_path: Path) -> None:
    async with asking(tmp_path, saying("See.", asks(), FOUND), saying(None, asks(id="q2")), DONE) as (weir, up):
        talk = Talk(weir, stream=stream)
        mixed = await talk.say("Write to Ann.", tools=[GREP])
        assert (mixed.text, mixed.finish, pause_of(mixed)) == ("See.", "tool_calls", None)
        assert [call["id"] for call in mixed.message["tool_calls"]] == ["g1"]
        assert (await talk.say(tool("g1", "found"), tools=[GREP])).text == QUESTION
        call, ours, theirs = last(up, 3)
        assert (call["calls"], ours["answers"], theirs["content"]) == (["q1", "g1"], "q1", "found")
        assert "your other tool calls run first" in ours["content"]
        await talk.say("2", tools=[GREP])
        assert extends(up)


@both
async def test_rounds_that_came_before_the_question_stay_before_it(stream: bool, tmp_path: Path) -> None:
    async with asking(tmp_path, saying("Let me look.", loads()), ASKED, DONE, DONE) as (weir, up):
        talk = Talk(weir, stream=stream)
        question = await talk.say("Write to Ann.")
        assert question.text == f"Let me look.\n\nLet me see.\n\n{QUESTION}"
        assert question.usages[-1]["completion_tokens"] == 10
        await talk.say("2")
        assert [item["role"] for item in last(up, 5)] == ["user", "assistant", "tool", "assistant", "tool"]
        await talk.say("Thanks.")
        assert extends(up)


@both
async def test_a_clients_tool_of_the_same_name_is_the_clients(stream: bool, tmp_path: Path) -> None:
    theirs: Wire = {"type": "function", "function": {"name": "ask_user", "parameters": {"type": "object"}}}
    async with asking(tmp_path, ASKED) as (weir, up):
        answer = await Talk(weir, stream=stream).say("Write to Ann.", tools=[theirs])
        assert (answer.finish, pause_of(answer)) == ("tool_calls", None)
        assert [call["id"] for call in answer.message["tool_calls"]] == ["q1"]
        names = [each["function"]["name"] for each in up.ledger[-1].request.json["tools"]]
        assert sorted(names) == ["ask_user", "load_skill", "read_tool_result", "request_approval"]


@both
async def test_a_call_that_asks_nothing_is_answered_and_the_model_goes_on(stream: bool, tmp_path: Path) -> None:
    nothing = tool_call("q1", "ask_user", {"options": ["yes"]})
    async with asking(tmp_path, saying("Hm.", nothing), DONE) as (weir, up):
        answer = await Talk(weir, stream=stream).say("Write to Ann.")
        assert (answer.text, pause_of(answer)) == ("Hm.\n\nDear Ann.", None)
        assert "The user was not asked" in last(up, 1)[0]["content"]


@both
async def test_a_request_for_an_answer_of_a_fixed_form_has_no_questions(stream: bool, tmp_path: Path) -> None:
    async with asking(tmp_path, DONE) as (weir, up):
        await Talk(weir, stream=stream).say("Write to Ann.", response_format={"type": "json_object"})
        assert "tools" not in up.ledger[-1].request.json
