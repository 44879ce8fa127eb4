"""A model that asks its user, played as scripts: where the call ends, what is remembered, and how it goes on."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from proxy.core.agent import MemoryLimits
from proxy.core.chain import message
from proxy.core.command import Reason
from proxy.core.conversation import Clarification, Message, Text, ToolCall
from proxy.core.errors import NotFound
from proxy.core.exchange import exchange
from proxy.core.hidden import Paused, kept
from proxy.core.pauses import LAPSED
from proxy.core.policy import Policy
from proxy.core.rounds import MOST
from proxy.core.steps import Claim, Memory, Ran, Recall, Remember, RunTools, Send
from tests.core.histories import PICTURE, call, flaws, lines, model, result, user
from tests.core.scripts import compacted, remembered
from tests.core.stacks import (
    GREP,
    HELLO,
    LOADED,
    TONE,
    after,
    an_agent,
    asked,
    left,
    loads,
    prompts,
    ran,
    saying,
    select,
    snap,
)
from tests.playbook import Played, changed, like, play, too_long

TOOLS = ("load_skill", "ask_user", "request_approval")
AGENT = an_agent(instructions="A.", tools=TOOLS)
ASK = call("q1", "ask_user", question="Which?")
QUESTION = Clarification(id="q1", question="Which?", options=("a", "b"))
WAITS = Ran(pause=QUESTION)
SHOWN = model("Hm.\n\nWhich?\n\n1. a\n2. b")
THEN = 1_000.0


def at(now: float, window: int | None = None, agent: Any = AGENT, **more: Any) -> Any:
    policy = more.pop("policy", Policy())
    return changed(snap(window, agent, **more), now=now, policy=policy)


def asking(messages: tuple[Message, ...] = HELLO, *, input: int | None = 100, **more: Any) -> Played:
    """The model asks its user."""
    return play(
        exchange(asked(messages, **more), at(THEN)),
        (like(Recall), Memory()),
        (like(Send, purpose="chat"), saying("Hm.", ASK, input=input)),
        ran(WAITS),
        (remembered(), None),
    )


def answering(*played: Played, answer: Message | None = None, now: float = THEN + 60, **more: Any) -> Played:
    messages = (*HELLO, SHOWN, answer or user("b"))
    return play(
        exchange(asked(messages), at(now, **more)),
        (like(Recall), after(*played)),
        (like(Send, purpose="chat"), saying("Done.", input=120)),
        (remembered(), None),
    )


def says(*messages: Message) -> list[tuple[str, tuple[Any, ...], bool]]:
    """All that a model reads of messages, and whether a user said it."""
    return [(item.role, item.blocks, item.by_user) for item in messages]


def answer_of(text: str) -> Message:
    """A result that the user gave."""
    return changed(result("q1", text), answer=True)


# -- a question -------------------------------------------------------------------------------------------------------


def test_a_question_ends_the_call_with_its_text_and_is_remembered_with_when_it_was_asked() -> None:
    played = asking()
    (run,) = played[RunTools]
    assert (run.calls, run.alone) == ((ASK,), True)
    outcome = played.outcome
    assert outcome.reply is not None
    assert (outcome.reply.message, outcome.reply.finish) == (SHOWN, "stop")
    assert (outcome.pause, outcome.joined, outcome.rounds) == (QUESTION, True, 1)
    state = left(played)
    assert state is not None
    assert state.pause == Paused(id="q1", at=THEN)
    assert (state.reply, state.shown, state.results) == (kept(model("Hm.", ASK)), SHOWN.digest, ())
    assert state.tools == TOOLS[1:]


def test_the_answer_is_its_result_and_the_next_prompt_begins_with_this_one() -> None:
    first = asking()
    second = answering(first)
    assert says(*prompts(second)[0]) == says(*prompts(first)[0], model("Hm.", ASK), answer_of("b"))
    assert second.outcome.pause is None
    state = left(second)
    assert state is not None
    assert state.resumed
    third = play(
        exchange(asked((*HELLO, SHOWN, user("b"), model("Done."), user("Thanks."))), at(THEN + 1e9)),
        (like(Recall), after(first, second)),
        (like(Send), saying("Gladly.")),
        (remembered(), None),
    )
    assert prompts(third)[0] == (*prompts(second)[0], model("Done."), user("Thanks."))


def test_rounds_and_other_tools_of_the_same_reply_come_before_the_answer() -> None:
    first = play(
        exchange(asked(), at(THEN)),
        (like(Recall), Memory()),
        (like(Send), saying("Let me look.", loads())),
        ran(LOADED),
        (like(Send, purpose="tool_round"), saying("Hm.", ASK, loads("w2"))),
        ran(WAITS, Ran(text="loaded already above")),
        (remembered(), None),
    )
    shown = model("Let me look.\n\nHm.\n\nWhich?\n\n1. a\n2. b")
    assert first.outcome.reply is not None
    assert first.outcome.reply.message == shown
    second = play(
        exchange(asked((*HELLO, shown, user("b"))), at(THEN)),
        (like(Recall), after(first)),
        (like(Send), saying("Done.")),
        (remembered(), None),
    )
    assert says(*prompts(second)[0]) == says(
        *prompts(first)[-1],
        model("Hm.", ASK, loads("w2")),
        result("w2", "loaded already above"),
        answer_of("b"),
    )
    assert flaws(prompts(second)[0]) == []


def test_beside_calls_of_the_clients_nothing_is_asked() -> None:
    played = play(
        exchange(asked(), at(THEN)),
        (like(Recall), Memory()),
        (like(Send), saying("See.", ASK, GREP)),
        (like(RunTools, calls=(ASK,), alone=False), (Ran(text="Not now."),)),
        (remembered(), None),
    )
    assert played.outcome.pause is None
    assert played.outcome.reply is not None
    assert played.outcome.reply.finish == "tool_calls"
    state = left(played)
    assert state is not None
    assert state.pause is None


def test_a_question_in_the_last_round_is_left_unasked_and_unseen() -> None:
    lines_: list[Any] = []
    for number in range(MOST):
        lines_ += [(like(Send), saying("Hm.", ASK)), ran(Ran(text=f"Ask better {number}."))]
    played = play(
        exchange(asked(), at(THEN)),
        (like(Recall), Memory()),
        *lines_,
        (like(Send), saying("Enough.", ASK)),
        (remembered(), None),
    )
    assert played.outcome.pause is None
    assert played.outcome.reply is not None
    assert played.outcome.reply.finish == "stop"
    assert played.outcome.reply.message is not None
    assert "Which" not in played.outcome.reply.message.text


def test_a_question_that_was_cut_off_is_not_asked() -> None:
    played = play(
        exchange(asked(), at(THEN)),
        (like(Recall), Memory()),
        (like(Send), saying("Hm.", ToolCall(id="q1", name="ask_user", arguments='{"ques'), finish="length")),
        (remembered(), None),
    )
    assert (played.outcome.pause, played[RunTools]) == (None, [])


def test_who_states_no_label_is_asked_and_nothing_is_remembered() -> None:
    played = asking(label=None)
    assert played.outcome.pause == QUESTION
    assert left(played) is None


# -- how it goes on ---------------------------------------------------------------------------------------------------


def test_an_answer_belongs_to_the_turn_that_asked() -> None:
    messages = (user("/tone Begin."),)
    first = asking(messages)
    assert [trace.kind for trace in first[Remember][0].traces] == ["SKILL_SELECT"]
    second = play(
        exchange(asked((*messages, SHOWN, user("/refund b"))), at(THEN)),
        (like(Recall), after(first)),
        (like(Send), saying("Done.")),
        (remembered(traces=()), None),
    )
    assert TONE.text in prompts(second)[0][0].text
    assert "[refund]" not in prompts(second)[0][0].text


def test_a_skill_of_the_turn_that_may_not_be_seen_any_more_refuses_the_answer() -> None:
    messages = (user("/tone Begin."),)
    first = asking(messages)
    hidden_ = {"tone": msgspec.structs.replace(TONE, users=("anna",))}
    with pytest.raises(NotFound, match="/tone"):
        play(
            exchange(asked((*messages, SHOWN, user("b"))), at(THEN, shelf=hidden_)),
            (like(Recall), after(first)),
        )
    assert select(TONE) == first[Remember][0].traces


def test_a_question_that_expired_is_answered_by_nobody() -> None:
    first = asking()
    policy = Policy(pause_expires=30.0)
    second = answering(first, now=THEN + 31, policy=policy)
    assert prompts(second)[0][-3:] == (model("Hm.", ASK), result("q1", LAPSED), user("b"))
    state = left(second)
    assert state is None or not state.resumed
    third = answering(first, now=THEN + 30, policy=policy)
    assert says(prompts(third)[0][-1]) == says(answer_of("b"))


def test_a_command_while_the_turn_waits_is_refused_and_behind_the_answer_is_not() -> None:
    first = asking()
    refused = play(
        exchange(asked((*HELLO, SHOWN, user("/compact"))), at(THEN)),
        (like(Recall), after(first)),
    )
    assert refused.outcome.said is not None
    assert refused.outcome.said.reason is Reason.RUNNING
    line = model(refused.outcome.said.line)
    second = play(
        exchange(asked((*HELLO, SHOWN, user("/compact"), line, user("b"))), at(THEN)),
        (like(Recall), after(first)),
        (like(Send), saying("Done.")),
        (remembered(), None),
    )
    assert says(*prompts(second)[0][-2:]) == says(model("Hm.", ASK), answer_of("b"))
    lapsed = play(
        exchange(asked((*HELLO, SHOWN, user("/compact"))), at(THEN + 1e9)),
        (like(Recall), after(first)),
        (like(Claim), True),
    )
    assert lapsed.outcome.said is not None
    assert lapsed.outcome.said.reason is not Reason.RUNNING


def test_an_overflow_while_the_turn_goes_on_never_parts_the_question_from_its_answer() -> None:
    talk = (*[each for turn in range(12) for each in (user(f"Q{turn} {lines(20)}"), model(f"A{turn}"))], *HELLO)
    first = asking(talk, input=None)
    second = play(
        exchange(asked((*talk, SHOWN, user(f"b {lines(40)}"))), at(THEN, 3_000)),
        (like(Recall), after(first)),
        (like(Claim), True),
        (compacted(), None),
        (like(Send), too_long(limit=2_500, requested=3_000)),
        (like(Remember), None),
        (like(Claim), True),
        (compacted(), None),
        (like(Send), saying("Done.")),
        (remembered(), None),
    )
    for prompt in prompts(second):
        assert flaws(prompt) == []
        assert says(prompt[-2]) == says(model("Hm.", ASK))
        assert prompt[-1].results[0].text.startswith("b line 0")
        assert HELLO[0] in prompt


def test_memory_keeps_all_of_an_answer() -> None:
    agent = an_agent(instructions="A.", tools=TOOLS, memory=MemoryLimits(step=1, calls=1))
    long = " ".join(f"street {number}" for number in range(200))
    first, second = asking(), answering(asking(), answer=user(long))
    messages = (*HELLO, SHOWN, user(long), model("Done."))
    for extra in ((), (user("One."), model("1")), (user("One."), model("1"), user("Two."), model("2")) * 2):
        later = play(
            exchange(asked((*messages, *extra, user("Thanks."))), at(THEN, agent=agent)),
            (like(Recall), after(first, second)),
            (like(Send), saying("Gladly.")),
            (remembered(), None),
        )
        assert says(*prompts(later)[0][1:5]) == says(HELLO[0], model("", ASK), answer_of(long), model("Done."))


def test_media_of_an_answer_stand_behind_it_in_every_later_prompt() -> None:
    answer = user("This.", PICTURE)
    first = asking()
    second = answering(first, answer=answer)
    shows = message("user", (Text(text="", media=(PICTURE,)),))
    assert says(*prompts(second)[0][-2:]) == says(answer_of("This."), shows)
    third = play(
        exchange(asked((*HELLO, SHOWN, answer, model("Done."), user("Thanks."))), at(THEN)),
        (like(Recall), after(first, second)),
        (like(Send), saying("Gladly.")),
        (remembered(), None),
    )
    assert prompts(third)[0][:-2] == prompts(second)[0]
