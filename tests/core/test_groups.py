from __future__ import annotations

import pytest
from hypothesis import given

from proxy.core import groups
from proxy.core.chain import message
from proxy.core.conversation import Group, Message, Reasoning, Text, ToolCall, ToolResult, Turn
from proxy.core.errors import Malformed
from tests.core.histories import PICTURE, broken, call, conversations, flaws, loop, model, result, system, user


def texts(messages: tuple[Message, ...]) -> list[str]:
    return [item.text for item in messages]


@given(conversations())
def test_groups_cover_every_message_once_and_never_part_a_call_from_its_results(said: tuple[Message, ...]) -> None:
    found = groups.groups(said)
    assert [index for group in found for index in range(group.first, group.last + 1)] == list(range(len(said)))
    for group in found:
        inside = said[group.first : group.last + 1]
        assert flaws(inside) == []
        assert len(inside) == 1 or inside[0].calls


def test_a_turn_begins_with_neighbouring_user_messages_and_system_messages_do_not_part_them() -> None:
    said = (system("s"), model("Hi"), user("a"), system("mid"), user("b"), model("c"), system("t"), user("d"))
    assert groups.turns(said) == (Turn(first=2, last=6), Turn(first=7, last=7))
    assert groups.opening(said, groups.turns(said)[0]) == (2, 4)
    assert groups.opening(said, groups.turns(said)[1]) == (7,)


def test_groups_of_parallel_calls_hold_all_results() -> None:
    said = (user("go"), model("", call("a"), call("b")), result("b", "2"), result("a", "1"), model("done"))
    assert groups.groups(said) == (Group(first=0, last=0), Group(first=1, last=3), Group(first=4, last=4))


@given(conversations())
def test_a_sound_history_comes_back_as_the_same_object(said: tuple[Message, ...]) -> None:
    assert flaws(said) == []
    fixed = groups.repair(said)
    assert fixed.messages is said
    assert fixed.count == 0


@given(broken())
def test_whatever_a_client_sends_is_repaired_to_what_a_strict_provider_takes(said: tuple[Message, ...]) -> None:
    try:
        fixed = groups.repair(said)
    except Malformed:
        assert not any(item.role in ("user", "assistant") and item.text.strip() for item in said)
        return
    assert flaws(fixed.messages) == []
    assert (fixed.count > 0) == (flaws(said) != [])
    again = groups.repair(fixed.messages)
    assert again.messages is fixed.messages


@given(broken())
def test_repair_loses_no_words(said: tuple[Message, ...]) -> None:
    try:
        kept = "\n".join(texts(groups.repair(said).messages))
    except Malformed:
        return
    for item in said:
        for line in item.text.splitlines():
            assert line.strip() in kept


@given(broken())
def test_alternating_histories_have_no_neighbours_of_one_role_that_could_be_joined(said: tuple[Message, ...]) -> None:
    try:
        fixed = groups.repair(said, alternate=True)
    except Malformed:
        return
    assert flaws(fixed.messages) == []
    for before, item in zip(fixed.messages, fixed.messages[1:], strict=False):
        assert before.role != item.role or item.role not in ("user", "assistant") or before.calls
    assert groups.repair(fixed.messages, alternate=True).count == 0


def test_a_call_that_never_returned_is_answered_by_a_sentence() -> None:
    fixed = groups.repair((user("go"), model("", call("a"), call("b")), result("b", "2"), user("and?")))
    assert texts(fixed.messages) == ["go", "", groups.NO_RESULT, "2", "and?"]
    assert fixed.count == 1


def test_an_empty_result_says_that_it_is_empty_and_keeps_its_name() -> None:
    empty = message("tool", (ToolResult(call_id="a", text="  "),), name="read_file")
    fixed = groups.repair((user("go"), model("", call("a")), empty))
    assert texts(fixed.messages)[-1] == groups.EMPTY_RESULT
    assert fixed.messages[-1].name == "read_file"


def test_an_orphan_result_becomes_quoted_text_with_its_media() -> None:
    fixed = groups.repair((user("go"), result("zz", "one\ntwo", PICTURE), model("ok")))
    orphan = fixed.messages[1]
    assert orphan.role == "user"
    assert orphan.text.endswith("> one\n> two")
    assert isinstance(orphan.blocks[0], Text)
    assert orphan.blocks[0].media == (PICTURE,)


def test_a_result_that_came_late_is_put_behind_its_call() -> None:
    said = (user("go"), model("", call("a")), model("meanwhile"), result("a", "late"))
    fixed = groups.repair(said)
    assert texts(fixed.messages) == ["go", "", "late", "meanwhile"]
    assert fixed.count == 1


def test_of_two_results_for_one_call_the_second_is_quoted() -> None:
    fixed = groups.repair((user("go"), model("", call("a")), result("a", "1"), result("a", "2")))
    assert texts(fixed.messages)[2] == "1"
    assert "> 2" in texts(fixed.messages)[3]


def test_ids_that_a_server_uses_again_are_paired_by_position() -> None:
    said = (user("go"), model("", call("x", n=1)), result("x", "1"), model("", call("x", n=2)), result("x", "2"))
    assert groups.repair(said).messages is said
    lost = (user("go"), model("", call("x", n=1)), model("", call("x", n=2)), result("x", "2"))
    assert texts(groups.repair(lost).messages) == ["go", "", groups.NO_RESULT, "", "2"]


def test_one_id_twice_in_a_message_gets_a_second_id_and_its_own_result() -> None:
    said = (user("go"), model("hm", call("x", n=1), call("x", n=2)), result("x", "1"), result("x", "2"))
    fixed = groups.repair(said)
    assert [item.id for item in fixed.messages[1].calls] == ["x", "x_1"]
    assert [item.results[0].call_id for item in fixed.messages[2:]] == ["x", "x_1"]
    assert texts(fixed.messages[2:]) == ["1", "2"]


def test_results_in_another_order_than_their_calls_are_left_in_it_when_something_else_is_repaired() -> None:
    said = (user("go"), model("", call("a"), call("b")), result("b", "2"), result("a", "1"), user(""))
    fixed = groups.repair(said)
    assert fixed.messages == said[:4]
    assert fixed.count == 1


def test_an_empty_message_goes_and_one_of_reasoning_alone_too() -> None:
    thought = message("assistant", (Reasoning(text="hm"),))
    fixed = groups.repair((user("go"), thought, user("\n"), result("zz", " ")))
    assert texts(fixed.messages) == ["go"]
    assert fixed.count == 3


def test_a_history_without_anything_to_answer_is_refused() -> None:
    with pytest.raises(Malformed):
        groups.repair((system("be good"), user(" ")))
    assert groups.repair((system("be good"),)).count == 0


def test_merging_joins_texts_with_a_blank_line_and_keeps_media() -> None:
    fixed = groups.repair((user("a"), user("b"), model("c"), model("d"), user("e", PICTURE), user("f")), alternate=True)
    assert texts(fixed.messages) == ["a\n\nb", "c\n\nd", "e\nf"]
    assert fixed.count == 3
    last = fixed.messages[-1].blocks[0]
    assert isinstance(last, Text)
    assert last.media == (PICTURE,)


def test_a_message_with_calls_is_never_merged_into_the_one_behind_it() -> None:
    said = loop(2)
    assert groups.repair(said, alternate=True).messages == said


def test_a_call_without_an_id_gets_one() -> None:
    fixed = groups.repair((user("go"), model("", call("call_1", n=1), call("", n=2), call("", n=3)), user("on")))
    assert [item.id for item in fixed.messages[1].calls] == ["call_1", "call_2", "call_3"]
    assert [item.results[0].call_id for item in fixed.messages[2:5]] == ["call_1", "call_2", "call_3"]


def test_a_call_of_the_old_function_api_that_never_returned_is_told_in_the_form_of_its_answer() -> None:
    wire = b'{"role":"assistant","function_call":{"name":"add","arguments":"{}"}}'
    asked = message("assistant", (ToolCall(id="f", name="add", arguments="{}"),), wire=wire)
    _, told, answer, _ = groups.repair((user("go"), asked, user("on"))).messages
    assert told.wire is None and answer.role == "tool"
    returned = message("function", (ToolResult(call_id="f", text="3"),), wire=b"{}", name="add")
    said = (user("go"), asked, returned)
    assert groups.repair(said).messages is said
