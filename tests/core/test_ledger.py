from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.conversation import Message
from proxy.core.ledger import Ledger, leaves, named, sightings
from proxy.core.measure import estimate
from proxy.core.render import ledger_text
from tests.core.histories import call, conversations, loop, model, result, user

NOWHERE: frozenset[str] = frozenset()


def listed(said: tuple[Message, ...], budget: int = 10_000, present: frozenset[str] = NOWHERE) -> list[str]:
    entries, _ = filled(said).best(budget, present)
    return [entry.text for entry in entries]


def filled(said: tuple[Message, ...]) -> Ledger:
    ledger = Ledger()
    for turn, item in enumerate(said, 1):
        ledger.add(item, turn)
    return ledger


def test_each_entry_says_where_it_was_seen_last_and_which_tool_gave_it() -> None:
    said = (user("ticket ABC-1"), model("", call("c", "grep", pattern="x_y")), result("c", "src/a.py:7 ABC-1"))
    entries, unlisted = filled(said).best(1_000, NOWHERE)
    assert {(entry.text, entry.kind, entry.turn, entry.source) for entry in entries} == {
        ("ABC-1", "id", 3, "grep"),
        ("x_y", "name", 2, "grep"),
        ("src/a.py:7", "path", 3, "grep"),
    }
    assert unlisted == 0


def test_commands_and_errors_are_kept_as_they_were_said() -> None:
    said = (
        model("", call("c", "shell", command="pytest -q tests\nsecond line")),
        result("c", "collected\nValueError: no such thing as 4711\nfine"),
    )
    entries, _ = filled(said).best(2_000, NOWHERE)
    assert ("command", "pytest -q tests") in [(entry.kind, entry.text) for entry in entries]
    assert ("error", "ValueError: no such thing as 4711") in [(entry.kind, entry.text) for entry in entries]


def test_commands_and_errors_cannot_take_the_budget_of_all_others() -> None:
    said = tuple(result("c", f"Error: {'very long words ' * 8} {n}") for n in range(40))
    said += (result("c", " ".join(f"src/file_{n}.py" for n in range(20))),)
    entries, _ = filled(said).best(600, NOWHERE)
    assert sum(entry.kind == "path" for entry in entries) == 20
    assert any(entry.kind == "error" for entry in entries)


def test_what_the_model_wrote_outlives_what_passed_by() -> None:
    noise = tuple(result("c", " ".join(f"noise/n{a}{b}.log" for b in range(30))) for a in range(10))
    said = (user("use lib/wanted.py"), model("I chose src/chosen.py here."), *noise, *(user("Go on."),) * 20)
    kept = listed(said, 120)
    assert "src/chosen.py" in kept
    assert "lib/wanted.py" in kept
    assert len(kept) < 60


def test_one_of_a_few_outlives_one_of_a_crowd_and_what_came_back_what_did_not() -> None:
    crowd = result("c", " ".join(f"noise/n{n:03}.log" for n in range(200)))
    back = result("c", "noise/n150.log " + " ".join(f"other/n{n:03}.log" for n in range(200)))
    kept = listed((result("c", "noise/few.log"), crowd, back), 100)
    assert "noise/few.log" in kept
    assert "noise/n150.log" in kept
    assert len(kept) < 40


def test_line_numbers_give_way_to_everything_else_until_somebody_names_one() -> None:
    listing = "\n".join(f"{number}\tuse lib/part_{chr(number)}.py" for number in range(100, 122))
    listing += "\n142\tend"
    said = (model("", call("c")), result("c", listing), model("See 142."))
    entries, _ = filled(said).best(150, NOWHERE)
    assert {entry.text for entry in entries if entry.kind == "number"} == {"142"}
    kinds = [entry.kind for entry in entries]
    assert kinds.count("path") == 22 > kinds.count("line")
    assert sum(entry.kind == "line" for entry in filled(said).best(10_000, NOWHERE)[0]) == 22


def test_what_is_said_elsewhere_is_not_listed_again() -> None:
    said = (user("src/deep/a.py and src/b.py"),)
    assert listed(said, present=named(["look at src/deep/a.py"])) == ["src/b.py"]
    assert listed((user("deep/a.py a.py"),), present=named(["src/deep/a.py"])) == []


@pytest.mark.parametrize("said", ["a.py src/a.py /root/src/a.py", "/root/src/a.py src/a.py a.py"])
def test_a_path_inside_a_longer_one_that_is_listed_is_not_listed_and_not_missed(said: str) -> None:
    entries, unlisted = filled((user(said), user("a.py"), user("a.py"))).best(1_000, NOWHERE)
    assert [entry.text for entry in entries] == ["/root/src/a.py"]
    assert unlisted == 0


@given(conversations(), st.integers(0, 600))
def test_entries_cost_no_more_than_the_budget_and_none_is_lost_uncounted(
    said: tuple[Message, ...], budget: int
) -> None:
    ledger = filled(said)
    entries, unlisted = ledger.best(budget, NOWHERE)
    assert not entries or estimate(ledger_text(entries, unlisted)) <= budget
    everything, none = ledger.best(1 << 30, NOWHERE)
    assert none == 0
    assert {entry.text for entry in entries} <= {entry.text for entry in everything} | named(
        entry.text for entry in everything
    )
    assert len(entries) + unlisted >= len(everything)
    assert ledger.best(budget, NOWHERE) == filled(said).best(budget, NOWHERE)


def test_a_scan_may_be_kept_and_gives_the_same_notes() -> None:
    said = loop(5)
    kept = {item.wire or id(item): sightings(item) for item in said}
    ledger = Ledger(lambda item: kept[item.wire or id(item)])
    for turn, item in enumerate(said, 1):
        ledger.add(item, turn)
    assert ledger.best(300, NOWHERE) == filled(said).best(300, NOWHERE)
    assert ledger.calls == (("read_file", 5),)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("", []),
        ("not json", [("", "not json")]),
        ("[" * 50_000, [("", "[" * 50_000)]),
        ('{"a": "x", "b": [1, 2.5, true, null, {"c": "y"}]}', [("a", "x"), ("b", "1"), ("b", "2.5"), ("c", "y")]),
        ('"plain"', [("", "plain")]),
    ],
)
def test_every_string_and_number_of_arguments_is_looked_at(arguments: str, expected: list[tuple[str, str]]) -> None:
    assert list(leaves(arguments)) == expected


def test_a_command_without_words_is_no_command() -> None:
    said = (model("", call("c", "shell", command="  ")), model("", call("d", "shell", script=json.dumps(7))))
    entries, _ = filled(said).best(1_000, NOWHERE)
    assert [entry.text for entry in entries] == ["7"]


@pytest.mark.parametrize("budget", [60, 300, 1_450])
def test_a_budget_is_used_well_though_every_line_has_a_head_of_its_own(budget: int) -> None:
    entries, unlisted = filled(loop(60)).best(budget, NOWHERE)
    assert unlisted
    assert 0.75 * budget < estimate(ledger_text(entries, unlisted)) <= budget


def test_a_budget_is_used_up_where_entries_are_cheaper_than_they_were_thought() -> None:
    said = (user(" ".join(f"some/folder/of/part_{number}.py" for number in range(900))),)
    entries, unlisted = filled(said).best(2_000, NOWHERE)
    assert unlisted
    assert 0.95 * 2_000 < estimate(ledger_text(entries, unlisted)) <= 2_000


@pytest.mark.parametrize("short", [1, 5, 20, 60])
def test_a_budget_just_too_small_for_everything_lists_nearly_everything(short: int) -> None:
    """Though the heads of its lines make the listing far longer than its entries are."""
    ledger = filled(tuple(user(f"value_{number}") for number in range(180)))
    every, unlisted = ledger.best(100_000, NOWHERE)
    budget = estimate(ledger_text(every, unlisted)) - short
    entries, _ = ledger.best(budget, NOWHERE)
    assert len(entries) > 0.85 * len(every)
