"""The laws of blocks: what may be final, what stands where, and that what we make keeps them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from proxy.core.chain import message
from proxy.core.conversation import (
    Approval,
    Block,
    Clarification,
    CompactionBlock,
    Message,
    Reasoning,
    Text,
    ToolResult,
    concluded,
    lawful,
)
from proxy.core.errors import Internal
from tests.core.histories import PICTURE, call, model, result, user

QUESTION = Clarification(id="q", question="Which one?")


def finals(item: Message) -> list[str]:
    return [block.text for block in item.blocks if isinstance(block, Text) and block.final]


def said(*blocks: Block) -> Message:
    return message("assistant", blocks)


@pytest.mark.parametrize("finish", ["stop", "length"])
def test_the_last_text_of_a_finished_turn_is_its_answer(finish: str) -> None:
    answer = said(Reasoning(text="Hm."), Text(text="First."), Text(text="Then."), Text(text=" "))
    sealed = concluded(answer, finish)
    assert finals(sealed) == ["Then."]
    assert msgspec.structs.replace(sealed, blocks=answer.blocks) == answer, "identity, size and all the rest stay"
    assert finals(concluded(said(Text(text="", media=(PICTURE,))), finish)) == [""]


@pytest.mark.parametrize(
    ("answer", "finish"),
    [
        (said(Text(text="I look."), call("a")), "tool_calls"),
        (said(Text(text="I look."), call("a")), "stop"),
        (said(Text(text="I can")), None),
        (said(Text(text="I can")), "content_filter"),
        (said(Text(text="Which one?"), QUESTION), "stop"),
        (said(Text(text="May I?"), Approval(id="a", action="rm", reason="")), "stop"),
        (said(CompactionBlock(notes="All.", trigger="MANUAL"), Text(text="Compacted.")), "stop"),
        (said(Reasoning(text="Hm.")), "stop"),
        (user("Go."), "stop"),
    ],
)
def test_a_turn_that_goes_on_failed_or_was_a_command_has_no_final_text(answer: Message, finish: str | None) -> None:
    assert concluded(answer, finish) is answer


def test_a_turn_in_which_a_compaction_happened_by_itself_has_one() -> None:
    answer = said(CompactionBlock(notes="All.", trigger="AUTO"), Text(text="Done."))
    assert finals(concluded(answer, "stop")) == ["Done."]


def test_only_a_text_can_be_marked_final() -> None:
    marked = {block for block in Block.__args__ if "final" in block.__struct_fields__}
    assert marked == {Text}


@pytest.mark.parametrize("wrong", [{"notes": " "}, {"trigger": "auto"}, {"trigger": ""}])
def test_a_compaction_block_holds_notes_and_what_set_it_off(wrong: dict[str, Any]) -> None:
    with pytest.raises(Internal):
        CompactionBlock(**({"notes": "All.", "trigger": "AUTO"} | wrong))


BROKEN: dict[str, tuple[Message, ...]] = {
    "a result before its call": (result("a", "1"), model("", call("a"))),
    "a second result": (model("", call("a")), result("a", "1"), result("a", "2")),
    "a result of a call further back": (model("", call("a")), result("a", "1"), user("On."), result("a", "2")),
    "two results in one message": (
        model("", call("a")),
        message("tool", (ToolResult(call_id="a", text="1"), ToolResult(call_id="a", text="2"))),
    ),
    "one id for two calls": (model("", call("a"), call("a")), result("a", "1")),
    "a user who calls": (message("user", (call("a"),)), result("a", "1")),
    "a compaction in the user's message": (message("user", (CompactionBlock(notes="All.", trigger="AUTO"),)),),
    "a final text of a user": (message("user", (Text(text="Go.", final=True),)),),
    "a final text before a call": (said(Text(text="Go.", final=True), call("a")), result("a", "1")),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_what_breaks_a_law_is_not_made(broken: str) -> None:
    with pytest.raises(Internal):
        lawful(BROKEN[broken])


@pytest.mark.parametrize(
    "open",
    [
        (said(Reasoning(text="Hm."), Text(text="I look.")),),
        (model("", call("a")),),
        (model("", call("a"), call("b")), result("b", "1"), user("On.")),
    ],
)
def test_a_closed_turn_has_no_reasoning_and_no_call_without_a_result(open: tuple[Message, ...]) -> None:
    lawful(open)
    with pytest.raises(Internal):
        lawful(open, closed=True)


def test_what_keeps_them_all_is_let_through() -> None:
    turn = (user("Go."), model("", call("a"), call("b")), result("b", "2"), result("a", "1"), model("Done."))
    lawful((*turn, *turn), closed=True)
    lawful((concluded(said(CompactionBlock(notes="All.", trigger="AUTO"), Text(text="Done.")), "stop"),), closed=True)
