"""A call with layers and tools of ours, played as scripts: rounds, their failures, and what the next call has of it."""

from __future__ import annotations

import pytest

from proxy.core.errors import ClientLeft, InvalidReply, RateLimited, WindowExceeded
from proxy.core.exchange import exchange
from proxy.core.rounds import MOST
from proxy.core.steps import (
    Claim,
    Count,
    Memory,
    Ran,
    Recall,
    Remember,
    Reply,
    RunTools,
    Send,
)
from proxy.core.usage import Usage
from tests.core.histories import flaws, lines, loop, model, result, user
from tests.core.scripts import WINDOW, compacted, notes, remembered, whole
from tests.core.stacks import (
    GREP,
    HELLO,
    LOADED,
    NOTHING,
    REFUND,
    TONE,
    Dressed,
    after,
    alone,
    asked,
    left,
    loads,
    prompts,
    ran,
    saying,
    snap,
)
from tests.playbook import Played, estimates, like, play, that, too_long

# -- rounds -----------------------------------------------------------------------------------------------------------


def test_a_load_is_answered_within_the_call_and_the_client_sees_one_message() -> None:
    played = alone()
    first, second = prompts(played)
    assert second == (*first, model("Let me look.", loads()), result("w1", TONE.text))
    outcome = played.outcome
    assert outcome.reply == Reply(
        message=model("Let me look.\n\nDone."), finish="stop", usage=Usage(input=160, output=4)
    )
    assert (outcome.rounds, outcome.read, outcome.joined, outcome.recoveries) == (2, 260, True, 0)
    (run,) = played[RunTools]
    assert [entry.slug for entry in run.catalogue] == ["refund", "tone"]
    assert run.loaded == frozenset()
    for step in played[Send]:
        assert step.prompt.own == {"load_skill"}
        assert step.prompt.members == {"tools": b'{"enum":["refund","tone"]}'}
        assert not step.prompt.untouched


def test_the_anchor_is_of_the_last_round_and_the_reply_is_the_shown_one() -> None:
    played = alone()
    (stored,) = played[Remember]
    last = played[Send][-1].prompt
    assert stored.anchor is not None
    assert (stored.anchor.reported, stored.anchor.estimated, stored.anchor.shape) == (160, last.estimated, last.shape)
    assert stored.sample == (160, last.estimated, 0)
    assert last.estimated == 3 + 40 + sum(item.tokens for item in last.messages)
    assert last.shape == played[Send][0].prompt.shape
    plain = play(
        exchange(asked(), snap()),
        (like(Recall), Memory()),
        (like(Send), saying("Let me look.\n\nDone.")),
        (remembered(), None),
    )
    assert stored.reply == plain[Remember][0].reply


def test_a_call_without_ours_is_one_round_and_its_answer_is_left_as_it_came() -> None:
    for reply in (saying("Done."), saying("See.", GREP)):
        played = play(exchange(asked(), snap()), (like(Recall), Memory()), (like(Send), reply), (remembered(), None))
        assert played.outcome.reply is reply
        assert (played.outcome.rounds, played.outcome.joined) == (1, False)


def test_a_reply_to_both_is_split_and_put_back_under_one_message() -> None:
    played = play(
        exchange(asked(), snap()),
        (like(Recall), Memory()),
        (like(Send), saying("See.", loads(), GREP, input=100)),
        ran(LOADED),
        (remembered(), None),
    )
    assert played.outcome.reply == Reply(
        message=model("See.", GREP), finish="tool_calls", usage=Usage(input=100, output=2)
    )
    assert (played.outcome.rounds, played.outcome.joined) == (1, True)
    back = (*HELLO, model("See.", GREP), result("g1", "found"))
    again = play(
        exchange(asked(back), snap()),
        (like(Recall), after(played)),
        (like(Send), saying("Done.")),
        (remembered(), None),
    )
    (prompt,) = prompts(again)
    assert prompt[1:] == (*HELLO, model("See.", loads(), GREP), result("w1", TONE.text), result("g1", "found"))
    assert flaws(prompt) == []
    (step,) = play(
        exchange(asked(back), snap()),
        (like(Recall), after(played)),
        (like(Send), saying(loads())),
        ran(LOADED),
        (like(Send), saying("Done.")),
        (remembered(), None),
    )[RunTools]
    assert step.loaded == {TONE.id}  # its text is in the prompt


def test_two_rounds_are_two_rows_of_calls_and_results() -> None:
    played = play(
        exchange(asked(), snap()),
        (like(Recall), Memory()),
        (like(Send, purpose="chat"), saying(loads(), loads("w2", "refund"))),
        ran(LOADED, Ran(text=REFUND.text, skill=REFUND.id)),
        (like(Send, purpose="tool_round"), saying("Hm.", loads("w3", "nobody"))),
        ran(NOTHING),
        (like(Send, purpose="tool_round"), saying("Done.")),
        (remembered(), None),
    )
    one, two, three = prompts(played)
    assert two == (*one, model("", loads(), loads("w2", "refund")), result("w1", TONE.text), result("w2", REFUND.text))
    assert three == (*two, model("Hm.", loads("w3", "nobody")), result("w3", NOTHING.text))
    assert [step.loaded for step in played[RunTools]] == [frozenset(), {TONE.id, REFUND.id}]
    assert played.outcome.reply is not None
    assert played.outcome.reply.message == model("Hm.\n\nDone.")
    made = left(played)
    assert made is not None
    assert [trace.id for trace in made.traces] == [TONE.id, REFUND.id]


def test_a_bad_slug_is_answered_and_nothing_is_recorded_as_loaded() -> None:
    played = play(
        exchange(asked(), snap()),
        (like(Recall), Memory()),
        (like(Send), saying(loads("w1", "nobody"))),
        ran(NOTHING),
        (like(Send), saying("Done.")),
        (remembered(), None),
    )
    made = left(played)
    assert made is not None
    assert made.traces == ()
    assert prompts(played)[1][-1] == result("w1", NOTHING.text)


def test_a_model_that_loads_for_ever_is_told_to_answer_and_what_it_calls_then_is_unseen() -> None:
    rounds = [
        line
        for number in range(1, MOST)
        for line in ((like(Send, purpose="tool_round"), saying(loads(f"w{number}"))), ran(NOTHING))
    ]
    played = play(
        exchange(asked(), snap()),
        (like(Recall), Memory()),
        (like(Send, purpose="chat"), saying(loads("w0"))),
        ran(NOTHING),
        *rounds,
        (like(Send, purpose="tool_round"), saying("Enough.", loads("again"))),
        (remembered(), None),
    )
    choices = [step.prompt.members.get("tool_choice") for step in played[Send]]
    assert choices == [None] * MOST + [b'"none"']
    assert [step.prompt.members["tools"] for step in played[Send]] == [b'{"enum":["refund","tone"]}'] * (MOST + 1)
    assert played.outcome.reply == Reply(message=model("Enough."), finish="stop", usage=None)
    assert played.outcome.rounds == MOST + 1
    back = (*HELLO, model("Enough."), user("Go on."))
    again = play(
        exchange(asked(back), snap()), (like(Recall), after(played)), (like(Send), saying("Yes.")), (remembered(), None)
    )
    assert prompts(again)[0][: len(prompts(played)[-1])] == prompts(played)[-1]
    assert flaws(prompts(again)[0]) == []


def test_our_tool_of_a_shadowed_or_barred_request_is_not_offered_and_a_call_of_its_name_is_the_clients() -> None:
    played = play(
        exchange(asked(), snap(dressing=Dressed(offers=False))),
        (like(Recall), Memory()),
        (like(Send), saying(loads())),
        (remembered(), None),
    )
    prompt = played[Send][0].prompt
    assert (prompt.own, prompt.members) == (frozenset(), {})
    assert played.outcome.reply == saying(loads())
    assert not played.outcome.joined


# -- what fails in a later round --------------------------------------------------------------------------------------


def test_a_later_round_that_failed_is_repeated_with_the_rounds_kept() -> None:
    failed = RateLimited("busy", retry_after=2.0)
    failed.again = True
    played = play(
        exchange(asked(), snap()),
        (like(Recall), Memory()),
        (like(Send, purpose="chat"), saying(loads())),
        ran(LOADED),
        (like(Send, purpose="tool_round"), failed),
        (like(Send, purpose="retry", delay=2.0), saying("Done.")),
        (remembered(), None),
    )
    assert prompts(played)[1] == prompts(played)[2]
    assert played.outcome.reply is not None
    assert played.outcome.reply.message == model("Done.")


def test_what_fails_for_good_in_a_later_round_fails_the_call_and_nothing_is_remembered() -> None:
    into = Played()
    for error in (InvalidReply("gone"), ClientLeft(said=True)):
        with pytest.raises(type(error)):
            play(
                exchange(asked(), snap()),
                (like(Recall), Memory()),
                (like(Send), saying(loads())),
                ran(LOADED),
                (like(Send, purpose="tool_round"), error),
                into=into,
            )
    assert into[Remember] == []


def test_an_overflow_of_a_later_round_is_cured_by_a_smaller_output() -> None:
    played = play(
        exchange(asked(max_output=4000), snap(WINDOW)),
        (like(Recall), Memory()),
        (like(Send, purpose="chat"), saying(loads())),
        ran(LOADED),
        (like(Send, purpose="tool_round"), too_long(limit=4096, requested=4300, input=300, kind="total")),
        (like(Remember, learned=that(lambda found: found.total == 4096)), None),
        (like(Send, purpose="recovery"), saying(loads("w2"))),
        ran(NOTHING),
        (like(Send, purpose="tool_round"), saying("Done.")),
        (remembered(), None),
    )
    lowered = [step.prompt.max_output for step in played[Send]]
    assert lowered[:2] == [4000, 4000]
    assert lowered[2] is not None
    assert lowered[2] < 4000
    assert lowered[3] == lowered[2]  # the next round goes on with it
    assert played.outcome.recoveries == 1
    assert prompts(played)[2] == prompts(played)[1]


BIG = (*loop(20), user("And now?"))


def test_an_overflow_of_a_later_round_is_cured_by_a_compaction_that_keeps_the_rounds() -> None:
    played = play(
        exchange(asked(BIG), snap()),
        (like(Recall), Memory()),
        (like(Send, purpose="chat"), saying("Let me look.", loads())),
        ran(LOADED),
        (like(Send, purpose="tool_round"), too_long(limit=4000, requested=9000, kind="input")),
        (like(Remember, learned=that(lambda found: found.total == 4000)), None),
        (like(Claim), True),
        (compacted(), None),
        (like(Send, purpose="recovery", prompt=notes("recovered")), saying("Hm.", loads("w2"))),
        ran(NOTHING),
        (like(Send, purpose="tool_round", prompt=notes("recovered")), saying("Done.")),
        (remembered(), None),
    )
    _, second, third, fourth = prompts(played)
    rounds = (model("Let me look.", loads()), result("w1", TONE.text))
    assert second[-2:] == third[-2:] == rounds
    assert len(third) < len(second)
    assert fourth == (*third, model("Hm.", loads("w2")), result("w2", NOTHING.text))
    assert third[0] == second[0]
    assert flaws(fourth) == []
    assert played.outcome.recoveries == 1


def test_a_round_that_does_not_fit_is_compacted_before_it_is_sent() -> None:
    long = Ran(text=lines(330), skill=TONE.id)
    played = play(
        exchange(asked((*loop(17), user("And now?"))), snap(WINDOW)),
        (like(Recall), Memory()),
        (like(Send, purpose="chat", prompt=whole()), saying(loads())),
        ran(long),
        (like(Claim), True),
        (like(Count), estimates),
        (compacted(), None),
        (like(Send, purpose="tool_round", prompt=notes()), saying("Done.")),
        (remembered(), None),
    )
    assert prompts(played)[1][-1] == result("w1", long.text)  # what was fetched is not trimmed in its turn


def test_a_round_that_nothing_makes_fit_goes_out_and_the_provider_decides() -> None:
    played = Played()
    with pytest.raises(WindowExceeded) as refused:
        play(
            exchange(asked(), snap(2000)),
            (like(Recall), Memory()),
            (like(Send, purpose="chat", prompt=whole()), saying(loads())),
            ran(Ran(text=lines(330), skill=TONE.id)),
            (like(Claim), True),
            (like(Count), estimates),
            (like(Send, purpose="tool_round", prompt=whole()), too_long(limit=2000, requested=3700, kind="input")),
            (like(Remember), None),
            (like(Claim), True),
            into=played,
        )
    assert len(played[Send]) == 2
    assert "(the operator's prompts and skills alone take " in refused.value.message


def test_at_most_three_recoveries_whatever_round_they_are_in() -> None:
    refusals = [too_long(limit=4000 - 800 * number, requested=9000, kind="input") for number in range(3)]
    played = Played()
    with pytest.raises(WindowExceeded):
        play(
            exchange(asked(BIG), snap()),
            (like(Recall), Memory()),
            (like(Send, purpose="chat"), refusals[0]),
            (like(Remember), None),
            (like(Claim), True),
            (compacted(), None),
            (like(Send, purpose="recovery"), saying(loads())),
            ran(NOTHING),
            (like(Send, purpose="tool_round"), refusals[1]),
            (like(Remember), None),
            (like(Claim), True),
            (compacted(), None),
            (like(Send, purpose="recovery"), refusals[2]),
            (like(Remember), None),
            (like(Claim), True),
            (compacted(), None),
            (like(Send, purpose="recovery"), too_long(limit=1000, requested=9000, kind="input")),
            into=played,
        )
    sizes = [step.prompt.estimated for step in played[Send]]
    assert sizes[1] < sizes[0]
    assert sizes[2] > sizes[1]
    assert sizes[4] < sizes[3] < sizes[2]
