"""The order of a call, played as scripts: what is asked for, in which order, and what each answer leads to."""

from __future__ import annotations

import pytest

from proxy.core import chain
from proxy.core.errors import WindowExceeded
from proxy.core.exchange import exchange
from proxy.core.policy import Mode, Policy
from proxy.core.steps import (
    Anchor,
    Claim,
    Count,
    Limits,
    Memory,
    Prompt,
    Recall,
    Remember,
    Reply,
    Report,
    Send,
)
from proxy.core.usage import Usage
from tests.core.histories import PICTURE, lines, model, system, user
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
    size,
    whole,
)
from tests.playbook import SCOPE, a_call, a_reply, a_snap, estimates, like, play, too_long

# -- before the call ---------------------------------------------------------------------------------------------------


def test_what_fits_is_sent_once_as_it_came() -> None:
    asked = a_call(SHORT, label="chat-1")
    played = play(
        exchange(asked, a_snap(WINDOW)),
        (like(Recall, scope=SCOPE, agent="m", label="chat-1", named=True), Memory()),
        (
            like(Send, purpose="chat", delay=0.0, prompt=whole(messages=SHORT, untouched=True, max_output=None)),
            a_reply(input=size(SHORT)),
        ),
        (remembered(conversation="conv_new", label="chat-1"), None),
    )
    assert played.outcome.recoveries == 0
    assert played.outcome.report.tokens == size(SHORT)
    assert played.outcome.reply == a_reply(input=size(SHORT))
    assert played[Send][0].prompt.messages is asked.messages


def test_what_is_over_the_trigger_is_compacted_first_and_the_notes_are_stored_before_they_are_used() -> None:
    played = first_compaction(a_call(LONG, label="chat-1"))
    (claim,), (sent,) = played[Claim], played[Send]
    stored, last = played[Remember]
    made = stored.compaction
    assert made is not None
    assert (stored.root, stored.label, stored.conversation) == (claim.key, "chat-1", "conv_new")
    assert sent.prompt.report.compaction_id == made.id
    assert sent.prompt.report.tokens <= 0.85 * WINDOW
    assert sent.prompt.report.tokens == pytest.approx(made.after, rel=0.05)
    assert sent.prompt.messages[0] is LONG[0]
    assert sent.prompt.messages[-1] is LONG[-1]
    assert last.anchor is not None
    assert last.anchor.compaction == made.id


def test_near_the_trigger_the_decision_rests_on_an_exact_count() -> None:
    trigger = 0.85 * WINDOW
    assert abs(size(NEAR) - trigger) < 0.3 * size(NEAR)

    def half(step: Count) -> tuple[int, ...]:
        return tuple(item.tokens // 2 for item in step.messages)

    def double(step: Count) -> tuple[int, ...]:
        return tuple(item.tokens * 2 for item in step.messages)

    small = play(
        exchange(a_call(NEAR), a_snap(WINDOW)),
        (like(Recall), Memory()),
        (like(Count, messages=NEAR, encoding="o200k_base"), half),
        (like(Send, prompt=whole()), a_reply()),
        (remembered(), None),
    )
    assert small[Send][0].prompt.report.tokens < 0.7 * size(NEAR)
    play(
        exchange(a_call(NEAR), a_snap(WINDOW)),
        (like(Recall), Memory()),
        (like(Count), double),
        (like(Claim), True),
        (compacted(), None),  # not counted twice
        (like(Send, prompt=notes()), a_reply()),
        (remembered(), None),
    )


def test_where_the_last_report_is_known_nothing_is_counted() -> None:
    before = play(
        exchange(a_call(NEAR), a_snap(WINDOW)),
        (like(Recall), Memory()),
        (like(Count), lambda step: tuple(item.tokens // 2 for item in step.messages)),
        (like(Send), a_reply(input=size(NEAR) // 2)),
        (remembered(), None),
    )
    more = (*NEAR, model("Done."), user("Go on."))
    after = play(
        exchange(a_call(more), a_snap(WINDOW)),
        (like(Recall), memory_of(before)),
        (like(Send, prompt=whole()), a_reply()),
        (remembered(), None),
    )
    report = after[Send][0].prompt.report
    assert report.tokens == pytest.approx(size(NEAR) / 2 + (size(more) - size(NEAR)) / 2, abs=3)


def test_known_notes_are_used_again_without_new_ones() -> None:
    first = first_compaction()
    *_, stored = (step.compaction for step in first[Remember] if step.compaction is not None)
    more = (*LONG, model("Done."), user("Go on."))
    played = play(
        exchange(a_call(more), a_snap(WINDOW)),
        (like(Recall), memory_of(first)),
        (like(Send, prompt=notes()), a_reply()),
        (remembered(conversation="conv_new"), None),
    )
    (sent,) = played[Send]
    before = first[Send][0].prompt.messages
    assert sent.prompt.report.compaction_id == stored.id
    assert [item.digest for item in sent.prompt.messages[: len(before)]] == [item.digest for item in before]


def test_the_same_request_again_takes_the_same_decision() -> None:
    first = first_compaction()
    for snap in (a_snap(WINDOW), a_snap(10 * WINDOW)):  # even where the window has grown meanwhile
        again = play(
            exchange(a_call(LONG), snap),
            (like(Recall), memory_of(first)),
            (like(Send, prompt=notes()), a_reply()),
            (remembered(), None),
        )
        assert [item.digest for item in again[Send][0].prompt.messages] == [
            item.digest for item in first[Send][0].prompt.messages
        ]


def test_the_same_request_is_compacted_again_where_the_window_has_shrunk() -> None:
    played = play(
        exchange(a_call(LONG), a_snap(WINDOW // 4)),
        (like(Recall), memory_of(first_compaction())),
        (like(Claim), True),
        (compacted(), None),
        (like(Send, prompt=notes()), a_reply()),
        (remembered(), None),
    )
    assert played[Send][0].prompt.report.tokens <= 0.85 * WINDOW / 4


def test_whoever_comes_second_looks_again_and_uses_the_firsts_notes() -> None:
    first = first_compaction()
    played = play(
        exchange(a_call(LONG), a_snap(WINDOW)),
        (like(Recall), Memory()),
        (like(Claim, key=first[Claim][0].key), False),
        (like(Recall), memory_of(first)),
        (like(Send, prompt=notes()), a_reply()),
        (remembered(), None),
    )
    assert played[Send][0].prompt.messages[1].digest == first[Send][0].prompt.messages[1].digest


def test_whoever_comes_second_and_finds_nothing_does_the_work() -> None:
    play(
        exchange(a_call(LONG), a_snap(WINDOW)),
        (like(Recall), Memory()),
        (like(Claim), False),
        (like(Recall), Memory()),
        (like(Count), estimates),
        (compacted(), None),
        (like(Send, prompt=notes()), a_reply()),
        (remembered(), None),
    )


def test_where_nothing_can_be_gained_the_call_goes_out_and_the_provider_decides() -> None:
    huge = (system(lines(900)), user("Well?"))
    played = play(
        exchange(a_call(huge), a_snap(WINDOW)),
        (like(Recall), Memory()),
        (like(Claim), True),
        (like(Count), estimates),
        (like(Send, prompt=whole(messages=huge)), a_reply()),
        (remembered(), None),
    )
    assert played.outcome.report.compaction == "none"


def test_without_the_built_in_notes_nothing_is_compacted_before_a_call() -> None:
    play(
        exchange(a_call(LONG), a_snap(WINDOW, policy=Policy(summary_builtin=False))),
        (like(Recall), Memory()),
        (like(Claim), True),
        (like(Count), estimates),
        (like(Send, prompt=whole()), a_reply()),
        (remembered(), None),
    )


def test_what_must_stay_may_take_the_reserve_and_the_output_is_lowered() -> None:
    tall = (user("old " * 400), model("yes"), user(lines(540)))
    played = play(
        exchange(a_call(tall, max_output=4000), a_snap(WINDOW)),
        (like(Recall), Memory()),
        (like(Count), estimates),
        (like(Claim), True),
        (compacted(), None),
        (like(Send), a_reply()),
        (remembered(), None),
    )
    prompt = played[Send][0].prompt
    assert prompt.max_output is not None
    assert 16 <= prompt.max_output < 2000
    assert prompt.report.output == prompt.max_output
    assert prompt.report.tokens + prompt.max_output <= WINDOW


def test_an_agents_own_order_to_summarise_reads_everything_that_fits() -> None:
    order = (*NEAR[:-1], user("Please create a detailed summary of the conversation so far."))

    def over(step: Count) -> tuple[int, ...]:
        """Over the trigger, within the window."""
        return tuple(round(item.tokens * 7300 / size(order)) - 4 for item in step.messages)

    script = ((like(Recall), Memory()), (like(Count), over))
    played = play(
        exchange(a_call(order), a_snap(WINDOW)),
        *script,
        (like(Send, prompt=whole(messages=order)), a_reply()),
        (remembered(), None),
    )
    assert played[Send][0].prompt.report.tokens > 0.85 * WINDOW
    play(
        exchange(a_call((*order[:-1], user("And now?"))), a_snap(WINDOW)),
        *script,
        (like(Claim), True),
        (compacted(), None),
        (like(Send, prompt=notes()), a_reply()),
        (remembered(), None),
    )


def test_an_order_to_summarise_that_does_not_fit_is_served_from_notes() -> None:
    play(
        exchange(a_call((*LONG, model("x"), user("Summarize the conversation so far."))), a_snap(WINDOW)),
        (like(Recall), memory_of(first_compaction())),
        (like(Send, prompt=notes()), a_reply()),
        (remembered(), None),
    )


# -- modes -------------------------------------------------------------------------------------------------------------


def test_off_means_that_nothing_is_looked_at() -> None:
    played = play(
        exchange(a_call(LONG, max_output=99), a_snap(WINDOW, mode=Mode.OFF)),
        (
            like(Send, purpose="chat", prompt=like(Prompt, messages=LONG, untouched=True, max_output=99)),
            a_reply(input=5),
        ),
    )
    assert played.outcome.report == Report(conversation="conv_new", tokens=0, window=None)


def test_observe_sends_the_clients_own_messages_and_reports_what_would_have_been_done() -> None:
    played = play(
        exchange(a_call(LONG, max_output=99), a_snap(WINDOW, mode=Mode.OBSERVE)),
        (like(Recall), Memory()),
        (like(Claim), True),
        (like(Count), estimates),
        (compacted(), None),
        (
            like(Send, prompt=like(Prompt, messages=LONG, untouched=True, max_output=99)),
            a_reply(input=size(LONG)),
        ),
        (remembered(sample=None, learned=None), None),
    )
    assert played.outcome.report.compaction == "auto"
    assert played.outcome.report.tokens < 0.85 * WINDOW


def test_observe_never_sends_twice() -> None:
    with pytest.raises(WindowExceeded):
        play(
            exchange(a_call(SHORT), a_snap(WINDOW, mode=Mode.OBSERVE)),
            (like(Recall), Memory()),
            (like(Send), too_long(kind="input", limit=4000, requested=12000)),
        )


# -- what is remembered ------------------------------------------------------------------------------------------------


def test_what_is_remembered_names_request_and_answer_and_weighs_the_prompt() -> None:
    asked = a_call(SHORT)
    reply = a_reply(input=700)
    played = play(
        exchange(asked, a_snap(WINDOW)),
        (like(Recall), Memory(conversation="conv_known")),
        (like(Send), reply),
        (remembered(), None),
    )
    (stored,) = played[Remember]
    assert reply.message is not None
    request = chain.follow(chain.begin(SCOPE), SHORT)
    answer = chain.follow(chain.begin(SCOPE), (*SHORT, reply.message))
    assert (stored.request, stored.reply, stored.root) == (request.last, answer.last, request.after[0])
    assert stored.conversation == "conv_known"
    assert stored.anchor == Anchor(
        upstream="main",
        model="m",
        shape=chain.shape(SHORT[0].digest, b"", None),
        reported=700,
        estimated=size(SHORT),
        compaction=None,
        request=request.last,
    )
    assert stored.sample == (700, size(SHORT), 0)
    assert stored.learned is None


def test_an_answer_without_a_message_has_no_place_in_the_chain() -> None:
    for reply in (Reply(message=None, finish="stop", usage=None), Reply(message=None, finish=None, usage=Usage())):
        played = play(
            exchange(a_call(SHORT), a_snap(WINDOW)),
            (like(Recall), Memory()),
            (like(Send), reply),
            (remembered(reply=None, sample=None), None),
        )
        (stored,) = played[Remember]
        assert stored.anchor is not None
        assert stored.anchor.reported == size(SHORT)


def test_a_prompt_that_the_provider_cut_is_learned_from_and_is_no_anchor() -> None:
    played = play(
        exchange(a_call(NEAR), a_snap(100_000)),
        (like(Recall), Memory()),
        (like(Send), a_reply(input=2050)),  # just above half of 4,096, as Ollama cuts
        (remembered(learned=Limits(total=4096, source="learned"), sample=None), None),
    )
    (stored,) = played[Remember]
    assert stored.anchor is not None
    assert stored.anchor.reported == size(NEAR)


def test_a_report_that_does_not_grow_with_the_prompt_shows_a_cut() -> None:
    first = play(
        exchange(a_call(NEAR), a_snap(100_000)),
        (like(Recall), Memory()),
        (like(Send), a_reply(input=6000)),
        (remembered(learned=None), None),
    )
    for added, cut in ((user(lines(100)), 6000), (user(lines(100), PICTURE), None)):  # images are counted in many ways
        played = play(
            exchange(a_call((*NEAR, model("Done."), added)), a_snap(100_000)),
            (like(Recall), memory_of(first)),
            (like(Send), a_reply(input=5990)),
            (remembered(), None),
        )
        learned = played[Remember][0].learned
        assert (learned.total if learned else None) == cut
