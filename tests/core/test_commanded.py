"""`/compact` as a script: what it does, each reason to refuse it, and what its history is afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from proxy.core.conversation import Message
from proxy.core.exchange import exchange
from proxy.core.guards import Guard, Pause
from proxy.core.policy import Mode, Policy
from proxy.core.steps import Claim, Count, Memory, Recall, Remember, Send, Snapshot, Summarise, Summariser
from tests.core.histories import PICTURE, call, loop, model, result, system, user
from tests.core.narratives import GOOD
from tests.core.scripts import memory_of, notes, remembered, whole
from tests.playbook import Played, a_call, a_reply, a_snap, changed, estimates, like, play, that, too_long

WINDOW = 32_000
OWN = Summariser(name="m", window=WINDOW, own=True)
TALK = (system("Be brief."), *loop(30))
"""About a quarter of the window: nothing but the command would compact it."""
COMMAND = user("/compact keep the values")
MANUAL = that(lambda made: made is not None and made.trigger == "MANUAL")
NOTHING_YET = "Not compacted: there is nothing to compact yet."
NOTHING_NEW = "Not compacted: already compacted, and nothing new was written since."


def snap(window: int | None = WINDOW, **more: Any) -> Snapshot:
    return a_snap(window, **({"summarisers": lambda: (OWN,)} | more))


def says(text: str) -> Callable[[Summarise[Any]], Any]:
    return lambda step: step.judge(a_reply(text))


def commanded(history: tuple[Message, ...], *lines: Any, memory: Memory | None = None, **more: Any) -> Played:
    given = snap(**more)
    return play(exchange(a_call(history), given), (like(Recall), memory or Memory()), *lines)


def compacting(answer: Any = None, *, counted: bool = True) -> tuple[Any, ...]:
    return (
        (like(Claim), True),
        *(((like(Count), estimates),) if counted else ()),
        (like(Summarise), answer or says(GOOD)),
        (like(Remember, compaction=MANUAL, request=None), None),
        (remembered(), None),
    )


def line_of(played: Played) -> Message:
    assert played.outcome.reply is not None and played.outcome.reply.message is not None
    return played.outcome.reply.message


def next_turn(history: tuple[Message, ...], memory: Memory, **more: Any) -> Played:
    """The next call, told through notes and compacted no further."""
    return play(
        exchange(a_call(history), snap(**more)),
        (like(Recall), memory),
        (like(Send, purpose="chat", prompt=notes()), lambda step: a_reply(input=step.prompt.report.tokens)),
        (remembered(), None),
    )


def kept(memory: Memory, played: Played) -> Memory:
    """`memory` and what `played` has added to it."""
    new = memory_of(played)
    return changed(new, compactions=(*memory.compactions, *new.compactions), anchor=new.anchor or memory.anchor)


# -- success -----------------------------------------------------------------------------------------------------------


def test_it_compacts_what_would_still_fit_and_answers_with_one_line_and_its_data() -> None:
    played = commanded((*TALK, COMMAND), *compacting())
    said = played.outcome.said
    assert said is not None and said.status == "compacted"
    (made,) = [step.compaction for step in played[Remember] if step.compaction is not None]
    parted = f" and the first part of turn {made.notes.turns + 1}" if made.notes.part else ""
    sizes = f"{made.before:,} -> {made.after:,} tokens."
    assert said.line == f"Conversation compacted: turns 1-{said.turns}{parted}, {sizes}"
    assert (said.compaction_id, said.writer) == (made.id, "m")
    assert said.summary_display and "res_" not in said.summary_display, "for people, without references"
    assert made.after <= made.before / 2, "however roomy the window is"
    assert line_of(played).text == said.line
    assert played.outcome.report.compaction == "manual" and played.outcome.report.compaction_id == made.id
    assert not played[Send], "no model answers a command"
    anchor = played[Remember][-1].anchor
    assert anchor is not None and anchor.compaction == made.id


def test_what_the_user_wants_kept_is_asked_for_as_a_wish() -> None:
    text = commanded((*TALK, COMMAND), *compacting())[Summarise][0].messages[0].text
    assert "keep the values" in text and "/compact" not in text
    plain = commanded((*TALK, user("/compact")), *compacting())[Summarise][0].messages[0].text
    assert "what the user wants the notes to keep" in text and "what the user wants the notes to keep" not in plain


def test_without_a_narrative_it_succeeds_with_the_built_in_notes() -> None:
    once = Policy(summary_retries=0)
    said = commanded((*TALK, COMMAND), *compacting(says("")), policy=once).outcome.said
    assert said is not None and (said.status, said.writer) == ("compacted", "builtin")


def test_it_works_where_no_window_is_known() -> None:
    said = commanded((*TALK, COMMAND), *compacting(), window=None).outcome.said
    assert said is not None and said.tokens_after is not None and said.tokens_before is not None
    assert said.tokens_after <= said.tokens_before / 2


def test_system_messages_of_the_client_behind_the_command_change_nothing() -> None:
    said = commanded((*TALK, COMMAND, system("It is noon.")), *compacting()).outcome.said
    assert said is not None and said.status == "compacted"


@pytest.mark.parametrize("guard", [Guard(pause=Pause.NO_NOTES), Guard(pause=Pause.STILL_ABOVE), Guard(failures=9)])
def test_neither_a_pause_nor_failures_hold_it_and_it_ends_them(guard: Guard) -> None:
    before = next_whole(TALK)
    assert before.anchor is not None
    stopped = changed(before, anchor=changed(before.anchor, guard=changed(guard, model="m", window=WINDOW)))
    played = commanded((*TALK, COMMAND), *compacting(counted=False), memory=stopped)
    left = played[Remember][-1].anchor
    assert left is not None and left.guard is not None
    assert (left.guard.pause, left.guard.failures) == (None, 0)


# -- refusals ----------------------------------------------------------------------------------------------------------

DONE = model("Conversation compacted: turns 1-28, 8,000 -> 3,000 tokens.")
REFUSALS: dict[str, tuple[tuple[Message, ...], str]] = {
    "nothing at all": ((user("/compact"),), NOTHING_YET),
    "no answer yet": ((system("Be brief."), user("Hello."), user("/compact")), NOTHING_YET),
    "compacted just now": ((*TALK, COMMAND, DONE, user("/compact")), NOTHING_NEW),
    "refused since": ((*TALK, COMMAND, DONE, COMMAND, model(NOTHING_NEW), user("/compact")), NOTHING_NEW),
    "a loop is open": (
        (*TALK, user("Go."), model("", call("c")), result("c", "x"), user("/compact")),
        "Not compacted: the latest turn is running or paused.",
    ),
    "attachments": ((*TALK, user("/compact", PICTURE)), "Not compacted: the message has attachments."),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_refusal_says_why_and_changes_nothing(case: str) -> None:
    history, line = REFUSALS[case]
    played = commanded(history)
    assert played.outcome.said is not None
    assert (played.outcome.said.status, played.outcome.said.line) == ("not_compacted", line)
    assert played.outcome.said.compaction_id is None
    assert line_of(played).text == line
    assert [type(step) for step in played.steps] == [Recall]


def test_where_nothing_can_be_gained_it_says_so() -> None:
    short = (system("Be brief."), user("Hello."), model("Hello."), user("/compact"))
    played = commanded(short, (like(Claim), True), (like(Count), estimates))
    assert played.outcome.said is not None and played.outcome.said.line == NOTHING_YET
    assert not played[Remember]


def test_a_summary_that_failed_where_only_a_model_may_write_says_why() -> None:
    lone = Policy(summary_builtin=False, summary_retries=0)
    played = commanded(
        (*TALK, COMMAND),
        (like(Claim), True),
        (like(Count), estimates),
        (like(Summarise), says("Well, it stands.")),
        policy=lone,
    )
    said = played.outcome.said
    assert said is not None and (said.status, said.why) == ("not_compacted", "no_headings")
    assert said.line == "Not compacted: the summary failed: no headings."
    assert not played[Remember], "a failure changes nothing"


def test_whoever_gives_the_same_command_at_once_is_told_that_it_was_done() -> None:
    first = commanded((*TALK, COMMAND), *compacting())
    second = commanded((*TALK, COMMAND), (like(Claim), False), (like(Recall), memory_of(first)))
    assert second.outcome.said is not None and second.outcome.said.line == NOTHING_NEW


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.OFF])
def test_where_the_gateway_only_watches_it_is_prose(mode: Mode) -> None:
    history = (user("Hello."), model("Hello."), user("/compact"))
    lines = [(like(Send, prompt=whole(verbatim=True)), a_reply())]
    if mode is Mode.OBSERVE:
        lines = [(like(Recall), Memory()), *lines, (remembered(), None)]
    assert play(exchange(a_call(history), snap(mode=mode)), *lines).outcome.said is None


# -- afterwards --------------------------------------------------------------------------------------------------------


def next_whole(history: tuple[Message, ...]) -> Memory:
    """What is known of a history that was answered whole."""
    first = play(
        exchange(a_call(history), snap()),
        (like(Recall), Memory()),
        (like(Send), lambda step: a_reply(input=step.prompt.report.tokens)),
        (remembered(), None),
    )
    return memory_of(first)


def test_ten_turns_later_the_notes_are_in_use_the_pair_is_told_as_nothing_and_nothing_was_compacted_again() -> None:
    first = commanded((*TALK, COMMAND), *compacting())
    memory, history = memory_of(first), (*TALK, COMMAND, line_of(first))
    (made,) = memory.compactions
    sizes: list[int] = []
    for turn in range(10):
        history = (*history, user(f"And gate {turn}?"))
        played = next_turn(history, memory)
        told = played[Send][0].prompt.messages
        assert played.outcome.report.compaction_id == made.id
        assert all("/compact" not in item.text and "Conversation compacted" not in item.text for item in told)
        assert told[-1].text == f"And gate {turn}?"
        sizes.append(played.outcome.report.tokens)
        memory, history = kept(memory, played), (*history, model(f"Gate {turn} is shut."))
    assert sizes == sorted(sizes) and sizes[-1] < made.before / 2 + 300
    assert sizes[0] - made.after < 60, "its size was told truly"


@pytest.mark.parametrize("times", [1, 2])
def test_a_pair_in_the_middle_is_no_turn_no_pin_and_no_sample_of_language(times: int) -> None:
    pair = (user("/compact behalte die Werte"), model(NOTHING_YET))
    shown = (*TALK[:41], *pair * times, *TALK[41:])
    plain, with_pair = (commanded((*history, COMMAND), *compacting()) for history in (TALK, shown))
    ours, theirs = (memory_of(played).compactions[0] for played in (plain, with_pair))
    assert (theirs.notes.turns, theirs.notes.pins, theirs.after) == (ours.notes.turns, ours.notes.pins, ours.after)
    texts = [played[Summarise][0].messages[0].text for played in (plain, with_pair)]
    assert texts[0] == texts[1], "and the model is asked the very same"


def test_a_second_command_compacts_what_came_after_on_top_of_the_first() -> None:
    first = commanded((*TALK, COMMAND), *compacting())
    grown = (*TALK, COMMAND, line_of(first), *loop(30))
    second = commanded((*grown, COMMAND), *compacting(counted=False), memory=memory_of(first))
    made = second[Remember][0].compaction
    assert made is not None and made.covers > memory_of(first).compactions[0].covers
    assert "- Paint the weir." in second[Summarise][0].messages[0].text
    said = second.outcome.said
    assert said is not None and said.turns is not None and said.turns > 30
    whole = sum(item.tokens for item in grown)
    assert said.tokens_before is not None and said.tokens_before < 0.8 * whole, "what was told before it, not all of it"


def test_a_rewind_to_before_the_command_is_told_whole_again() -> None:
    first = commanded((*TALK, COMMAND), *compacting())
    back = (*TALK[:9], user("Something else."))
    unknown = changed(memory_of(first), anchor=None)
    played = play(
        exchange(a_call(back), snap()),
        (like(Recall), unknown),
        (like(Send, prompt=whole(messages=back)), a_reply(input=900)),
        (remembered(), None),
    )
    assert played.outcome.report.compaction == "none"


def test_when_the_notes_are_outgrown_the_conversation_is_compacted_as_any_other() -> None:
    first = commanded((*TALK, COMMAND), *compacting())
    grown = (*TALK, COMMAND, line_of(first), *loop(110), user("And now?"))
    played = play(
        exchange(a_call(grown), snap()),
        (like(Recall), memory_of(first)),
        (like(Claim), True),
        (like(Summarise), says(GOOD)),
        (like(Remember, compaction=that(lambda made: made is not None and made.trigger == "AUTO")), None),
        (like(Send, prompt=notes()), a_reply(input=9_000)),
        (remembered(), None),
    )
    assert all("/compact" not in item.text for item in played[Send][0].prompt.messages)


def test_an_overflow_behind_the_notes_is_cured_like_any_other() -> None:
    first = commanded((*TALK, COMMAND), *compacting())
    history = (*TALK, COMMAND, line_of(first), user("And now?"))
    played = play(
        exchange(a_call(history), snap()),
        (like(Recall), memory_of(first)),
        (like(Send, prompt=notes()), too_long(limit=2_000, requested=4_300)),
        (like(Remember, compaction=None, request=None), None),
        (like(Claim), True),
        (like(Summarise), says("")),
        (like(Summarise), says(GOOD)),
        (like(Remember, compaction=that(lambda made: made is not None)), None),
        (like(Send, purpose="recovery", prompt=notes("recovered")), a_reply(input=1_500)),
        (remembered(), None),
    )
    assert played.outcome.recoveries == 1


def test_a_provider_that_counts_in_another_measure_is_not_taken_for_one_that_cuts() -> None:
    """No provider has measured what the command leaves; our own projection is no report."""
    first = commanded((*TALK, COMMAND), *compacting())
    history = (*TALK, COMMAND, line_of(first), user("And now?"))
    played = play(
        exchange(a_call(history), snap()),
        (like(Recall), memory_of(first)),
        (like(Send, prompt=notes()), lambda step: a_reply(input=step.prompt.report.tokens // 2 - 100)),
        (remembered(), None),
    )
    keeping = played[Remember][-1]
    assert keeping.learned is None and keeping.anchor is not None and keeping.anchor.measured


def test_the_same_command_sent_again_asks_no_model_again() -> None:
    first = commanded((*TALK, COMMAND), *compacting())
    again = commanded(
        (*TALK, COMMAND),
        (like(Claim), True),
        (like(Count), estimates),
        (like(Remember, compaction=MANUAL, request=None), None),
        (remembered(), None),
        memory=changed(memory_of(first), anchor=None),
    )
    assert again.outcome.said == first.outcome.said
