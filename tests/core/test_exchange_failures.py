"""Refusals and failures, played as scripts: what is cured, what is repeated, and what reaches the client."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.core import overflow
from proxy.core.errors import ClientLeft, Overloaded, StoreUnavailable, TooLong, UpstreamError, WindowExceeded
from proxy.core.exchange import RECOVERIES, exchange
from proxy.core.policy import Policy
from proxy.core.steps import (
    Claim,
    Count,
    Limits,
    Memory,
    Prompt,
    Recall,
    Remember,
    Send,
)
from tests.core.histories import lines, model, system, user
from tests.core.scripts import (
    LONG,
    SHORT,
    WINDOW,
    compacted,
    first_compaction,
    memory_of,
    notes,
    remembered,
    size,
    whole,
)
from tests.playbook import Played, a_call, a_reply, a_snap, changed, estimates, like, play, too_long

# -- a refusal ---------------------------------------------------------------------------------------------------------


def test_an_overflow_with_numbers_is_learned_and_cured() -> None:
    refused = too_long(kind="input", limit=4000, requested=12000, limit_of="total")
    played = play(
        exchange(a_call(LONG), a_snap(100_000)),
        (like(Recall), Memory()),
        (like(Send, purpose="chat", prompt=whole()), refused),
        (like(Remember, learned=Limits(total=4000, source="learned"), request=None, compaction=None), None),
        (like(Claim), True),
        # Not counted: the provider has measured these very messages.
        (compacted(), None),
        (like(Send, purpose="recovery", prompt=notes("recovered")), lambda step: a_reply(input=3000)),
        (remembered(), None),
    )
    first, second = played[Send]
    assert second.prompt.report.tokens <= 0.85 * 4000
    assert second.prompt.report.window == 4000
    assert second.prompt.estimated < first.prompt.estimated
    assert played.outcome.recoveries == 1
    assert played.outcome.report.compaction == "recovered"


def test_a_refusal_of_prompt_and_output_together_lowers_the_output_first() -> None:
    refused = too_long(kind="input_plus_output", limit=4000, requested=5500, input=1500, output=4000)
    played = play(
        exchange(a_call(SHORT, max_output=4000), a_snap(WINDOW)),
        (like(Recall), Memory()),
        (like(Send), refused),
        (like(Remember, learned=Limits(total=4000, source="learned")), None),
        (like(Send, purpose="recovery", prompt=like(Prompt, messages=SHORT, max_output=4000 - 1500 - 8)), a_reply()),
        (remembered(), None),
    )
    assert played.outcome.report.output == 2492
    assert played.outcome.recoveries == 1


def test_an_overflow_without_numbers_halves_the_trust_and_is_cured() -> None:
    played = play(
        exchange(a_call(LONG), a_snap(100_000)),
        (like(Recall), Memory()),
        (like(Send), too_long()),
        (like(Claim), True),
        (like(Count), estimates),
        (compacted(), None),
        (like(Send, purpose="recovery", prompt=notes("recovered")), a_reply()),
        (remembered(learned=None), None),
    )
    assert played[Send][1].prompt.estimated < 0.8 * played[Send][0].prompt.estimated


def test_known_notes_cure_an_overflow_without_new_ones() -> None:
    """Another model's notes of this history, say: told whole here until it was refused."""
    first = first_compaction()
    known = changed(memory_of(first), anchor=None)
    played = play(
        exchange(a_call(LONG), a_snap(100_000)),
        (like(Recall), known),
        (like(Send, prompt=whole()), too_long(kind="input", limit=WINDOW, requested=size(LONG))),
        (like(Remember, learned=Limits(total=WINDOW, source="learned")), None),
        (like(Send, purpose="recovery", prompt=notes("recovered")), a_reply()),
        (remembered(), None),
    )
    assert played.outcome.report.compaction_id == known.compactions[0].id


def test_after_three_recoveries_each_smaller_the_client_gets_the_one_text() -> None:
    refused = too_long(kind="input", limit=8000, requested=12000)
    recovery = (like(Send, purpose="recovery", prompt=notes("recovered")), too_long(kind="input", limit=8000))
    learn = (like(Remember, learned=Limits(total=8000, source="learned")), None)
    again = (learn, (like(Claim), True), (compacted(), None))
    seen = Played()
    with pytest.raises(WindowExceeded) as caught:
        play(
            exchange(a_call(LONG), a_snap(100_000)),
            (like(Recall), Memory()),
            (like(Send, purpose="chat"), refused),
            *again,
            recovery,
            *again,
            recovery,
            *again,
            recovery,
            into=seen,
        )
    sizes = [step.prompt.estimated for step in seen[Send]]
    assert len(sizes) == 1 + RECOVERIES
    assert sizes == sorted(set(sizes), reverse=True)
    error = caught.value
    assert (error.status, error.code, error.param) == (400, "context_length_exceeded", "messages")
    assert error.message == overflow.final_text(8001, 8000)
    assert isinstance(error.__cause__, TooLong)


@pytest.mark.parametrize("stated", [True, False])
@pytest.mark.parametrize("limit", range(700, 14000, 700))
def test_whatever_the_window_each_try_is_smaller_than_the_one_before(limit: int, stated: bool) -> None:
    """A provider that refuses everything, with its numbers or without."""
    flow = exchange(a_call(LONG), a_snap(100_000))
    sizes: list[int] = []
    answers: dict[type, Any] = {Recall: lambda step: Memory(), Claim: lambda step: True, Count: estimates}
    step = next(flow)
    with pytest.raises(WindowExceeded):
        while len(sizes) < 9:
            if isinstance(step, Send):
                sizes.append(step.prompt.estimated)
                step = flow.throw(too_long(kind="input", limit=limit) if stated else too_long())
            else:
                step = flow.send(answers.get(type(step), lambda step: None)(step))
    assert 1 <= len(sizes) <= 1 + RECOVERIES
    assert sizes == sorted(set(sizes), reverse=True)


def test_what_cannot_be_made_smaller_is_not_sent_again() -> None:
    huge = (system(lines(900)), user("Well?"))
    with pytest.raises(WindowExceeded) as caught:
        play(
            exchange(a_call(huge), a_snap(100_000)),
            (like(Recall), Memory()),
            (like(Send), too_long(kind="input", limit=4000, requested=9900)),
            (like(Remember, learned=Limits(total=4000, source="learned")), None),
            (like(Claim), True),
        )
    said, _, floor = caught.value.message.partition(" (the system messages alone take ")
    assert said == overflow.final_text(9900, 4000)
    assert floor.endswith(" of 3,904 tokens)"), "what is too large by itself is named"


def test_an_overflow_after_the_client_has_read_something_is_never_recovered() -> None:
    with pytest.raises(WindowExceeded):
        play(
            exchange(a_call(LONG), a_snap(100_000)),
            (like(Recall), Memory()),
            (like(Send), too_long(said=True, kind="input", limit=4000, requested=12000)),
        )


def test_where_no_window_is_known_only_the_providers_refusal_tells() -> None:
    played = play(
        exchange(a_call(LONG), a_snap(None)),
        (like(Recall), Memory()),
        (like(Send, prompt=whole(untouched=True)), too_long(kind="input", limit=4000, requested=12000)),
        (like(Remember, learned=Limits(total=4000, source="learned")), None),
        (like(Claim), True),
        (compacted(), None),
        (like(Send, purpose="recovery"), a_reply()),
        (remembered(), None),
    )
    assert played.outcome.report.window == 4000
    after = (*LONG, model("Done."), user("Go on."))
    again = play(  # still unknown, after a restart without the calibration: the notes stay in use
        exchange(a_call(after), a_snap(None)),
        (like(Recall), memory_of(played)),
        (like(Send, prompt=notes()), a_reply()),
        (remembered(), None),
    )
    assert again.outcome.report.compaction_id == played.outcome.report.compaction_id


def test_without_built_in_notes_an_overflow_reaches_the_client() -> None:
    with pytest.raises(WindowExceeded):
        play(
            exchange(a_call(LONG), a_snap(WINDOW * 10, policy=Policy(summary_builtin=False))),
            (like(Recall), Memory()),
            (like(Send), too_long(kind="input", limit=4000)),
            (like(Remember, learned=Limits(total=4000, source="learned")), None),
            (like(Claim), True),
            (like(Count), estimates),
        )


# -- other failures ----------------------------------------------------------------------------------------------------


def failing(again: bool, retry_after: float | None = None) -> UpstreamError:
    error = Overloaded("busy", upstream_status=503, retry_after=retry_after)
    error.again = again
    return error


@pytest.mark.parametrize(("retry_after", "delay"), [(None, 0.25), (3.0, 3.0), (0.0, 0.0)])
def test_a_failure_is_repeated_once_where_the_driver_allows_it(retry_after: float | None, delay: float) -> None:
    played = play(
        exchange(a_call(SHORT), a_snap(WINDOW)),
        (like(Recall), Memory()),
        (like(Send, purpose="chat", delay=0.0), failing(True, retry_after)),
        (like(Send, purpose="retry", delay=delay), a_reply()),
        (remembered(), None),
    )
    assert played.outcome.recoveries == 0
    assert played[Send][0].prompt is played[Send][1].prompt


def test_a_failure_is_not_repeated_where_the_driver_does_not_allow_it() -> None:
    with pytest.raises(Overloaded):
        play(
            exchange(a_call(SHORT), a_snap(WINDOW)),
            (like(Recall), Memory()),
            (like(Send), failing(False)),
        )


def test_a_failure_is_never_repeated_twice() -> None:
    second = failing(True)
    with pytest.raises(Overloaded) as caught:
        play(
            exchange(a_call(SHORT), a_snap(WINDOW)),
            (like(Recall), Memory()),
            (like(Send), failing(True)),
            (like(Send, purpose="retry"), second),
        )
    assert caught.value is second


def test_a_repeated_call_can_still_be_recovered() -> None:
    played = play(
        exchange(a_call(LONG), a_snap(100_000)),
        (like(Recall), Memory()),
        (like(Send, purpose="chat"), failing(True, 2.0)),
        (like(Send, purpose="retry", delay=2.0), too_long(kind="input", limit=4000, requested=12000)),
        (like(Remember), None),
        (like(Claim), True),
        (compacted(), None),
        (like(Send, purpose="recovery", delay=0.0), a_reply()),
        (remembered(), None),
    )
    assert played.outcome.recoveries == 1


def test_when_the_client_leaves_nothing_more_is_asked_for() -> None:
    for said in (True, False):
        with pytest.raises(ClientLeft):
            play(
                exchange(a_call(SHORT), a_snap(WINDOW)),
                (like(Recall), Memory()),
                (like(Send), ClientLeft(said=said)),
            )


def test_a_store_that_fails_ends_the_call_where_it_was_asked() -> None:
    down = StoreUnavailable("down")
    whole_script = (
        (like(Recall), Memory()),
        (like(Claim), True),
        (like(Count), estimates),
        (compacted(), None),
        (like(Send), a_reply()),
        (remembered(), None),
    )
    for place in (0, 3, 5):
        with pytest.raises(StoreUnavailable):
            play(
                exchange(a_call(LONG), a_snap(WINDOW)),
                *whole_script[:place],
                (whole_script[place][0], down),
            )
