"""The prompts that can be made of a history: what memory does to their bytes, their size, and what must be stored."""

from __future__ import annotations

from typing import Any

import msgspec

from benchmarks.dry import Store
from benchmarks.memory_cost import played
from proxy.core import chain
from proxy.core.agent import MemoryLimits
from proxy.core.branch import Branch
from proxy.core.conversation import Message
from proxy.core.exchange import exchange
from proxy.core.layers import rounded
from proxy.core.measure import prompt_tokens
from proxy.core.notes import Compaction, Notes
from proxy.core.policy import Mode
from proxy.core.replayed import READ_TOOL_RESULT
from proxy.core.steps import Count, Memory, Recall, Remember, Send, Stored
from tests.core.histories import call, loop, model, result, user
from tests.core.stacks import a_stack, an_agent
from tests.playbook import a_call, a_reply, a_snap, like, play

LIMITS = MemoryLimits(step=1)
AGENT = an_agent(skills=(), instructions="A.", tools=(READ_TOOL_RESULT,), memory=LIMITS)
LONG = (
    user("Look."),
    model("I open it.", call("a", path="a.py")),
    result("a", "x" * 5000),
    model("Seen."),
    user("And now?"),
)


def branch(messages: tuple[Message, ...] = LONG, agent: Any = AGENT, **more: Any) -> Branch:
    made = Branch(a_call(messages), a_snap(stack=a_stack(agent), **more))
    made.layer()
    return made


def test_the_size_of_a_prompt_is_that_of_what_is_told() -> None:
    for messages in (LONG, (*loop(30), user("Go."))):
        made = branch(messages)
        prompt = made.prompt(None)
        assert prompt.estimated == prompt_tokens(prompt.messages, 40)
        assert prompt.estimated < prompt_tokens(messages, 40)
        assert made.layers_of(None).extra == prompt.estimated - prompt_tokens(messages, 40)


def test_what_is_planned_with_is_what_is_told_and_never_less_than_nothing() -> None:
    made = branch()
    history = made._history()
    told = made.prompt(None).messages[1:]
    assert sum(history.sizes) == sum(item.tokens for item in told)
    assert min(history.sizes) >= 0
    play_out = made.count()
    step = next(play_out)
    assert type(step) is Count
    try:
        play_out.send(tuple(1 for _ in LONG))
    except StopIteration:
        pass
    assert min(made._history().sizes) == 0


def test_exact_counts_are_of_the_history_and_what_memory_leaves_out_is_taken_off() -> None:
    made = branch()
    before = made.prompt(None).report.tokens
    counting = made.count()
    next(counting)
    try:
        counting.send(tuple(item.tokens - 4 for item in LONG))
    except StopIteration:
        pass
    assert made.prompt(None).report.tokens == before


def test_an_anchor_holds_as_long_as_the_boundaries_stand() -> None:
    opened = branch((*LONG, model("", call("b")), result("b", "1")))
    assert opened.prompt(None).shape == branch().prompt(None).shape
    assert branch((*LONG, model("Yes."), user("More."))).prompt(None).shape != branch().prompt(None).shape
    plain = branch(agent=an_agent(skills=(), instructions="A.", tools=(READ_TOOL_RESULT,)))
    assert plain.prompt(None).shape != branch().prompt(None).shape


def test_what_is_told_cut_is_stored_whole_before_it_is_sent() -> None:
    reference = chain.reference(a_snap().scope, "x" * 5000)
    snap = a_snap(stack=a_stack(AGENT), redact=lambda text: text.replace("xxxxx", "-"))
    played_ = play(
        exchange(a_call(LONG), snap),
        (like(Recall), Memory()),
        (like(Remember, request=None, results=(Stored(reference=reference, text="-" * 1000),)), None),
        (like(Send), a_reply()),
        (like(Remember, results=()), None),
    )
    assert reference in played_[Send][0].prompt.messages[3].text
    again = msgspec.structs.replace(snap, holds=lambda name: name == reference)
    play(
        exchange(a_call(LONG), again),
        (like(Recall), Memory()),
        (like(Send), a_reply()),
        (like(Remember), None),
    )


def test_two_results_with_one_text_are_stored_once() -> None:
    twice = (*LONG[:3], model("", call("b")), result("b", "x" * 5000), *LONG[3:])
    made = branch(twice)
    assert len(made.wholes(made.prompt(None))) == 1


def test_without_memory_nothing_is_stored_and_everything_stands() -> None:
    made = branch(agent=an_agent(skills=(), instructions="A."))
    prompt = made.prompt(None)
    assert prompt.messages[1:] == LONG
    assert made.wholes(prompt) == ()
    assert made.remembered(None) is None
    assert made.holds(None)
    assert made.loosest() is made.layers


def test_a_mode_that_only_watches_remembers_nothing() -> None:
    assert branch(mode=Mode.OBSERVE).prompt(None).messages == LONG


def test_a_clients_own_request_for_a_summary_reads_everything() -> None:
    asks = (*LONG[:-1], user("You are performing a CONTEXT CHECKPOINT COMPACTION. Create a handoff summary."))
    assert branch(asks).prompt(None).messages[1:] == asks


def test_tool_rounds_of_this_call_stand_behind_the_memory() -> None:
    made = branch()
    before = made.prompt(None)
    more = (model("", call("w", "load_skill")), result("w", "1"))
    made.layers = rounded(made.layers, more)
    after = made.prompt(None)
    assert after.messages == (*before.messages, *more)
    assert after.estimated == before.estimated + sum(item.tokens for item in more)


def test_what_a_plan_cut_stays_cut_however_much_memory_would_tell() -> None:
    messages = (user("Look."), model("", call("a")), result("a", "x" * 390), model("Seen. " * 80), user("And now?"))
    known = branch(messages)
    used = Compaction(
        id="cmp_x",
        digest=known.chain.after[3],
        messages=4,
        covers=0,
        notes=Notes(turns=0),
        clips=((3, 200), (4, 160)),
    )
    made = branch(messages, agent=an_agent(skills=(), instructions="A.", memory=MemoryLimits(step=1, calls=0)))
    told = made.prompt(used)
    (answer,) = [item for item in told.messages if item.role == "assistant"]
    assert answer.text.startswith("(1 earlier call of this turn is not shown.)")
    assert "were left out here by the gateway ...]" in answer.text
    assert told.estimated == prompt_tokens(told.messages, 0)
    whole = made.prompt(msgspec.structs.replace(used, id="cmp_y", clips=()))
    assert whole.estimated > told.estimated
    assert known.prompt(used).messages[3].text.count("left out here by the gateway") == 1


def test_a_result_that_a_plan_cut_is_told_no_longer_than_that() -> None:
    messages = (user("Look."), model("I look.", call("a")), result("a", "x" * 900), model("Seen."), user("And now?"))
    made = branch(messages)
    used = Compaction(
        id="cmp_x", digest=made.chain.after[2], messages=3, covers=0, notes=Notes(turns=0), clips=((2, 160), (3, 160))
    )
    (told,) = [item for item in made.prompt(used).messages if item.results]
    (alone,) = [item for item in made.prompt(None).messages if item.results]
    assert len(told.text) < len(alone.text) <= 400
    assert told.text.startswith("xxx")


def test_it_is_cut_anew_where_memory_left_more_and_left_alone_where_it_left_less() -> None:
    messages = (user("Look."), model("", call("a")), result("a", "x" * 900), model("Seen."), user("And now?"))
    made = branch(messages)
    used = Compaction(id="cmp_x", digest=made.chain.after[2], messages=3, covers=0, notes=Notes(turns=0))

    def told(limit: int) -> str:
        clipped = msgspec.structs.replace(used, id=f"cmp_{limit}", clips=((3, limit),))
        (found,) = [item for item in made.prompt(clipped).messages if item.results]
        return found.text

    (alone,) = [item.text for item in made.prompt(None).messages if item.results]
    assert told(390) == alone, "a second cut would only add its own mark"
    assert told(160).count("left out here") == 1
    assert "[... 740 characters were left out here by the gateway ...]" in told(160)


def test_a_turn_that_is_open_is_told_word_for_word_whatever_it_holds() -> None:
    opened = LONG[:3]
    assert branch(opened).prompt(None).messages[1:] == opened


def test_the_bytes_that_were_sent_once_are_sent_again() -> None:
    store = Store()
    first = list(played(LONG, LIMITS, store=store, steps=[5]))
    again = list(played(LONG, LIMITS, store=store, steps=[5]))
    assert [item.wire for item in first[0].prompt.messages] == [item.wire for item in again[0].prompt.messages]
    assert None not in [item.wire for item in first[0].prompt.messages[2:4]]
