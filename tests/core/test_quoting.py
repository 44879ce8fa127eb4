"""A stretch of history is quoted whole where it fits, cut where it does not, and split where it must be; no message is
lost on the way."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.core import chain, groups, quoting
from proxy.core.conversation import Approval, Clarification, CompactionBlock, Message, Reasoning, Text
from proxy.core.measure import estimate
from proxy.core.quoting import Entry, Part
from tests.core.histories import PICTURE, call, conversations, lines, loop, model, result, system, user
from tests.core.injections import INJECTIONS

MARK = "jepgkhik"


def whole(messages: tuple[Message, ...], **options: object) -> str:
    quoted = quoting.quote(messages, 0, len(messages), **options)  # type: ignore[arg-type]
    return "".join(quoting.written(part, MARK) for part in quoting.parts(quoted, 1 << 40))


def entries(parts: tuple[Part, ...]) -> Iterator[Entry]:
    return (entry for part in parts for entry in part)


def refer(text: str) -> str:
    return chain.reference(b"s" * 32, text)


def test_who_said_what_in_which_turn_is_told_in_our_words() -> None:
    messages = (
        system("Secret law."),
        user("Look at a.py", PICTURE),
        chain.message("assistant", (Reasoning(text="hidden thoughts"), Text(text="I look."), call("c1", path="a.py"))),
        result("c1", "x = 1", PICTURE),
        system("Another law."),
        model("It is one."),
        user("And now?"),
        user("Well?"),
        chain.message("assistant", (Clarification(id="q", question="Which one?", options=("a", "b")),)),
        user("a"),
        chain.message("assistant", (Approval(id="p", action="push", reason="you asked"),)),
        chain.message("assistant", (CompactionBlock(notes="old notes", trigger="AUTO"),)),
    )
    assert whole(messages) == (
        "[jepgkhik turn 1, the user]\nLook at a.py\n[image, 512x512 pixels, not shown here]\n\n"
        "[jepgkhik turn 1, the model]\nI look.\n\n"
        '[jepgkhik turn 1, the model calls read_file]\n{"path":"a.py"}\n\n'
        "[jepgkhik turn 1, result of read_file: text from a tool, untrusted]\n"
        "x = 1\n[image, 512x512 pixels, not shown here]\n\n"
        "[jepgkhik turn 1, the model]\nIt is one.\n\n"
        "[jepgkhik turn 2, the user]\nAnd now?\n\n"
        "[jepgkhik turn 2, the user]\nWell?\n\n"
        "[jepgkhik turn 2, the model asks the user]\nWhich one?\na\nb\n\n"
        "[jepgkhik turn 3, the user]\na\n\n"
        "[jepgkhik turn 3, the model asks for approval]\npush\nyou asked"
    )


def test_only_the_stretch_is_quoted_and_turns_are_counted_from_the_start() -> None:
    messages = loop(4)
    quoted = quoting.quote(messages, 4, 8)
    assert {entry.turn for entry in entries(quoted)} == {2}
    assert len(quoted) == 3, "the request, the call with its result, the answer"
    assert quoting.quote(messages, 4, 4) == ()


def test_what_is_skipped_is_no_turn() -> None:
    messages = (user("one"), model("1"), user("/compact"), model("Conversation compacted"), user("two"), model("2"))
    text = whole(messages, skip=frozenset({2, 3}))
    assert "compact" not in text.lower()
    assert "turn 2, the user]\ntwo" in text


def test_long_results_carry_a_reference_and_short_ones_do_not() -> None:
    long = lines(30)
    messages = (user("go"), model("", call("a"), call("b")), result("a", "short"), result("b", long), model("done"))
    found = [entry.reference for entry in entries(quoting.quote(messages, 0, 5, refer=refer))]
    assert found == ["", "", "", "", refer(long), ""][: len(found)]
    assert f"untrusted, reference {refer(long)}]" in whole(messages, refer=refer)
    assert "reference" not in whole(messages)


def test_secrets_are_taken_out_before_anything_is_cut() -> None:
    messages = (user("key hunter2"), model("", call("a", key="hunter2")), result("a", "x" * 900 + "hunter2"))
    text = whole(messages, redact=lambda text: text.replace("hunter2", "***"))
    assert "hunter2" not in text
    assert text.count("***") == 3


@pytest.mark.parametrize(("tries", "text"), INJECTIONS, ids=[tries for tries, _ in INJECTIONS])
def test_an_injection_in_a_result_a_call_or_a_name_makes_no_entry(tries: str, text: str) -> None:
    text = text.replace("{mark}", MARK)
    honest = (user("go"), model("", call("a", path="x")), result("a", "ok"), model("done"))
    hostile = (user("go"), model("", call("a", name=f"x]\n{text}", path=text)), result("a", text), model("done"))
    heads = re.compile(r"^\[\w{8} turn \d+, (?!\S*x_)", re.MULTILINE)
    assert len(re.findall(r"^\[\w{8} turn", whole(hostile), re.MULTILINE)) == 4
    assert len(heads.findall(whole(honest))) == 4
    # A cut makes a new beginning of a line: what only looked harmless in the middle of one is taken care of again.
    middle = (user("go"), model("", call("a")), result("a", "y" * 199 + " " + "z" * 300 + text.replace("\n", " ")))
    for most in range(250, 420, 10):
        (cut,) = quoting.parts(quoting.quote(middle, 0, 3), most) or ((),)
        assert len(re.findall(r"^\[\w{8} turn", quoting.written(cut, MARK), re.MULTILINE)) == 3


def test_a_tool_without_a_name_is_a_tool() -> None:
    assert "result of a tool:" in whole((result("z", "orphan"),))


# -- fitting ---------------------------------------------------------------------------------------------------------


def test_bodies_of_results_go_first_and_only_as_far_as_needed() -> None:
    messages = loop(6, size=400)
    quoted = quoting.quote(messages, 0, len(messages))
    whole_size = sum(map(quoting.size, quoted))
    for most, left in ((whole_size, 400 * 40), (16_000, 3_900), (5_000, 1_100), (2_000, 300), (800, 0)):
        (part,) = quoting.parts(quoted, most)
        assert quoting.size(part) <= most
        text = quoting.written(part, MARK)
        results = [entry.text for entry in part if entry.head.startswith("result")]
        assert min(map(len, results)) >= left
        for turn in range(6):
            assert f"ticket ABC-{turn + 100}" in text
            assert f'"src/part_{turn}.py"' in text
            assert f"value_{turn}" in text
    assert "characters were left out here" in quoting.written(quoting.parts(quoted, 5_000)[0], MARK)
    assert re.search(r"\n\(\d+ characters, left out here\)", quoting.written(quoting.parts(quoted, 800)[0], MARK))


def test_what_does_not_fit_at_once_is_split_between_groups_with_nothing_lost() -> None:
    messages = loop(40, size=60)
    quoted = quoting.quote(messages, 0, len(messages))
    parts = quoting.parts(quoted, 900)
    assert 1 < len(parts) <= 8
    assert all(quoting.size(part) <= 900 for part in parts)
    assert [(entry.turn, entry.head) for entry in entries(parts)] == [
        (entry.turn, entry.head) for entry in entries(quoted)
    ]


def test_texts_are_cut_before_there_are_many_parts() -> None:
    messages = tuple(each for turn in range(30) for each in (user(f"{turn} " + lines(60)), model(lines(80))))
    quoted = quoting.quote(messages, 0, len(messages))
    parts = quoting.parts(quoted, 3_000)
    assert len(parts) <= 8
    assert len(list(entries(parts))) == 60


def test_a_group_that_is_too_long_alone_is_cut_harder() -> None:
    ids = [f"c{number}" for number in range(300)]
    messages = (
        user("go"),
        model("", *(call(id, path=f"src/{id}.py" * 9) for id in ids)),
        *(result(id, lines(30)) for id in ids),
        model(lines(3_000)),
    )
    parts = quoting.parts(quoting.quote(messages, 0, len(messages)), 700)
    assert all(quoting.size(part) <= 700 for part in parts)
    text = "\n".join(quoting.written(part, MARK) for part in parts)
    assert "calls and results left out here" in text
    assert "the model calls read_file" in text


def test_what_is_too_much_for_eight_parts_takes_as_many_as_it_must() -> None:
    messages = loop(300, size=3)
    quoted = quoting.quote(messages, 0, len(messages))
    parts = quoting.parts(quoted, 900)
    assert len(parts) > 8
    assert all(quoting.size(part) <= 900 for part in parts)
    assert len(list(entries(parts))) == 1200


def test_nothing_makes_no_parts() -> None:
    assert quoting.parts((), 100) == ()
    assert quoting.parts(quoting.quote((system("law"), user(" ")), 0, 2), 100) == ()


@settings(max_examples=60)
@given(conversations(), st.integers(250, 4_000))
def test_every_message_is_told_whatever_fits(messages: tuple[Message, ...], most: int) -> None:
    messages = groups.repair(messages).messages
    quoted = quoting.quote(messages, 0, len(messages), refer=refer)
    parts = quoting.parts(quoted, most)
    assert [entry.head for entry in entries(parts)] == [entry.head for entry in entries(quoted)]
    for part in parts:
        assert quoting.size(part) <= most
        assert abs(estimate(quoting.written(part, MARK)) - quoting.size(part)) <= len(part) + 2
    assert quoting.parts(quoted, most) == parts
