"""One closed turn, told again: which calls, which words, and that every call is answered."""

from __future__ import annotations

from typing import Any

from proxy.core import chain
from proxy.core.agent import MemoryLimits
from proxy.core.conversation import Message, Reasoning, Text, ToolCall, ToolResult
from proxy.core.groups import NO_RESULT
from proxy.core.hidden import Expansion
from proxy.core.recollection import Turned
from proxy.core.replayed import Age, Refer
from proxy.core.turned import earlier, turned
from tests.core.histories import PICTURE, call, flaws, model, result, system, user


def refer(text: str) -> str:
    return f"res_{len(text)}"


def made(
    *messages: Message,
    age: Age = "recent",
    known: dict[int, Expansion] | None = None,
    by: Refer | None = refer,
    **more: Any,
) -> Turned:
    return turned(messages, range(len(messages)), known or {}, age, MemoryLimits(**more), by)


def told(*messages: Message, **more: Any) -> tuple[Message, ...]:
    """The turn as a prompt would hold it."""
    places = made(*messages, **more).places
    found: list[Message] = []
    for index, item in enumerate(messages):
        found += places.get(index, (item,))
    assert flaws(tuple(found)) == []
    return tuple(found)


def thinking(text: str, thought: str, *calls: ToolCall) -> Message:
    said = (Text(text=text),) if text else ()
    return chain.message("assistant", (Reasoning(text=thought), *said, *calls))


# -- words ------------------------------------------------------------------------------------------------------------


def test_a_turn_without_calls_is_told_as_it_was() -> None:
    assert made(user("Hi."), model("Hello.")).places == {}


def test_thoughts_are_not_told_again() -> None:
    assert told(user("Hi."), thinking("Hello.", "Greet him.")) == (user("Hi."), model("Hello."))
    nothing = thinking("", "Only thought.")
    assert told(user("Hi."), nothing) == (user("Hi."),)


def test_nor_where_a_provider_carries_them_in_members_of_its_own() -> None:
    wire = b'{"role":"assistant","content":"Hello.","reasoning_details":[{"text":"Greet him."}]}'
    item = chain.message("assistant", (Text(text="Hello."),), wire=wire)
    (_, again) = told(user("Hi."), item)
    assert again == model("Hello.")
    speaks = chain.message("assistant", (Text(text='"reasoning": x'),), wire=b'{"content":"\\"reasoning\\": x"}')
    assert made(user("Hi."), speaks).places == {}


def test_what_was_said_before_a_call_is_not_told_again_and_what_was_said_behind_the_last_one_is() -> None:
    said = told(
        user("Look."),
        model("Let me see."),
        model("I open it.", call("a")),
        result("a", "1"),
        model("And that."),
        model("", call("b")),
        result("b", "2"),
        model("Done."),
    )
    assert said == (
        user("Look."),
        model("", call("a")),
        result("a", "1"),
        model("", call("b")),
        result("b", "2"),
        model("Done."),
    )


def test_an_interrupted_turn_leaves_what_it_wrote_and_the_calls_that_ran() -> None:
    said = told(user("Look."), model("I open it.", call("a")), result("a", "1"), model("The fi"))
    assert said == (user("Look."), model("", call("a")), result("a", "1"), model("The fi"))
    said = told(user("Look."), model("I open it.", call("a")), result("a", NO_RESULT))
    assert said == (user("Look."), model("", call("a")), result("a", NO_RESULT))


def test_neighbours_in_prose_are_one() -> None:
    said = told(user("One."), user("Two."), model("A."), model("B."))
    assert said == (user("One.\n\nTwo."), model("A.\n\nB."))
    pictured = told(user("One.", PICTURE), user("Two."), model("A."))
    assert [block.text for block in pictured[0].blocks if isinstance(block, Text)] == ["One.", "Two."]
    assert pictured[0].media


def test_two_speakers_in_one_message_keep_their_names() -> None:
    anna = chain.message("user", (Text(text="One."),), name="anna")
    ben = chain.message("user", (Text(text="Two."),), name="ben")
    assert told(anna, ben, model("A."))[0] == user("anna:\n\nOne.\n\nben:\n\nTwo.")
    assert told(anna, anna, model("A."))[0].name == "anna"
    assert told(user("Zero."), anna, model("A."))[0] == user("Zero.\n\nanna:\n\nOne.")


def test_a_system_message_keeps_its_place_and_parts_what_stands_around_it() -> None:
    said = told(user("One."), system("Note."), user("Two."), model("A."))
    assert said == (user("One."), system("Note."), user("Two."), model("A."))


# -- calls ------------------------------------------------------------------------------------------------------------


def batch(*numbers: int, text: str = "ok") -> tuple[Message, ...]:
    calls = [call(f"c{number}", number=number) for number in numbers]
    return (model("", *calls), *(result(f"c{number}", f"{text} {number}") for number in numbers))


def numbers(messages: tuple[Message, ...]) -> list[str]:
    return [each.id for item in messages for each in item.calls]


def test_of_many_calls_the_newest_are_told_and_the_rest_are_counted_in_one_line() -> None:
    turn = (user("Go."), *(item for number in range(12) for item in batch(number)), model("Done."))
    said = told(*turn)
    assert numbers(said) == [f"c{number}" for number in range(4, 12)]
    assert [item.text for item in said if item.calls and item.text] == ["(4 earlier calls are not shown.)"]
    assert said[1].text == earlier(4)
    assert said[2:] == turn[10:]


def test_a_batch_is_parted_with_its_results() -> None:
    turn = (user("Go."), *batch(*range(10)), model("Done."))
    said = told(*turn)
    assert numbers(said) == [f"c{number}" for number in range(2, 10)]
    assert [item.results[0].call_id for item in said if item.results] == [f"c{number}" for number in range(2, 10)]


def test_failures_and_open_calls_come_before_all_others() -> None:
    bad, lost = call("bad"), call("lost")
    turn = (
        user("Go."),
        model("", bad, lost),
        result("bad", "Error: it broke"),
        result("lost", NO_RESULT),
        *(item for number in range(10) for item in batch(number)),
        model("Done."),
    )
    assert numbers(told(*turn)) == ["bad", "lost", *(f"c{number}" for number in range(4, 10))]
    failing = (user("Go."), *(item for number in range(10) for item in batch(number, text="Error:")), model("Done."))
    assert numbers(told(*failing)) == [f"c{number}" for number in range(2, 10)]


def test_without_room_for_any_call_they_are_counted_before_the_answer() -> None:
    turn = (user("Go."), *batch(1, 2), model("Done."))
    assert told(*turn, calls=0) == (user("Go."), model("(2 earlier calls are not shown.)\n\nDone."))
    assert told(*turn[:-1], calls=0) == (user("Go."), model("(2 earlier calls are not shown.)"))
    assert told(user("Go."), *batch(1), calls=0)[1].text == "(1 earlier call of this turn is not shown.)"


def test_ids_that_are_used_again_are_paired_by_position() -> None:
    turn = (
        user("Go."),
        model("", call("x", n=1)),
        result("x", "one"),
        model("", call("x", n=2)),
        result("x", "Error: two"),
        model("Done."),
    )
    assert made(*turn).places == {}
    said = told(*turn, calls=1)
    assert [item.text for item in said if item.results] == ["Error: two"]


def test_a_call_whose_result_is_not_there_is_answered_by_a_sentence() -> None:
    turn = (user("Go."), model("", call("a"), call("b")), result("a", "1"), model("Done."))
    places = made(*turn).places
    assert places[1] == (turn[1], result("b", NO_RESULT))


def test_a_call_that_is_not_told_needs_no_answer() -> None:
    turn = (user("Go."), model("", call("a")), model("", call("b")), result("b", "Error"), model("Done."))
    found = made(*turn, calls=0).places
    assert found[1] == (model("(2 earlier calls are not shown.)\n\nDone."),)
    assert found[2] == found[3] == found[4] == ()


def test_older_turns_keep_names_and_arguments_and_lose_what_came_back() -> None:
    turn = (user("Go."), model("", call("a", path="x.py"), call("b")), result("a", "1" * 900), result("b", "Error"))
    said = told(*turn, age="older")
    assert said[1] == turn[1]
    assert [item.text for item in said[2:]] == [
        "(Succeeded; not shown.)",
        "(Failed; not shown.)",
    ]


def test_what_was_cut_is_named_with_the_place_where_it_is_whole() -> None:
    turn = (user("Go."), model("", call("a")), result("a", "1" * 900), model("Done."))
    assert made(*turn).wholes == (("res_900", 2, 0),)
    assert made(*turn, by=None).wholes == ()
    assert made(*turn, age="older").wholes == ()


def test_long_arguments_are_cut_and_their_message_is_written_anew() -> None:
    turn = (user("Go."), model("", call("a", text="x" * 900)), result("a", "1"), model("Done."))
    said = told(*turn)
    assert said[1] == model("", call("a", text="x" * 400))
    assert said[2].text == "1\n(1 of this call's arguments is cut short here.)"


def test_calls_of_the_old_function_api_and_their_results_are_told_as_one_pair() -> None:
    old = chain.message("function", (ToolResult(call_id="f", text="3"),), name="add")
    wire = b'{"role":"assistant","function_call":{"name":"add","arguments":"{}"}}'
    asked = chain.message("assistant", (ToolCall(id="f", name="add", arguments="{}"),), wire=wire)
    said = told(user("Go."), asked, old, model("Done."))
    assert [item.role for item in said] == ["user", "assistant", "tool", "assistant"]
    assert said[1].wire is None


def test_what_we_said_behind_the_shown_messages_is_told_by_the_same_rules() -> None:
    load = ToolCall(id="w", name="load_skill", arguments='{"name":"tone"}')
    before = (model("I look.", load), result("w", "Be kind. " * 100))
    known = {1: Expansion(before=before, instead=model("Done."))}
    found = made(user("Go."), model("I look.\n\nDone."), known=known)
    (asked, skill, answer) = found.places[1]
    assert asked == model("", load)
    assert "No longer shown" in skill.text
    assert answer == model("Done.")


def test_the_size_of_a_turn_is_that_of_what_is_told() -> None:
    turn = (user("Go."), model("Hm.", call("a")), result("a", "1" * 9000), model("Done."))
    assert made(*turn).tokens == sum(item.tokens for item in told(*turn))
