"""A compaction as a script: who writes the notes, what a failure changes, and when it is not tried any more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from proxy.core.errors import RateLimited, UpstreamError, WindowExceeded
from proxy.core.exchange import exchange
from proxy.core.guards import Guard, Pause
from proxy.core.notes import Compaction
from proxy.core.policy import Mode, ModelCard, Policy
from proxy.core.steps import Claim, Count, Memory, Recall, Remember, Send, Snapshot, Summarise, Summariser
from tests.core.histories import call as tool
from tests.core.histories import lines, model, result, system, user
from tests.core.narratives import GOOD
from tests.core.scripts import LONG, WINDOW, first_compaction, memory_of, notes, remembered, whole
from tests.playbook import Played, a_call, a_reply, a_snap, changed, estimates, like, play, that, too_long

OWN = Summariser(name="m", window=4 * WINDOW, own=True)
"""With room for all of it: in how many parts a narrative is asked for is another table (test_narrating)."""
WRITTEN = that(lambda made: made is not None and made.writer == "m" and "- Paint the weir." in made.notes.narrative)
BUILT_IN = that(lambda made: made is not None and made.writer == "builtin" and made.notes.narrative == "")
MODEL_ONLY = Policy(summary_builtin=False)
OPENING = ((like(Claim), True), (like(Count), estimates))


def snap(window: int | None = WINDOW, **more: Any) -> Snapshot:
    return a_snap(window, **({"summarisers": lambda: (OWN,)} | more))


def says(text: str, finish: str = "stop") -> Callable[[Summarise[Any]], Any]:
    return lambda step: step.judge(a_reply(text, finish=finish))


def asked(answer: Any) -> tuple[Any, Any]:
    return like(Summarise, summariser=OWN), answer


def stored(made: Any) -> tuple[Any, None]:
    return like(Remember, compaction=made, request=None), None


def sent(report: Callable[[Send], int] | int | None = None, **more: Any) -> tuple[Any, Any]:
    reported = report if callable(report) else lambda step: report or step.prompt.report.tokens
    return like(Send, **({"prompt": notes()} | more)), lambda step: a_reply(input=reported(step))


def guard_of(played: Played) -> Guard | None:
    return memory_of(played).anchor.guard  # type: ignore[union-attr]


def made_by(played: Played) -> Compaction:
    (made,) = [step.compaction for step in played[Remember] if step.compaction is not None]
    return made


def with_guard(guard: Guard, played: Played | None = None) -> Memory:
    """What the store would know of the branch of `played`, with this guard."""
    memory = memory_of(played or first_compaction())
    assert memory.anchor is not None
    kept = changed(guard, model="m", window=WINDOW)
    return changed(memory, anchor=changed(memory.anchor, guard=kept, request=b"", compaction=None), compactions=())


# -- who writes --------------------------------------------------------------------------------------------------------


def test_the_model_writes_the_narrative_and_code_decides_what_survives() -> None:
    plain = made_by(first_compaction())
    played = play(
        exchange(a_call(LONG), snap()),
        (like(Recall), Memory()),
        *OPENING,
        asked(says(GOOD)),
        stored(WRITTEN),
        sent(),
        (remembered(), None),
    )
    made, (step,) = made_by(played), played[Summarise]
    assert (made.covers, made.notes.turns, made.clips) == (plain.covers, plain.notes.turns, plain.clips)
    assert len(made.notes.pins) + made.notes.dropped == len(plain.notes.pins) + plain.notes.dropped
    assert step.report.conversation == "conv_new"
    report = played.outcome.report
    assert (report.compaction, report.writer, report.stopped) == ("auto", "m", "")
    assert "- Paint the weir." in played[Send][0].prompt.messages[1].text
    assert guard_of(played) is None, "all is well, and the notes helped"


def test_the_narrative_is_bounded_by_the_policy_the_window_and_what_the_layers_leave() -> None:
    def bound(window: int, **policy: Any) -> int:
        """Tokens allowed for the narrative and for thoughts before it."""
        other = Summariser(name="m", window=None, own=True)
        known = snap(window, policy=Policy(**policy), summarisers=lambda: (other,))
        played = play(
            exchange(a_call(LONG), known),
            (like(Recall), Memory()),
            *OPENING,
            (like(Summarise, summariser=other), says(GOOD)),
            stored(WRITTEN),
            sent(),
            (remembered(), None),
        )
        return played[Summarise][0].max_tokens

    assert bound(WINDOW) - bound(WINDOW, summary_max_tokens=512) == int(0.2 * (WINDOW // 2 - 4)) - 512
    assert bound(WINDOW // 2) < bound(WINDOW)


@pytest.mark.parametrize("answer", [says(""), says(GOOD, finish="length"), RateLimited("no", upstream_status=429)])
def test_without_a_narrative_the_notes_are_the_built_in_ones_and_the_failure_is_counted(answer: Any) -> None:
    once = Policy(summary_retries=0)
    played = play(
        exchange(a_call(LONG), snap(policy=once)),
        (like(Recall), Memory()),
        *OPENING,
        asked(answer),
        stored(BUILT_IN),
        sent(),
        (remembered(), None),
    )
    assert played.outcome.report.writer == "builtin"
    assert guard_of(played) == Guard(model="m", window=WINDOW, failures=1)


def test_a_model_that_is_not_to_be_asked_is_not_counted_as_a_failure() -> None:
    tiny = (system("Be brief."), *LONG[1:40], user("And now?"))
    played = play(
        exchange(a_call(tiny), snap(500)),
        (like(Recall), Memory()),
        *OPENING,
        stored(BUILT_IN),
        sent(),
        (remembered(), None),
    )
    assert guard_of(played) is None


def test_where_only_clips_are_made_there_is_nothing_to_tell() -> None:
    huge = (user("Read the log."), model("", tool("c1", path="log")), result("c1", lines(1_500)))
    played = play(
        exchange(a_call(huge), snap()),
        (like(Recall), Memory()),
        *OPENING,
        stored(that(lambda made: made is not None and made.covers <= 1)),
        sent(),
        (remembered(), None),
    )
    assert made_by(played).notes.narrative == ""


def test_in_observe_nobody_is_asked() -> None:
    play(
        exchange(a_call(LONG), snap(mode=Mode.OBSERVE)),
        (like(Recall), Memory()),
        *OPENING,
        stored(BUILT_IN),
        sent(prompt=that(lambda prompt: prompt.verbatim)),
        (remembered(), None),
    )


def test_the_next_narrative_is_written_on_top_of_the_last_one_and_tells_only_what_came_after() -> None:
    first = play(
        exchange(a_call(LONG), snap()),
        (like(Recall), Memory()),
        *OPENING,
        asked(says(GOOD)),
        stored(WRITTEN),
        sent(),
        (remembered(), None),
    )
    covered = made_by(first).covers
    later = (*LONG, *LONG[1:])
    played = play(
        exchange(a_call(later), snap()),
        (like(Recall), memory_of(first)),
        (like(Claim), True),
        asked(says(GOOD.replace("- Paint the weir.", "- Open the weir."))),
        stored(that(lambda made: made is not None and "- Open the weir." in made.notes.narrative)),
        sent(),
        (remembered(), None),
    )
    text = played[Summarise][0].messages[0].text
    assert "- Paint the weir." in text, "the notes so far"
    assert "part_0.py" not in text.split("the record: ")[0]
    turns = made_by(first).notes.turns
    assert f" turn {turns + 1}, " in text and f" turn {turns}, " not in text
    assert made_by(played).covers > covered


def test_the_results_that_a_narrative_may_cite_are_stored_whole_before_they_leave() -> None:
    told = lines(40, "gauge")
    history = (user("Read it."), model("", tool("g", path="gauge")), result("g", told), model("Read."), *LONG[1:])
    played = play(
        exchange(a_call(history), snap()),
        (like(Recall), Memory()),
        *OPENING,
        asked(says(GOOD)),
        stored(WRITTEN),
        sent(),
        (remembered(), None),
    )
    keeping = played[Remember][0]
    assert told in [kept.text for kept in keeping.results]
    assert len({kept.reference for kept in keeping.results}) == len(keeping.results) > 30


# -- after an overflow -------------------------------------------------------------------------------------------------

TAUGHT = (like(Remember, compaction=None, learned=that(bool)), None)


def test_after_an_overflow_the_model_is_asked_once_whatever_the_number_of_recoveries() -> None:
    played = play(
        exchange(a_call(LONG), snap(WINDOW * 4, summarisers=lambda: (OWN,))),
        (like(Recall), Memory()),
        (like(Send, prompt=whole()), too_long(limit=WINDOW, requested=16_000)),
        TAUGHT,
        *OPENING,
        asked(says(GOOD)),
        stored(WRITTEN),
        (like(Send, purpose="recovery", prompt=notes("recovered")), too_long(limit=WINDOW // 2, requested=4_200)),
        TAUGHT,
        (like(Claim), True),
        stored(that(lambda made: made is not None)),
        (like(Send, purpose="recovery", prompt=notes("recovered")), lambda step: a_reply(input=1_500)),
        (remembered(), None),
    )
    assert played.outcome.recoveries == 2


def test_where_only_a_model_may_write_and_none_does_an_overflow_reaches_the_client_with_its_numbers() -> None:
    with pytest.raises(WindowExceeded, match=r"16000.*|8000.*"):
        play(
            exchange(a_call(LONG), snap(WINDOW * 4, policy=changed(MODEL_ONLY, summary_retries=0))),
            (like(Recall), Memory()),
            (like(Send, prompt=whole()), too_long(limit=WINDOW, requested=16_000)),
            TAUGHT,
            *OPENING,
            asked(UpstreamError("no", upstream_status=500)),
        )


def test_where_only_a_model_may_write_and_it_does_all_is_well() -> None:
    played = play(
        exchange(a_call(LONG), snap(policy=MODEL_ONLY)),
        (like(Recall), Memory()),
        *OPENING,
        asked(says(GOOD)),
        stored(WRITTEN),
        sent(),
        (remembered(), None),
    )
    assert played.outcome.report.writer == "m"


# -- guards ------------------------------------------------------------------------------------------------------------


def test_where_only_a_model_may_write_and_none_does_the_call_goes_out_whole_and_automatic_compaction_pauses() -> None:
    lone = changed(MODEL_ONLY, summary_retries=0)
    first = play(
        exchange(a_call(LONG), snap(policy=lone)),
        (like(Recall), Memory()),
        *OPENING,
        asked(says("")),
        (like(Send, prompt=whole(messages=LONG)), a_reply(input=7_400)),
        (remembered(), None),
    )
    guard = guard_of(first)
    assert guard is not None and guard.pause is Pause.NO_NOTES and guard.failures == 1
    later = (*LONG, model("Done."), user("Go on."))
    second = play(
        exchange(a_call(later), snap(policy=lone)),
        (like(Recall), memory_of(first)),
        (like(Send, prompt=whole(messages=later)), a_reply(input=7_500)),
        (remembered(), None),
    )
    assert second.outcome.report.stopped == "no_notes"


def test_after_so_many_failures_in_a_row_no_model_is_asked() -> None:
    memory = with_guard(Guard(failures=2))
    once = Policy(summary_retries=0)
    third = play(
        exchange(a_call(LONG), snap(policy=once)),
        (like(Recall), memory),
        (like(Claim), True),
        asked(says("")),
        stored(BUILT_IN),
        sent(),
        (remembered(), None),
    )
    guard = guard_of(third)
    assert guard is not None and guard.failures == 3
    assert third.outcome.report.stopped == "model_failures"
    fourth = play(
        exchange(a_call(LONG), snap(policy=once)),
        (like(Recall), with_guard(guard, third)),
        (like(Claim), True),
        stored(BUILT_IN),
        sent(),
        (remembered(), None),
    )
    assert fourth.outcome.report.stopped == "model_failures"


def test_a_success_ends_the_row_of_failures() -> None:
    played = play(
        exchange(a_call(LONG), snap()),
        (like(Recall), with_guard(Guard(failures=2))),
        (like(Claim), True),
        asked(says(GOOD)),
        stored(WRITTEN),
        sent(),
        (remembered(), None),
    )
    assert guard_of(played) is None


def test_notes_behind_which_the_prompt_is_still_too_large_pause_it_and_a_smaller_one_ends_the_pause() -> None:
    first = play(
        exchange(a_call(LONG), snap()),
        (like(Recall), Memory()),
        *OPENING,
        asked(says(GOOD)),
        stored(WRITTEN),
        sent(7_200),
        (remembered(), None),
    )
    guard = guard_of(first)
    assert guard is not None and guard.pause is Pause.STILL_ABOVE
    small = (system("Be brief."), user("Hello?"))
    after = play(
        exchange(a_call((*small, model("Yes."), user("Go on."))), snap()),
        (like(Recall), with_guard(guard, first)),
        (like(Send, prompt=whole()), a_reply(input=400)),
        (remembered(), None),
    )
    assert guard_of(after) is None


@pytest.mark.parametrize("pause", list(Pause))
def test_a_pause_holds_up_to_the_edge_of_the_window_and_there_the_built_in_writes(pause: Pause) -> None:
    memory = with_guard(Guard(pause=pause))
    anchor = memory.anchor
    assert anchor is not None
    near = changed(memory, anchor=changed(anchor, shape=shape_of(LONG), reported=7_500, estimated=size_of(LONG)))
    held = play(
        exchange(a_call(LONG), snap()),
        (like(Recall), near),
        (like(Send, prompt=whole(messages=LONG)), a_reply(input=7_500)),
        (remembered(), None),
    )
    assert held.outcome.report.stopped == pause.value
    edge = changed(memory, anchor=changed(anchor, shape=shape_of(LONG), reported=7_990, estimated=size_of(LONG)))
    play(
        exchange(a_call(LONG), snap()),
        (like(Recall), edge),
        (like(Claim), True),
        stored(BUILT_IN),
        sent(),
        (remembered(), None),
    )


@pytest.mark.parametrize(
    "other",
    [{"card": ModelCard(name="other")}, {"limits": a_snap(WINDOW - 500).limits}],
    ids=["another model", "another window"],
)
def test_another_model_or_window_begins_anew(other: dict[str, Any]) -> None:
    memory = with_guard(Guard(pause=Pause.NO_NOTES, failures=3))
    given = snap(**other)
    counted = ((like(Count), estimates),) if "card" in other else ()
    play(
        exchange(a_call(LONG), given),
        (like(Recall), memory),
        (like(Claim), True),
        *counted,
        asked(says(GOOD)),
        stored(WRITTEN),
        sent(),
        (remembered(), None),
    )


def test_after_an_overflow_a_pause_does_not_keep_the_built_in_away() -> None:
    memory = with_guard(Guard(pause=Pause.STILL_ABOVE))
    anchor = memory.anchor
    assert anchor is not None
    near = changed(memory, anchor=changed(anchor, shape=shape_of(LONG), reported=7_000, estimated=size_of(LONG)))
    play(
        exchange(a_call(LONG), snap()),
        (like(Recall), near),
        (like(Send, prompt=whole(messages=LONG)), too_long(limit=WINDOW, requested=9_000)),
        (like(Remember, compaction=None, request=None), None),
        (like(Claim), True),
        stored(BUILT_IN),
        (like(Send, purpose="recovery", prompt=notes("recovered")), a_reply(input=3_000)),
        (remembered(), None),
    )


def shape_of(messages: tuple[Any, ...]) -> bytes:
    played = play(
        exchange(a_call(messages), snap(100_000)),
        (like(Recall), Memory()),
        (like(Send), a_reply(input=1)),
        (remembered(), None),
    )
    return played[Send][0].prompt.shape


def size_of(messages: tuple[Any, ...]) -> int:
    return 3 + sum(item.tokens for item in messages)
