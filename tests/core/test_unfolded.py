"""What was said, block by block: the laws of blocks hold for any history, and nothing is lost, added or moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from proxy.core.chain import message
from proxy.core.conversation import (
    Approval,
    Audience,
    Block,
    Clarification,
    CompactionBlock,
    Message,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
)
from proxy.core.hidden import BETWEEN, Behind, Paused, Placed, kept, shown
from proxy.core.notes import Compaction, Notes
from proxy.core.pauses import Pause
from proxy.core.pauses import shown as shown_pause
from proxy.core.unfolded import Ask, Besides, unfolded

OWN = frozenset({"load_skill", "ask_user"})
ASKED = Clarification(id="q", question="Which?", options=("a", "b"))


def blocks_of(
    messages: Sequence[Message], placed: Sequence[Placed], besides: Mapping[int, Besides], asks: Ask
) -> list[tuple[Block, ...]]:
    return [
        tuple(block for part in parts for block in part.blocks) for parts in unfolded(messages, placed, besides, asks)
    ]


def asks(id: str, name: str, arguments: str) -> Pause | None:
    return Clarification(id=id, question=arguments) if name == "ask_user" and arguments else None


def said(text: str = "", *calls: ToolCall, thought: str = "") -> Message:
    thoughts = (Reasoning(text=thought),) if thought else ()
    return message("assistant", (*thoughts, *((Text(text=text),) if text else ()), *calls))


def call(id: str, name: str = "load_skill", arguments: str = "{}") -> ToolCall:
    return ToolCall(id=id, name=name, arguments=arguments)


def result(id: str, text: str = "ok") -> Message:
    return message("tool", (ToolResult(call_id=id, text=text),))


def user(text: str = "hi") -> Message:
    return message("user", (Text(text=text),))


def behind(index: int, state: Behind, reply: int | None) -> Placed:
    return Placed(index=index, reply=reply, state=state, opened=False, again=False)


def answered(
    rounds: Sequence[Message], last: Message, results: Sequence[Message] = (), pause: Pause | None = None
) -> tuple[Message, Behind]:
    """What the client is shown of these, and what is kept."""
    replies = [*(item for item in rounds if item.role == "assistant"), last]
    seen = shown(replies, OWN, shown_pause(pause) if pause is not None else "")
    assert seen is not None
    state = Behind(
        rounds=tuple(map(kept, rounds)),
        reply=kept(last),
        shown=seen.digest,
        results=tuple(map(kept, results)),
        pause=None if pause is None else Paused(id=pause.id, at=0.0),
    )
    return seen, state


def kinds(blocks: Sequence[Block]) -> list[tuple[str, str]]:
    return [(type(block).__name__, block.audience.value) for block in blocks]


# -- one answer ------------------------------------------------------------------------------------------------------


def test_an_answer_with_nothing_behind_it_is_what_was_shown() -> None:
    messages = [user(), said("Yes.")]
    first, second = blocks_of(messages, (), {1: Besides(reasoning="hm", final=True)}, asks)
    assert first == messages[0].blocks
    assert second == (Reasoning(text="hm", audience=Audience.SHOWN), Text(text="Yes.", final=True))


def test_our_own_calls_stand_between_the_words_of_an_answer() -> None:
    rounds = [said("Let me look.", call("w1"), call("w2"), thought="where?"), result("w1"), result("w2", "no")]
    seen, state = answered(rounds, said("Dear Ann.", thought="warm"))
    assert seen.text == f"Let me look.{BETWEEN}Dear Ann."
    _, blocks = blocks_of([user(), seen], [behind(0, state, 1)], {1: Besides(reasoning="all", final=True)}, asks)
    assert kinds(blocks) == [
        ("Reasoning", "told"),
        ("Text", "both"),
        ("ToolCall", "told"),
        ("ToolCall", "told"),
        ("ToolResult", "told"),
        ("ToolResult", "told"),
        ("Reasoning", "told"),
        ("Text", "both"),
    ]
    assert [block.final for block in blocks if type(block) is Text] == [False, True]


def test_of_a_mixed_reply_each_has_its_calls() -> None:
    last = said("See.", call("w1"), call("g1", "weather"))
    seen, state = answered((), last, [result("w1")])
    assert [each.id for each in seen.calls] == ["g1"]
    seen = message("assistant", (Text(text="See."), call("theirs", "weather")))
    messages = [user(), seen, result("theirs", "sun")]
    _, blocks, last_one = blocks_of(messages, [behind(0, state, 1)], {}, asks)
    assert kinds(blocks) == [("Text", "both"), ("ToolCall", "told"), ("ToolCall", "both"), ("ToolResult", "told")]
    assert [block.id for block in blocks if type(block) is ToolCall] == ["w1", "theirs"]
    assert kinds(last_one) == [("ToolResult", "both")]


def test_a_question_stands_where_the_model_asked_it() -> None:
    pause = asks("q1", "ask_user", "Which Ann?")
    assert pause is not None
    seen, state = answered((), said("Hm.", call("q1", "ask_user", "Which Ann?")), pause=pause)
    _, blocks, answer = blocks_of([user(), seen, user("Berg")], [behind(0, state, 1)], {1: Besides(final=True)}, asks)
    assert blocks == (Text(text="Hm."), Text(text="Which Ann?", audience=Audience.SHOWN), pause)
    assert answer == (Text(text="Berg"),)


def test_a_question_that_cannot_be_read_again_is_a_call() -> None:
    pause = Clarification(id="q1", question="Which?")
    seen, state = answered((), said("", call("q1", "ask_user", "")), pause=pause)
    _, blocks = blocks_of([user(), seen], [behind(0, state, 1)], {}, asks)
    assert kinds(blocks) == [("ToolCall", "told")]


@pytest.mark.parametrize(("trigger", "told"), [("AUTO", "AUTO"), ("MANUAL", "MANUAL"), ("later", "AUTO")])
def test_notes_stand_before_the_words_of_the_answer_that_they_came_with(trigger: str, told: str) -> None:
    notes = Notes(turns=3, narrative="They met.")
    made = Compaction(id="cmp_12345678", digest=b"", messages=3, covers=3, notes=notes, trigger=trigger)
    first, second = blocks_of(
        [user(), said("Yes.")], (), {0: Besides(compaction=made), 1: Besides(compaction=made)}, asks
    )
    assert kinds(first) == [("Text", "both")]  # a user compacts nothing
    assert kinds(second) == [("CompactionBlock", "both"), ("Text", "both")]
    assert type(second[0]) is CompactionBlock
    assert (second[0].trigger, "They met." in second[0].notes) == (told, True)


def test_what_ran_before_an_answer_that_was_cut_off_is_told_beside_it() -> None:
    rounds = [said("Let me look.", call("w1")), result("w1")]
    _, state = answered(rounds, said("Dear Ann."))
    cut = said(f"Let me look.{BETWEEN}Dear")
    _, blocks = blocks_of([user(), cut], [behind(0, state, 1)], {}, asks)
    assert kinds(blocks) == [("Text", "told"), ("ToolCall", "told"), ("ToolResult", "told"), ("Text", "both")]
    alone, after = blocks_of([user(), user("again")], [behind(0, state, None)], {}, asks)
    assert kinds(alone) == [("Text", "both"), ("Text", "told"), ("ToolCall", "told"), ("ToolResult", "told")]
    assert kinds(after) == [("Text", "both")]
    (mine, ours), _ = unfolded([user(), user("again")], [behind(0, state, None)], {}, asks)
    assert (mine.role, ours.role) == ("user", "assistant")


def test_what_ran_before_the_user_spoke_into_a_turn_stands_before_his_words() -> None:
    first = [said("Let me look.", call("w1")), result("w1")]
    second = [said("And there.", call("w2")), result("w2")]
    seen, state = answered([*first, *second], said("Dear Ann."))
    early = Behind(ahead=tuple(map(kept, first)), spoken=1)
    late = msgspec.structs.replace(state, rounds=(), ahead=tuple(map(kept, second)), spoken=1)
    messages = [user(), user("Berg."), user("No, Cole."), seen]
    places = [behind(1, early, None), behind(2, Behind(ahead=late.ahead, spoken=1), 3), behind(2, late, 3)]
    for order in (places, places[::-1]):
        found = unfolded(messages, order, {3: Besides(final=True)}, asks)
        rounds = [("Text", "both"), ("ToolCall", "told"), ("ToolResult", "told")]
        assert [[(part.role, kinds(part.blocks)) for part in parts] for parts in found] == [
            [("user", [("Text", "both")]), ("assistant", rounds)],
            [("user", [("Text", "both")]), ("assistant", rounds)],
            [("user", [("Text", "both")])],
            [("assistant", [("Text", "both")])],
        ]
        assert found[3][0].blocks == (Text(text="Dear Ann.", final=True),)


def test_of_two_states_behind_one_request_that_of_the_answer_that_is_there_is_told() -> None:
    mine, state = answered([said("", call("w1")), result("w1")], said("Mine."))
    _, other = answered([said("", call("w9")), result("w9")], said("Other."))
    for order in ((state, other), (other, state)):
        _, blocks = blocks_of([user(), mine], [behind(0, each, 1) for each in order], {}, asks)
        assert [block.id for block in blocks if type(block) is ToolCall] == ["w1"]


def test_a_result_that_answers_nothing_is_words() -> None:
    messages = [user(), said("", call("c1", "look")), result("c1"), result("c1", "again"), user(), result("c1", "late")]
    found = blocks_of(messages, (), {}, asks)
    assert [kinds(blocks) for blocks in found[2:]] == [
        [("ToolResult", "both")],
        [("Text", "both")],
        [("Text", "both")],
        [("Text", "both")],
    ]


# -- any history -----------------------------------------------------------------------------------------------------

texts = some.sampled_from(["", "a", "b c", "d\n\ne"])


@some.composite
def histories(draw: Any) -> tuple[list[Message], list[Placed], dict[int, Besides]]:
    """Turns of a conversation that we keep: with rounds of ours, calls of the client's, questions, cut off or not."""
    messages: list[Message] = []
    placed: list[Placed] = []
    besides: dict[int, Besides] = {}
    count = 0

    def id() -> str:
        nonlocal count
        count += 1
        return f"c{count}"

    for _ in range(draw(some.integers(0, 4))):
        messages.append(user(draw(texts) or "hi"))
        rounds: list[Message] = []
        for _ in range(draw(some.integers(0, 2))):
            calls = [call(id()) for _ in range(draw(some.integers(1, 2)))]
            rounds += [said(draw(texts), *calls, thought=draw(texts)), *(result(each.id) for each in calls)]
        ours = [call(id()) for _ in range(draw(some.integers(0, 1)))]
        theirs = [call(id(), "look") for _ in range(draw(some.integers(0, 2)))]
        pause = None
        if not theirs and not ours and draw(some.booleans()):
            asking = call(id(), "ask_user", "Which?")
            pause, theirs = asks(asking.id, asking.name, asking.arguments), [asking]
        if ours and not theirs:
            ours = []
        last = said(draw(texts) or "end", *ours, *theirs, thought=draw(texts))
        seen, state = answered(rounds, last, [result(each.id) for each in ours], pause)
        how = draw(some.sampled_from(["whole", "whole", "cut off", "gone"]))
        request = len(messages) - 1
        if how == "whole":
            messages.append(seen)
            if pause is None:
                messages += [result(each.id, "sun") for each in theirs if draw(some.booleans())]
        elif how == "cut off":
            messages.append(said((seen.text or "x")[:1]))
        placed.append(behind(request, state, None if how == "gone" else request + 1))
        final = how == "whole" and not theirs
        besides[request + 1] = Besides(reasoning=draw(texts), final=final)
    return messages, placed, besides


@given(histories())
def test_the_laws_of_blocks_hold(history: tuple[list[Message], list[Placed], dict[int, Besides]]) -> None:
    messages, placed, besides = history
    found = blocks_of(messages, placed, besides, asks)
    assert len(found) == len(messages)
    called: set[str] = set()
    answered_to: set[str] = set()
    for item, blocks in zip(messages, found, strict=True):
        finals = [block for block in blocks if getattr(block, "final", False)]
        assert all(type(block) is Text for block in finals) and len(finals) <= 1
        if finals:
            asked = {type(block) for block in blocks} & {Clarification, Approval}
            shown_calls = [block for block in blocks if type(block) is ToolCall and block.audience is Audience.BOTH]
            assert item.role == "assistant" and not asked and not shown_calls and finals[0] is blocks[-1]
        for block in blocks:
            if type(block) is ToolCall:
                assert block.id not in called
                called.add(block.id)
            elif type(block) is ToolResult:
                assert block.call_id in called and block.call_id not in answered_to
                answered_to.add(block.call_id)


@given(histories())
def test_what_was_shown_is_shown_and_nothing_else(
    history: tuple[list[Message], list[Placed], dict[int, Besides]],
) -> None:
    messages, placed, besides = history
    for item, blocks in zip(messages, blocks_of(messages, placed, besides, asks), strict=True):
        heard = [block for block in blocks if block.audience is not Audience.TOLD]
        words = [block.text for block in heard if type(block) is Text]
        if item.role == "assistant":
            assert BETWEEN.join(words) == item.text
            assert [block for block in heard if type(block) is ToolCall] == list(item.calls)
        else:
            assert heard == list(item.blocks)
