"""A call with layers, played as scripts: what the call before it left, and what a compaction makes of it."""

from __future__ import annotations

import pytest

from proxy.core.agent import Skill
from proxy.core.conversation import Message
from proxy.core.errors import Conflict, NotFound
from proxy.core.exchange import exchange
from proxy.core.hidden import kept
from proxy.core.policy import Mode
from proxy.core.stack import Trace
from proxy.core.steps import (
    Caller,
    Claim,
    Count,
    Hidden,
    Memory,
    Ran,
    Recall,
    Remember,
    RunTools,
    Send,
)
from tests.core.histories import call, flaws, lines, loop, model, result, system, user
from tests.core.scripts import WINDOW, compacted, notes, remembered
from tests.core.stacks import (
    ANNAS,
    GREP,
    HELLO,
    LOADED,
    NOTHING,
    SHELF,
    TONE,
    a_stack,
    after,
    alone,
    an_agent,
    asked,
    left,
    loads,
    prompts,
    ran,
    saying,
    snap,
)
from tests.playbook import Played, a_reply, a_snap, estimates, like, play

# -- the next call ----------------------------------------------------------------------------------------------------


def test_the_next_call_of_a_named_conversation_extends_the_last_rounds_prompt() -> None:
    first = alone()
    more = (*HELLO, model("Let me look.\n\nDone."), user("And Bob?"))
    second = alone(more, after(first))
    assert prompts(second)[0][: len(prompts(first)[-1])] == prompts(first)[-1]
    assert prompts(second)[0][len(prompts(first)[-1]) :] == (model("Done."), user("And Bob?"))
    report = second[Send][0].prompt.report
    grown = second[Send][0].prompt.estimated - first[Send][-1].prompt.estimated
    assert abs(report.tokens - (160 + grown * 160 / first[Send][-1].prompt.estimated)) < 2
    assert second[Send][0].prompt.shape == first[Send][0].prompt.shape


def test_an_end_user_names_a_conversation_as_well() -> None:
    caller = Caller(tenant="t", key="k", end_user="anna")
    played = play(
        exchange(asked(label=None, caller=caller), snap()),
        (like(Recall, named=True), Memory()),
        (like(Send), saying("Done.")),
        (remembered(), None),
    )
    assert left(played) is not None


def test_who_is_not_named_leaves_nothing_hidden() -> None:
    played = play(
        exchange(asked(label=None), snap(stated="high")),
        (like(Recall, named=False), Memory()),
        (like(Send), saying(loads())),
        ran(LOADED),
        (like(Send), saying("Done.")),
        (remembered(hidden=None), None),
    )
    assert played[Send][0].prompt.members["reasoning_effort"] == b"high"


def test_a_reply_that_the_client_altered_is_told_as_shown_behind_the_rounds() -> None:
    first = alone()
    more = (*HELLO, model("Let me look. Done, I hope."), user("And Bob?"))
    second = alone(more, after(first))
    assert prompts(second)[0] == (*prompts(first)[-1], *more[1:])


def test_of_two_answers_to_one_request_the_one_that_was_sent_back_goes_on() -> None:
    """The store picks the hidden state by the reply (`store.rows.choose`); either of them holds all decisions."""
    first = alone(stated="high")
    again = play(
        exchange(asked(), snap(shelf={})),  # nothing is offered by now, but the conversation has begun
        (like(Recall), after(first)),
        (like(Send, purpose="chat"), saying("Another.")),
        (remembered(), None),
    )
    one, two = left(first), left(again)
    assert one is not None
    assert two is not None
    assert (two.catalogue, two.effort) == (one.catalogue, "high")
    assert two.traces == ()
    assert again[Send][0].prompt.members["reasoning_effort"] == b"high"
    more = (*HELLO, model("Another."), user("Go on."))
    third = play(
        exchange(asked(more), snap(shelf={})),
        (like(Recall), after(again)),
        (like(Send), saying("Yes.")),
        (remembered(), None),
    )
    assert third[Send][0].prompt.members["tools"] == b'{"enum":["refund","tone"]}'
    assert prompts(third)[0][1:] == more


def test_a_resumed_turn_keeps_its_skills_and_its_effort_and_the_next_one_does_not() -> None:
    agent = an_agent(instructions="A.", effort="low")
    opening = (user("/tone Find it."),)
    first = play(
        exchange(asked(opening), snap(agent=agent, stated="high")),
        (like(Recall), Memory()),
        (like(Send), saying(GREP)),
        (remembered(), None),
    )
    made = left(first)
    assert made is not None
    assert (made.traces, made.effort) == ((Trace(kind="SKILL_SELECT", id=TONE.id),), "high")
    going = (*opening, model("", GREP), result("g1", "found"))
    second = play(
        exchange(asked(going), snap(agent=agent)),
        (like(Recall), after(first)),
        (like(Send), saying("Done.")),
        (remembered(hidden=None), None),
    )
    assert prompts(second)[0] == (*prompts(first)[0], *going[1:])
    assert second[Send][0].prompt.members == first[Send][0].prompt.members
    later = (*going, model("Done."), user("Thanks."))
    third = play(
        exchange(asked(later), snap(agent=agent)),
        (like(Recall), after(first, second)),
        (like(Send), saying("Bye.")),
        (remembered(hidden=None), None),
    )
    assert third[Send][0].prompt.members["reasoning_effort"] == b"low"
    assert TONE.text not in prompts(third)[0][0].text
    assert "- tone" in prompts(third)[0][0].text


def test_what_was_reported_with_a_skill_before_it_says_nothing_of_a_prompt_without() -> None:
    """An anchor holds for equal layers: a report of 900 tokens is not carried over to the turn behind it."""
    opening = (user("/tone Find it."),)
    first = play(
        exchange(asked(opening), snap()),
        (like(Recall), Memory()),
        (like(Send), saying("Done.", input=900)),
        (remembered(), None),
    )
    later = (*opening, model("Done."), user("Thanks."))
    second = play(
        exchange(asked(later), snap()), (like(Recall), after(first)), (like(Send), saying("Bye.")), (remembered(), None)
    )
    (one,), (two,) = first[Send], second[Send]
    assert one.prompt.shape != two.prompt.shape
    scale = 900 / one.prompt.estimated
    assert two.prompt.report.tokens == round(two.prompt.estimated * min(scale, 4))


def test_a_skill_that_was_withdrawn_meanwhile_refuses_the_resumed_turn_and_sends_nothing() -> None:
    opening = (user("/tone Find it."),)
    first = play(
        exchange(asked(opening), snap()), (like(Recall), Memory()), (like(Send), saying(GREP)), (remembered(), None)
    )
    going = (*opening, model("", GREP), result("g1", "found"))
    hidden = Skill(id=TONE.id, slug="tone", when="", text="", users=("anna",))
    draft = Skill(id=TONE.id, slug="tone", when="", text="", published=False)
    shelves: list[tuple[dict[str, Skill], type[Exception]]] = [
        ({}, NotFound),
        ({"tone": hidden}, NotFound),
        ({"tone": draft}, Conflict),
    ]
    for shelf, error in shelves:
        played = Played()
        with pytest.raises(error):
            play(exchange(asked(going), snap(shelf=shelf)), (like(Recall), after(first)), into=played)
        assert (played[Send], played[Remember]) == ([], [])


def test_a_refused_selection_sends_and_stores_nothing() -> None:
    played = Played()
    with pytest.raises(NotFound):
        play(exchange(asked((user("/nobody Hello"),)), snap()), (like(Recall), Memory()), into=played)
    assert len(played.steps) == 1


def test_the_catalogue_of_a_conversation_is_frozen_whatever_is_published_later() -> None:
    first = alone()
    more = (*HELLO, model("Let me look.\n\nDone."), user("And Bob?"))
    new = Skill(id="acme/new", slug="new", when="New.", text="[new]")
    second = alone(more, after(first), shelf={**SHELF, "new": new}, user="anna")
    assert second[Send][0].prompt.members == first[Send][0].prompt.members
    assert prompts(second)[0][0] == prompts(first)[0][0]
    assert "new" not in [entry.slug for entry in second[RunTools][0].catalogue]
    made = left(second)
    assert made is not None
    assert made.catalogue is None
    fresh = alone((user("Hi"),), shelf={**SHELF, "new": new}, user="anna")
    assert [entry.slug for entry in fresh[RunTools][0].catalogue] == [ANNAS.slug, "new", "refund", "tone"]


def test_the_same_request_again_takes_the_same_decision_with_layers_too() -> None:
    first = alone()
    again = alone(HELLO, after(first))
    assert prompts(again)[0] == prompts(first)[0]
    assert again[RunTools][0].loaded == frozenset()  # what the other answer loaded is not before the model


def test_the_client_comes_back_with_other_ids_and_its_results_still_meet_their_calls() -> None:
    played = play(
        exchange(asked(), snap()),
        (like(Recall), Memory()),
        (like(Send), saying("See.", loads(), GREP)),
        ran(LOADED),
        (remembered(), None),
    )
    back = (*HELLO, model("See.", call("other", "grep", what="x")), result("other", "found"))
    again = play(
        exchange(asked(back), snap()),
        (like(Recall), after(played)),
        (like(Send), saying("Done.")),
        (remembered(), None),
    )
    assert flaws(prompts(again)[0]) == []
    assert [item.id for item in prompts(again)[0][2].calls] == ["w1", "other"]


# -- layers and size --------------------------------------------------------------------------------------------------


def test_a_compaction_leaves_room_for_the_layers_and_leaves_them_alone() -> None:
    agent = an_agent(instructions=lines(60, "rule"))
    long = (system("Be brief."), *loop(50), user("And now?"))
    played = play(
        exchange(asked(long), snap(WINDOW, agent)),
        (like(Recall), Memory()),
        (like(Claim), True),
        (like(Count), estimates),
        (compacted(), None),
        (like(Send, prompt=notes()), a_reply()),
        (remembered(), None),
    )
    (prompt,) = prompts(played)
    made = played[Remember][0].compaction
    assert made is not None
    text = prompt[0].text
    assert lines(60, "rule") in text
    assert "Be brief." in text
    assert "rule 3:" not in prompt[1].text  # layers never enter notes
    assert played[Send][0].prompt.report.tokens <= 0.85 * WINDOW
    assert played[Send][0].prompt.estimated == 3 + 40 + sum(item.tokens for item in prompt)


def test_a_skill_of_the_open_turn_outlives_a_compaction_in_the_midst_of_it() -> None:
    """DESIGN 9 would cut it with the group it stands beside; issue 5 exempts it while its turn is open."""
    opening = (user("Find it."),)
    skill = lines(80, "rule")
    first = play(
        exchange(asked(opening), snap()),
        (like(Recall), Memory()),
        (like(Send), saying(loads())),
        ran(Ran(text=skill, skill=TONE.id)),
        (like(Send), saying(GREP)),
        (remembered(), None),
    )
    steps: list[Message] = []
    for number in range(30):
        steps += [model("", call(f"s{number}", "read")), result(f"s{number}", lines(25, f"step {number}"))]
    going = (*opening, model("", GREP), result("g1", "found"), *steps)
    played = play(
        exchange(asked(going), snap(WINDOW)),
        (like(Recall), after(first)),
        (like(Claim), True),
        (compacted(), None),
        (like(Send, prompt=notes()), saying(loads("w9"))),
        ran(NOTHING),
        (like(Send), saying("Done.")),
        (remembered(), None),
    )
    prompt = prompts(played)[0]
    assert flaws(prompt) == []
    place = prompt.index(result("w1", skill))
    assert prompt[place - 2 : place] == (*opening, model("", loads()))
    assert model("", GREP) not in prompt
    assert played[RunTools][0].loaded == {TONE.id}
    estimated = 3 + 40 + sum(item.tokens for item in prompt)
    assert played[Send][0].prompt.estimated == estimated
    made = played[Remember][0].compaction
    assert made is not None
    assert abs(made.after - played[Send][0].prompt.report.tokens) <= 0.02 * made.after


def test_what_notes_stand_for_may_be_loaded_again_and_they_name_it() -> None:
    first = alone()
    going = (*HELLO, model("Let me look.\n\nDone."), *loop(50), user("And now?"))
    played = play(
        exchange(asked(going), snap(WINDOW)),
        (like(Recall), after(first)),
        (like(Claim), True),
        (compacted(), None),
        (like(Send, prompt=notes()), saying(loads("w9"))),
        ran(LOADED),
        (like(Send), saying("Done.")),
        (remembered(), None),
    )
    assert played[RunTools][0].loaded == frozenset()
    prompt = prompts(played)[0]
    assert prompt[1].text.endswith("Skills used in the turns that these notes cover: tone")
    assert result("w1", TONE.text) not in prompt
    made = left(played)
    assert made is not None
    assert [trace.id for trace in made.traces] == [TONE.id]


def test_in_observe_the_provider_sees_the_clients_bytes_and_off_looks_at_nothing() -> None:
    for mode in (Mode.OBSERVE, Mode.OFF):
        stack = a_stack(an_agent(instructions="A."))
        lines_ = [] if mode is Mode.OFF else [(like(Recall), Memory())]
        end = [] if mode is Mode.OFF else [(remembered(hidden=None), None)]
        asks = asked((user("/nobody Hello"),))
        played = play(exchange(asks, a_snap(stack=stack, mode=mode)), *lines_, (like(Send), saying(loads())), *end)
        prompt = played[Send][0].prompt
        assert (prompt.messages, prompt.own, prompt.members, prompt.untouched) == (asks.messages, frozenset(), {}, True)


def test_hidden_state_is_kept_under_the_label_and_what_the_request_ends_with() -> None:
    (stored,) = alone()[Remember]
    assert stored.hidden == Hidden(
        digest=stored.request or b"", label="talk", payload=stored.hidden.payload if stored.hidden else b""
    )
    made = left(alone())
    assert made is not None
    assert made.rounds == (kept(model("Let me look.", loads())), kept(result("w1", TONE.text)))
