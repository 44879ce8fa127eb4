"""What is known of one call's history, and the prompts that can be made of it."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.core import chain
from proxy.core.branch import Branch, merged
from proxy.core.conversation import Message, Text
from proxy.core.errors import Overflow
from proxy.core.notes import Compaction
from proxy.core.policy import Mode, Policy
from proxy.core.steps import (
    Anchor,
    Caller,
    Count,
    Flow,
    Limits,
    Memory,
    Prompt,
    Ratio,
    Recall,
    Remember,
    Reply,
    Report,
)
from proxy.core.usage import Usage
from tests.core.histories import call, lines, loop, model, result, system, user
from tests.playbook import SCOPE, a_call, a_reply, a_snap, changed, estimates, like, play

LONG = (system("Be brief."), *loop(50), user("And now?"))
SHORT = (system("Be brief."), *loop(2), user("And now?"))


def through(flow: Flow[None], answer: Any) -> Any:
    """Give `answer` to the one question of a flow; the question."""
    step = next(flow)
    with pytest.raises(StopIteration):
        flow.send(answer(step) if callable(answer) else answer)
    return step


def branch(
    messages: tuple[Message, ...], memory: Memory | None = None, *, window: int | None = 8000, **more: Any
) -> Branch:
    asked = {
        name: more.pop(name)
        for name in tuple(more)
        if name in ("max_output", "label", "tools", "tools_tokens", "tools_digest", "caller")
    }
    made = Branch(a_call(messages, **asked), a_snap(window, **more))
    through(made.recall(), memory or Memory())
    return made


def notes_of(made: Branch, share: float = 1.0) -> Compaction:
    room = made.room
    assert room is not None
    planned = made.plan(room, 100_000, share)
    assert planned is not None
    return planned


def anchor_for(made: Branch, prompt: Prompt, **more: Any) -> Anchor:
    known = {
        "upstream": "main",
        "model": "m",
        "shape": prompt.shape,
        "reported": prompt.report.tokens,
        "estimated": prompt.estimated,
        "compaction": prompt.report.compaction_id,
        "request": made.chain.last,
    }
    return Anchor(**(known | more))


def asked(made: Branch) -> Recall:
    step = next(made.recall())
    assert isinstance(step, Recall)
    return step


# -- what the store is asked --


def test_every_boundary_is_looked_up_newest_first_and_the_beginning_too() -> None:
    made = Branch(a_call(SHORT), a_snap(8000))
    follow = chain.follow(chain.begin(SCOPE), SHORT)
    digests = asked(made).digests
    assert digests[0] == follow.last
    assert digests[-1] == follow.start
    assert set(digests) == {follow.start, *follow.after}
    assert len(digests) == len(set(digests))


def test_a_history_too_young_to_be_known_is_looked_up_at_one_place() -> None:
    young = (system("Be brief."), user("Hi"))
    assert asked(Branch(a_call(young), a_snap())).digests == (chain.follow(chain.begin(SCOPE), young).last,)
    assert len(asked(Branch(a_call(young, label="chat-1"), a_snap())).digests) == 2
    longer = (*young, user("Hi again"))
    assert len(asked(Branch(a_call(longer), a_snap())).digests) == 2, "notes may end at each of the messages"


@pytest.mark.parametrize(
    ("more", "named"),
    [({}, False), ({"label": "x"}, True), ({"caller": Caller(tenant="t", key="k", end_user="u")}, True)],
)
def test_hidden_state_belongs_to_callers_who_say_who_they_are(more: dict[str, Any], named: bool) -> None:
    assert asked(Branch(a_call(SHORT, **more), a_snap())).named is named


# -- prompts --


def test_a_whole_prompt_is_the_clients_own() -> None:
    made = branch(SHORT, max_output=77, tools=b"[]", tools_tokens=5)
    prompt = made.prompt(None)
    assert prompt.untouched
    assert prompt.messages is made.call.messages
    assert prompt.max_output == 77
    assert prompt.report == Report(conversation="conv_new", tokens=prompt.estimated, window=8000)
    assert prompt.estimated == 3 + 5 + sum(item.tokens for item in SHORT)
    lowered = made.prompt(None, max_output=16)
    assert (lowered.max_output, lowered.report.output) == (16, 16)


def test_a_repaired_history_is_no_longer_untouched_and_says_so() -> None:
    prompt = branch((user("a"), result("gone", "orphan"), user("b"))).prompt(None)
    assert not prompt.untouched
    assert prompt.report.repaired == 1


def test_a_model_that_must_alternate_is_told_merged_messages() -> None:
    talk = (user("a"), user("b"), model("c"), user("d"))
    prompt = branch(talk, policy=Policy(alternate=True)).prompt(None)
    assert [item.role for item in prompt.messages] == ["user", "assistant", "user"]
    assert prompt.report.repaired == 1
    assert branch(talk).prompt(None).untouched


def test_the_window_told_is_the_smaller_of_the_two_known() -> None:
    assert branch(SHORT, limits=Limits(total=9000, input=5000)).prompt(None).report.window == 5000
    assert branch(SHORT, limits=Limits(input=5000)).prompt(None).report.window == 5000
    assert branch(SHORT, window=None).prompt(None).report.window is None


def test_an_anchor_of_another_model_or_upstream_says_nothing() -> None:
    plain = branch(SHORT)
    whole = plain.prompt(None)
    for more in ({"upstream": "other"}, {"model": "other"}):
        made = branch(SHORT, Memory(anchor=anchor_for(plain, whole, reported=9999, **more)))
        assert made.anchor is None
        assert made.prompt(None).report.tokens == whole.report.tokens


def test_an_anchor_of_another_shape_gives_its_scale_and_nothing_more() -> None:
    plain = branch(SHORT)
    whole = plain.prompt(None)
    anchor = anchor_for(plain, whole, shape=b"other", reported=2 * whole.estimated)
    assert branch(SHORT, Memory(anchor=anchor)).prompt(None).report.tokens == 2 * whole.estimated
    nothing = branch(SHORT, Memory(anchor=changed(anchor, estimated=0)))
    assert nothing.prompt(None).report.tokens == whole.report.tokens


def test_system_messages_and_tools_are_part_of_a_prompts_shape() -> None:
    shape = branch(SHORT).prompt(None).shape
    assert branch((system("Other."), *SHORT[1:])).prompt(None).shape != shape
    assert branch(SHORT, tools_digest=b"1").prompt(None).shape != shape
    assert branch((*SHORT, model("x"), user("y"))).prompt(None).shape == shape


def test_a_learned_ratio_scales_an_estimate() -> None:
    prompt = branch(SHORT, ratio=Ratio(value=1.5, samples=3)).prompt(None)
    assert prompt.report.tokens == round(1.5 * prompt.estimated)


# -- which known prompt --


def test_the_same_request_is_told_again_as_it_was() -> None:
    plain = branch(LONG)
    made = notes_of(plain)
    told = plain.prompt(made, "auto")
    known = Memory(compactions=(made,), anchor=anchor_for(plain, told))
    again = branch(LONG, known).same_again()
    assert again is not None
    assert [item.digest for item in again.messages] == [item.digest for item in told.messages]
    assert again.report.compaction == "auto"


def test_it_is_not_the_same_where_request_notes_shape_or_window_differ() -> None:
    plain = branch(LONG)
    made = notes_of(plain)
    told = plain.prompt(made, "auto")
    anchor = anchor_for(plain, told)
    known = Memory(compactions=(made,), anchor=anchor)
    assert branch(LONG).same_again() is None
    assert branch((*LONG, model("x"), user("y")), known).same_again() is None
    assert branch(LONG, changed(known, compactions=())).same_again() is None
    assert branch(LONG, changed(known, anchor=changed(anchor, shape=b"x"))).same_again() is None
    assert branch(LONG, known, window=1500).same_again() is None
    assert branch(LONG, known, window=None).same_again() is not None


def test_the_least_compacted_known_prompt_that_fits_is_taken() -> None:
    plain = branch(LONG)
    more = notes_of(plain, 0.5)
    less = notes_of(plain, 1.0)
    assert less.covers < more.covers
    made = branch(LONG, Memory(compactions=(more, less)))
    small, large = made.prompt(more), made.prompt(less)
    for bound, expected in ((10_000, less), (small.report.tokens, more)):
        found = made.compacted_before(bound)
        assert found is not None
        assert found.report.compaction_id == expected.id
    assert made.compacted_before(small.report.tokens - 1) is None
    assert made.compacted_before(None) is None  # nothing says that this branch was compacted
    assert made.smallest(made.prompt(None)).report.compaction_id == more.id
    assert large.report.tokens > small.report.tokens


def test_a_branch_is_not_told_through_shorter_notes_than_before() -> None:
    plain = branch(LONG)
    more, less = notes_of(plain, 0.5), notes_of(plain, 1.0)
    anchor = anchor_for(plain, plain.prompt(more, "auto"))
    made = branch(LONG, Memory(compactions=(less, more), anchor=anchor))
    for bound in (10_000, None):
        found = made.compacted_before(bound)
        assert found is not None
        assert found.report.compaction_id == more.id


def test_notes_of_another_history_are_never_used() -> None:
    foreign = notes_of(branch((user("Another."), *LONG[2:])))
    made = branch(LONG, Memory(compactions=(foreign,)))
    assert made.compacted_before(100_000) is None
    whole = made.prompt(None)
    assert made.smallest(whole) is whole


def test_a_compacted_branch_is_told_whole_again_only_well_below_the_trigger() -> None:
    plain = branch(LONG)
    made = notes_of(plain)
    whole = plain.prompt(None)
    assert not plain.was_compacted(whole, 1)
    anchor = anchor_for(plain, plain.prompt(made, "auto"))
    known = branch(LONG, Memory(compactions=(made,), anchor=anchor))
    assert known.was_compacted(whole, whole.report.tokens)
    assert not known.was_compacted(whole, 2 * whole.report.tokens)
    forgotten = branch(LONG, Memory(anchor=anchor))
    assert not forgotten.was_compacted(whole, whole.report.tokens)


# -- counting and planning --


def test_only_a_near_decision_without_a_report_is_uncertain() -> None:
    made = branch(SHORT)
    whole = made.prompt(None)
    size = whole.report.tokens
    assert made.uncertain(whole, size + size // 5)
    assert made.uncertain(whole, size - size // 5)
    assert not made.uncertain(whole, 2 * size)
    assert not made.uncertain(whole, size // 2)
    anchored = branch(SHORT, Memory(anchor=anchor_for(made, whole)))
    assert not anchored.uncertain(whole, size)
    through(made.count(), estimates)
    assert not made.uncertain(whole, size)


def test_exact_counts_replace_the_estimate_and_are_asked_for_once() -> None:
    made = branch(SHORT, tools_tokens=7, exact_ratio=Ratio(value=2.0, samples=1))
    step = through(made.count(), lambda step: (10,) * len(step.messages))
    assert step == Count(messages=SHORT, encoding="o200k_base")
    assert made.counted == 10 * len(SHORT)
    assert made.prompt(None).report.tokens == 2 * (3 + 7 + 14 * len(SHORT))
    assert list(made.count()) == []


def test_nothing_is_counted_where_a_report_is_known() -> None:
    made = branch(SHORT)
    anchored = branch(SHORT, Memory(anchor=anchor_for(made, made.prompt(None))))
    assert list(anchored.count()) == []
    assert anchored.counted == 0


def test_a_plan_without_counts_rests_on_the_scale() -> None:
    made = branch(LONG, ratio=Ratio(value=2.0, samples=9))
    planned = notes_of(made)
    assert made.prompt(planned).report.tokens <= 0.85 * 8000


def test_the_whole_of_what_is_clipped_is_stored() -> None:
    big = lines(900)
    history = (user("Read it."), model("", call("c")), result("c", big))
    made = branch(history)
    planned = notes_of(made)
    assert planned.clips
    (stored,) = made.cut_results(planned)
    assert stored.text == big
    assert stored.reference == chain.reference(SCOPE, big)
    assert big not in "".join(item.text for item in made.prompt(planned).messages)


# -- learning --


def test_a_stated_limit_holds_for_this_call_at_once() -> None:
    made = branch(SHORT)
    learned = made.learn(Overflow(kind="input", limit=4000, requested=6000), made.prompt(None))
    assert learned == Limits(total=4000, source="learned")
    assert made.limits.total == 4000
    assert made.scale == pytest.approx(min(4.0, 6000 / made.prompt(None).estimated))


def test_a_lower_bound_corrects_no_scale() -> None:
    made = branch(SHORT)
    made.learn(Overflow(kind="input", limit=4000, requested=6000, exact=False), made.prompt(None))
    assert made.scale == 1.0


def test_after_exact_numbers_from_the_provider_our_own_count_is_laid_aside() -> None:
    made = branch(SHORT)
    through(made.count(), estimates)
    made.learn(Overflow(kind="input", limit=4000, input=2 * made.prompt(None).estimated), made.prompt(None))
    assert made.counted == 0
    assert list(made.count()) == []
    assert made.prompt(None).report.tokens == 2 * made.prompt(None).estimated


def test_a_refusal_without_a_limit_of_what_should_have_fitted_shrinks_the_window() -> None:
    for window in (8000, None):
        made = branch(SHORT, window=window)
        size = made.prompt(None).report.tokens
        assert made.learn(Overflow(), made.prompt(None)) is None
        assert made.limits.total == int(0.9 * size)
    tiny = branch((user("x"),), window=None)
    tiny.learn(Overflow(), tiny.prompt(None))
    assert tiny.limits.total == 64


def test_a_refusal_without_a_limit_of_what_could_not_fit_teaches_nothing() -> None:
    made = branch(LONG)
    made.learn(Overflow(), made.prompt(None))
    assert made.limits == Limits(total=8000, source="policy")


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        (Limits(total=5, source="learned"), Limits(total=5, input=7, source="learned")),
        (Limits(input=5, source="learned"), Limits(total=9, input=5, source="learned")),
        (Limits(total=1, input=2, source="learned"), Limits(total=1, input=2, source="learned")),
    ],
)
def test_a_stated_limit_replaces_the_one_of_its_kind(stated: Limits, expected: Limits) -> None:
    assert merged(Limits(total=9, input=7, source="policy"), stated) == expected
    assert merged(Limits(), Limits(input=5, source="learned")) == Limits(input=5, source="learned")


def both(**numbers: Any) -> Overflow:
    return Overflow(**({"kind": "input_plus_output"} | numbers))


@pytest.mark.parametrize(
    ("max_output", "refused", "lowered"),
    [
        (4000, both(limit=5000, requested=7000, input=3000, output=4000), 5000 - 3000 - 8),
        (4000, both(limit=5000, requested=7000), 5000 - 605 - 100),  # 605: our own size of it
        (4000, both(), 8000 - 605 - 160),
        (None, both(limit=5000, input=3000), None),
        (4000, Overflow(kind="input", limit=5000, input=3000), None),
        (4000, both(limit=5000, limit_of="input", input=3000), None),
        (4000, both(limit=5000, input=4990), None),  # nothing is left
        (4000, both(limit=5000, input=4800), None),  # too little for what was asked
        (100, both(limit=5000, input=4970), 22),
        (100, both(limit=5000, input=4980), None),  # under 16
        (100, both(limit=5000, input=3000), None),  # that would not be less
    ],
)
def test_the_output_is_lowered_where_that_alone_can_help(
    max_output: int | None, refused: Overflow, lowered: int | None
) -> None:
    filler = (user("Hello."), model(lines(54)), user("And now?"))
    made = branch(filler, max_output=max_output)
    prompt = changed(made.prompt(None), report=changed(made.prompt(None).report, tokens=605))
    found = made.lowered(prompt, refused)
    if lowered is not None and max_output == 4000 and lowered >= 4000:
        lowered = None
    assert (found.max_output if found else None) == lowered
    if found is not None:
        assert found.messages is prompt.messages
        assert (found.report.output, found.report.window) == (lowered, refused.limit or 8000)


def test_a_reported_size_lowers_an_output_limit_that_would_be_refused_each_time() -> None:
    plain = branch(SHORT, max_output=4000)
    prompt = plain.prompt(None)
    assert plain.roomy(prompt) is prompt  # nothing was reported yet
    for reported, lowered in ((5000, 8000 - 160 - 5000), (3000, 4000), (7835, 4000)):
        known = branch(SHORT, Memory(anchor=anchor_for(plain, prompt, reported=reported)), max_output=4000)
        told = known.roomy(known.prompt(None))
        assert told.max_output == lowered
        assert told.report.output == (lowered if lowered < 4000 else None)
    shaped = {"max_output": 4000, "tools_digest": b"1"}
    for more in ({"max_output": None}, {"max_output": 4000, "window": None}, shaped):
        other = branch(SHORT, Memory(anchor=anchor_for(plain, prompt, reported=5000)), **more)
        whole = other.prompt(None)
        assert other.roomy(whole) is whole


def test_the_output_is_not_lowered_where_no_limit_is_known() -> None:
    made = branch(SHORT, window=None, max_output=4000)
    assert made.lowered(made.prompt(None), both()) is None


# -- what is remembered --


def told(made: Branch, prompt: Prompt, reply: Reply) -> Remember:
    step = next(made.remember(prompt, reply))
    assert isinstance(step, Remember)
    return step


def test_the_sample_of_a_counted_and_untouched_prompt_calibrates_the_count() -> None:
    made = branch(SHORT)
    through(made.count(), lambda step: (10,) * len(step.messages))
    whole = made.prompt(None)
    assert told(made, whole, a_reply(input=500)).sample == (500, whole.estimated, 10 * len(SHORT))
    assert told(made, changed(whole, untouched=False), a_reply(input=500)).sample == (500, whole.estimated, 0)


def test_in_observe_mode_a_report_is_trusted_where_we_would_have_sent_the_same() -> None:
    made = branch(SHORT, mode=Mode.OBSERVE)
    step = told(made, made.observed(made.prompt(None)), a_reply(input=500))
    assert step.anchor is not None
    assert (step.anchor.reported, step.sample) == (500, (500, made.prompt(None).estimated, 0))


def test_a_reply_that_called_tools_has_a_place_in_the_chain() -> None:
    made = branch(SHORT)
    answer = model("", call("c", path="x"))
    step = told(made, made.prompt(None), Reply(message=answer, finish="tool_calls", usage=Usage(input=9)))
    assert step.reply == chain.follow(chain.begin(SCOPE), (*SHORT, answer)).last


def test_the_steps_of_a_branch_are_those_that_a_driver_answers() -> None:
    """The same questions, played by the harness."""
    made = Branch(a_call(SHORT), a_snap(8000))
    play(made.recall(), (like(Recall), Memory(conversation="conv_known")))
    assert made.prompt(None).report.conversation == "conv_known"
    play(made.count(), (like(Count), estimates))
    play(made.remember(made.prompt(None), a_reply()), (like(Remember, conversation="conv_known"), None))


def test_the_lease_of_a_branch_is_its_first_message() -> None:
    first = user("Hi")
    assert branch((first, model("a"), user("b"))).key == branch((first, model("x"))).key
    assert branch((user("Hello"), model("a"))).key != branch((first, model("a"))).key
    assert branch((changed(first, blocks=(Text(text="Hi"),)),)).key == branch((first,)).key
