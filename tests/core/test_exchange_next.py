"""What one call leaves for the next one on the same branch: its report, and its notes."""

from __future__ import annotations

from proxy.core.conversation import Message
from proxy.core.exchange import exchange
from proxy.core.steps import Claim, Count, Memory, Recall, Remember, Send, Summariser
from tests.core.histories import lines, model, system, user
from tests.core.scripts import (
    LONG,
    NEAR,
    SHORT,
    WINDOW,
    compacted,
    first_compaction,
    memory_of,
    notes,
    remembered,
    whole,
)
from tests.playbook import a_call, a_reply, a_snap, estimates, like, play


def test_a_report_above_the_window_is_not_repeated_and_has_the_next_call_compacted() -> None:
    """Some providers answer more than their window holds; the report says that it was time."""
    first = play(
        exchange(a_call(NEAR), a_snap(WINDOW)),
        (like(Recall), Memory()),
        (like(Count), lambda step: tuple(item.tokens // 2 for item in step.messages)),
        (like(Send, purpose="chat", prompt=whole()), a_reply(input=WINDOW + 200)),
        (remembered(), None),
    )
    assert first.outcome.recoveries == 0
    after = play(
        exchange(a_call((*NEAR, model("Done."), user("Go on."))), a_snap(WINDOW)),
        (like(Recall), memory_of(first)),
        (like(Claim), True),
        (compacted(), None),
        (like(Send, purpose="chat", prompt=notes()), a_reply()),
        (remembered(), None),
    )
    assert after[Send][0].prompt.report.tokens <= 0.85 * WINDOW


def test_only_the_last_report_counts_and_not_the_sum_of_all() -> None:
    memory, history = Memory(), SHORT
    reports: list[int] = []
    for _ in range(16):
        played = play(
            exchange(a_call(history), a_snap(WINDOW)),
            (like(Recall), memory),
            (like(Send, prompt=whole()), lambda step: a_reply(input=step.prompt.report.tokens)),
            (remembered(), None),
        )
        reports.append(played[Send][0].prompt.report.tokens)
        memory, history = memory_of(played), (*history, model("Done."), user("Go on."))
    assert sum(reports) > WINDOW > reports[-1]


def test_what_was_said_while_notes_were_made_is_told_behind_them() -> None:
    first = first_compaction()
    (made,) = [step.compaction for step in first[Remember] if step.compaction is not None]
    history = (*LONG, model("Done meanwhile."), user("New."))
    played = play(
        exchange(a_call(history), a_snap(WINDOW)),
        (like(Recall), Memory()),
        (like(Claim), False),
        (like(Recall), memory_of(first)),
        (like(Send, prompt=notes()), a_reply()),
        (remembered(), None),
    )
    told = played[Send][0].prompt.messages
    kept = len(history) - 1 - made.covers  # the system message has no place in what is covered
    assert kept >= 6
    assert told[-kept:] == history[-kept:]
    assert len(told) == kept + 2 + made.notes.part, "the system message, the notes, the open request"


def test_a_compaction_that_did_not_help_is_not_made_again_at_every_call() -> None:
    above = round(0.9 * WINDOW)
    first = play(
        exchange(a_call(LONG), a_snap(WINDOW)),
        (like(Recall), Memory()),
        (like(Claim), True),
        (like(Count), estimates),
        (compacted(), None),
        (like(Send, prompt=notes()), a_reply(input=above)),
        (remembered(), None),
    )
    memory, history = memory_of(first), LONG
    for _ in range(3):
        history = (*history, model("Done."), user("Go on."))
        played = play(
            exchange(a_call(history), a_snap(WINDOW)),
            (like(Recall), memory),
            (like(Send, purpose="chat", prompt=notes()), a_reply(input=above)),
            (remembered(), None),
        )
        assert played.outcome.report.stopped == "still_above"
        memory = Memory(
            conversation=memory.conversation, compactions=memory.compactions, anchor=memory_of(played).anchor
        )


def test_where_what_must_stay_is_over_the_trigger_no_model_is_asked_and_the_next_call_says_so() -> None:
    """The system prompt takes nearly all of the window: nothing that a compaction could do would help."""
    writer = Summariser(name="m", window=WINDOW, own=True)
    snap = a_snap(WINDOW, summarisers=lambda: (writer,))
    history: tuple[Message, ...] = (system(lines(650)), user("Well?"))
    first = play(
        exchange(a_call(history), snap),
        (like(Recall), Memory()),
        (like(Count), estimates),
        (like(Claim), True),
        (like(Send, prompt=whole(messages=history)), lambda step: a_reply(input=step.prompt.report.tokens)),
        (remembered(), None),
    )
    assert 0.85 * WINDOW < first[Send][0].prompt.report.tokens < 0.95 * WINDOW
    history = (*history, model("Well."), user("And?"))
    after = play(
        exchange(a_call(history), snap),
        (like(Recall), memory_of(first)),
        (like(Send, prompt=whole(messages=history)), a_reply()),
        (remembered(), None),
    )
    assert after.outcome.report.stopped == "no_notes"
