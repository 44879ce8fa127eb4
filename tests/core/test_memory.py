"""Memory: the boundaries on a history, what slides out, and that equal histories are told in equal bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.dry import Store
from benchmarks.memory_cost import Played, played
from proxy.core import chain, groups
from proxy.core.agent import MemoryLimits
from proxy.core.conversation import Block, Message, Reasoning, Text, ToolCall, ToolResult
from proxy.core.hidden import Expansion
from proxy.core.memory import Remembered, Teller, closed_turns
from proxy.core.pacing import SLACK, Pace, Window
from proxy.core.policy import Tariff
from proxy.core.recollection import Recollection
from tests.core.histories import PICTURE, START, broken, call, conversations, flaws, loop, model, result, system, user
from tests.remembering import faults

CACHED = Tariff(input=1000, output=0, cached=100, cache_write=1250)


def teller(messages: tuple[Message, ...], known: Mapping[int, Expansion] | None = None, **more: Any) -> Teller:
    settled: dict[str, Any] = {"limits": MemoryLimits(), "refer": lambda text: f"res_{len(text)}"}
    return Teller(messages=messages, chain=chain.follow(START, messages), known=known or {}, **(settled | more))


def remembered(messages: tuple[Message, ...], **more: Any) -> Remembered:
    return teller(messages, **more).remembered(range(len(messages)))


def told(messages: tuple[Message, ...], found: Remembered) -> tuple[Message, ...]:
    said: list[Message] = []
    for index, item in enumerate(messages):
        each = found.expansions.get(index)
        if each is None:
            said.append(item)
        elif not each.gone:
            said += [*each.before, each.instead or item, *each.behind]
    return tuple(said)


# -- the boundaries on a history --------------------------------------------------------------------------------------


def test_the_open_turn_is_told_word_for_word() -> None:
    turn = (user("Go."), model("I look.", call("a", text="x" * 900)), result("a", "1" * 9000))
    assert remembered(turn).expansions == {}
    found = remembered((*loop(2), *turn))
    assert not set(found.expansions) & set(range(8, 11))


def test_a_history_without_a_user_is_all_open() -> None:
    assert remembered((system("Hi."), model("Hello."))).expansions == {}
    assert closed_turns((), ()) == []


def test_what_stands_before_the_first_turn_belongs_to_it() -> None:
    messages = (model("Hello."), model("I am a bot."), user("Hi."), model("Yes?"), user("Go."))
    assert closed_turns(messages, range(5)) == [(0, 1, 2, 3)]
    assert told(messages, remembered(messages))[0] == model("Hello.\n\nI am a bot.")


def test_system_messages_belong_to_the_turn_that_they_stand_in_but_for_those_before_it() -> None:
    messages = (system("Lead."), user("One"), system("Note."), user("Two"), model("A."), system("End."), user("Go."))
    assert closed_turns(messages, range(7)) == [(1, 2, 3, 4, 5)]
    assert closed_turns(messages, [1, 3, 5, 6]) == [(1, 3, 5)]
    assert closed_turns(messages, [5, 6]) == []
    # Where notes stand for the one between, its neighbours are neighbours.
    assert told(messages, teller(messages).remembered([1, 3, 5, 6]))[1] == user("One\n\nTwo")
    assert told(messages, remembered(messages)) == messages


def test_a_turn_that_notes_part_is_told_from_where_they_end() -> None:
    messages = (*loop(3), user("Go."))
    assert closed_turns(messages, [4, 6, 7, 8, 9, 10, 11, 12]) == [(4, 6, 7), (8, 9, 10, 11)]


def test_of_older_turns_results_go_and_the_turns_beyond_all_limits_have_slid_out() -> None:
    messages = (*loop(25), user("Go."))
    found = remembered(messages)
    assert found.window == Window(first=5, results=22, trimmed=25)
    assert found.since == 20
    said = told(messages, found)
    shown = [item.text for item in said if item.results]
    assert [text.startswith("(Succeeded;") for text in shown] == [True] * 22 + [False] * 3
    assert len(said) == len(messages)  # until notes stand for them they are told all the same


def test_where_they_are_dropped_nothing_of_them_is_told_but_system_messages() -> None:
    messages = (user("One"), system("Note."), model("A."), *loop(24), user("Go."))
    found = remembered(messages, limits=MemoryLimits(leaving="drop"))
    said = told(messages, found)
    assert said[0] == system("Note.")
    assert said[1:] == told(messages[19:], remembered(messages[19:]))


def test_between_two_steps_the_same_bytes_are_told() -> None:
    limits = MemoryLimits(step=5)
    before: tuple[Message, ...] = ()
    moves = 0
    for turns in range(1, 40):
        messages = (*loop(turns), user("Go."))
        found = remembered(messages, limits=limits, pace=Pace(step=5))
        now = told(messages, found)[:-1]
        moves += now[: len(before)] != before
        before = now
    assert moves == 39 // 5


def test_the_largest_prompt_that_a_plan_counts_on_is_no_smaller_than_any() -> None:
    messages = (*loop(30), user("Go."))
    for pace in (Pace(step=1), Pace(step=4), Pace(step=None, read=0.1, write=1.25)):
        mine = teller(messages, pace=pace)
        most = told(messages, mine.loosest())
        for start in range(0, 120, 4):
            behind = mine.remembered(range(start, len(messages)))
            some = told(messages, behind)[start:]
            assert sum(item.tokens for item in some) <= sum(item.tokens for item in most[-len(some) :])


def test_what_was_told_once_is_looked_up() -> None:
    kept = Recollection()
    messages = (*loop(5), user("Go."))
    first = remembered(messages, recollection=kept)
    again = remembered(messages, recollection=kept)
    assert again == first
    assert all(again.expansions[index].instead is first.expansions[index].instead for index in first.expansions)
    other = (
        *loop(5)[:1],
        model("", call("other", path="src/part_0.py")),
        result("other", loop(1)[2].text),
        *messages[3:],
    )
    assert chain.follow(START, other).last == chain.follow(START, messages).last  # ids are no identity
    said = told(other, remembered(other, recollection=kept))
    assert flaws(said) == []
    assert said[1].calls[0].id == "other"


def test_a_text_beside_a_message_that_is_joined_stands_beside_the_one_message() -> None:
    messages = (user("/a One"), user("/b Two"), user("Three"), model("Yes."), user("Go."))
    known = {0: Expansion(beside="[a]"), 1: Expansion(beside="[b]")}
    found = remembered(messages, known=known)
    assert found.expansions[0] == Expansion(instead=user("/a One\n\n/b Two\n\nThree"), beside="[a]\n\n[b]")
    assert found.expansions[1].gone
    assert remembered(messages, known={1: Expansion(beside="[b]")}).expansions[0].beside == "[b]"
    assert remembered(messages, known={0: Expansion(beside="[a]")}).expansions[0].beside == "[a]"


def test_what_we_say_in_the_open_turn_is_told_beside_a_memory_that_is_known() -> None:
    kept = Recollection()
    messages = (*loop(2), user("Go."), model("Done."))
    ours = Expansion(before=(model("", call("w")), result("w", "1")))
    first = remembered(messages, recollection=kept)
    again = remembered(messages, recollection=kept, known={9: ours})
    assert again.expansions == {**first.expansions, 9: ours}
    assert again.net == first.net


def test_what_is_told_of_a_turn_depends_on_what_we_said_in_it() -> None:
    kept = Recollection()
    messages = (user("One"), model("Done."), user("Go."))
    ours = (model("", call("w")), result("w", "1"))
    plain = remembered(messages, recollection=kept)
    more = remembered(messages, recollection=kept, known={1: Expansion(before=ours, instead=model("Done."))})
    assert told(messages, plain) == messages
    assert told(messages, more) == (messages[0], *ours, *messages[1:])


# -- through the core, whatever the history ---------------------------------------------------------------------------

SMALL = MemoryLimits(turns=2, calls=2, result_turns=1, result_chars=200, argument_chars=40, step=1)


def _calls(messages: tuple[Message, ...], limits: MemoryLimits, tariff: Tariff | None = None) -> list[Played]:
    """A client that sends more and more of a history, at some eight of the places where a model could be asked."""
    ends = [
        at
        for at in range(1, len(messages) + 1)
        if messages[at - 1].role in ("user", "tool") and (at == len(messages) or not messages[at].results)
    ]
    ends = ends[:: max(1, len(ends) // 8)]
    return list(played(messages, limits, tariff, steps=ends)) if ends else []


@given(conversations())
def test_whatever_is_said_the_limits_hold_at_every_step(messages: tuple[Message, ...]) -> None:
    for each in _calls(messages, SMALL):
        assert faults(each, SMALL) == []


@st.composite
def rich(draw: st.DrawFn) -> tuple[Message, ...]:
    """A conversation in which models think, users and tools show pictures, and each batch of calls has the same ids."""
    said: list[Message] = []
    names: dict[str, str] = {}
    for item in draw(conversations()):
        blocks: list[Block] = []
        if item.role == "assistant" and draw(st.booleans()):
            blocks.append(Reasoning(text="I wonder."))
        names |= {each.id: f"x{place}" for place, each in enumerate(item.calls)}
        for block in item.blocks:
            if type(block) is ToolCall:
                block = ToolCall(id=names[block.id], name=block.name, arguments=block.arguments, extra=b'{"s":1}')
            elif type(block) is ToolResult:
                media = (PICTURE,) if draw(st.booleans()) else ()
                block = ToolResult(call_id=names[block.call_id], text=block.text, media=media)
            elif type(block) is Text and item.role == "user" and draw(st.booleans()):
                block = Text(text=block.text, media=(PICTURE,))
            blocks.append(block)
        said.append(chain.message(item.role, tuple(blocks)))
    return tuple(said)


@given(rich())
def test_whatever_is_thought_shown_or_named_alike_the_limits_hold(messages: tuple[Message, ...]) -> None:
    for each in _calls(messages, SMALL):
        assert faults(each, SMALL) == []


@given(broken())
def test_whatever_a_bad_client_sends_the_limits_hold(messages: tuple[Message, ...]) -> None:
    for each in _calls((user("Begin."), *messages), SMALL):
        assert faults(each, SMALL) == []


@given(conversations(), st.integers(2, 4))
def test_in_steps_they_hold_with_the_slack_of_a_step(messages: tuple[Message, ...], step: int) -> None:
    limits = MemoryLimits(turns=2, calls=2, result_turns=1, result_chars=200, argument_chars=40, step=step)
    for each in _calls(messages, limits):
        assert faults(each, limits, beyond=step - 1) == []


@given(conversations())
def test_when_it_pays_they_hold_with_the_slack_that_is_documented(messages: tuple[Message, ...]) -> None:
    limits = MemoryLimits(turns=2, calls=2, result_turns=1, result_chars=200, argument_chars=40)
    for each in _calls(messages, limits, CACHED):
        assert faults(each, limits, beyond=SLACK) == []


@given(conversations(), st.sampled_from([1, 3, None]))
def test_a_prompt_is_the_beginning_of_the_next_unless_a_boundary_moves(
    messages: tuple[Message, ...], step: int | None
) -> None:
    limits = MemoryLimits(turns=3, calls=2, result_turns=1, result_chars=200, step=step)
    before: Played | None = None
    for each in _calls(messages, limits, CACHED):
        turns = groups.turns(each.shown)
        same = before is not None and len(groups.turns(before.shown)) == len(turns)
        if before is not None and same and before.prompt.report.compaction_id == each.prompt.report.compaction_id:
            assert each.prompt.messages[: len(before.prompt.messages)] == before.prompt.messages
        before = each


@given(conversations())
def test_the_same_history_is_told_in_the_same_bytes_by_another_replica(messages: tuple[Message, ...]) -> None:
    store = Store()
    first = list(played(messages, SMALL, store=store, steps=[len(messages)]))
    other = Store()
    other.compactions = store.compactions
    again = list(played(messages, SMALL, store=other, steps=[len(messages)]))
    assert [each.prompt.messages for each in first] == [each.prompt.messages for each in again]
