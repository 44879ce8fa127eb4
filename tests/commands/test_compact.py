"""`weirgate compact`: the forms of a file, what is printed, and that the figures are those of the core."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.commands.conftest import Cli, here

SYSTEM = {"role": "system", "content": "You are careful. Answer in one sentence."}


def turn(number: int, size: int = 300) -> list[dict[str, Any]]:
    call = {"id": f"c{number}", "type": "function", "function": {"name": "read_file", "arguments": '{"path":"a.py"}'}}
    return [
        {"role": "user", "content": f"Request number {number}: look at /srv/app/file{number}.py please."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"c{number}", "content": f"line of code in /srv/lib{number}.py; " * size},
        {"role": "assistant", "content": f"Done with {number}."},
    ]


def conversation(turns: int = 10, size: int = 100) -> list[dict[str, Any]]:
    told = [message for number in range(1, turns + 1) for message in turn(number, size)]
    return [SYSTEM, *told, {"role": "user", "content": "And now sum it up."}]


def saved(value: object, name: str = "chat.json") -> str:
    Path(name).write_text(value if isinstance(value, str) else json.dumps(value))
    return name


def told(cli: Cli, *options: str) -> dict[str, Any]:
    result = cli("compact", *options, "--json")
    assert result.exit_code == 0, here(result)
    found: dict[str, Any] = json.loads(result.stdout)
    return found


# -- what is found ---------------------------------------------------------------------------------------------------


def test_a_conversation_that_fits_needs_nothing_and_is_told_so(cli: Cli) -> None:
    file = saved(conversation(1, 1))
    result = cli("compact", file, "--window", "8192")
    assert result.exit_code == 0 and "No compaction is needed" in result.stdout
    found = told(cli, file, "--window", "8192")
    assert (found["needed"], found["compacted"], found["before"]) == (False, False, found["after"])
    assert sum(part["messages"] for part in found["parts"]) == found["messages"] == 6


def test_one_that_does_not_is_compacted_and_every_message_is_accounted_for(cli: Cli) -> None:
    file = saved(conversation())
    found = told(cli, file, "--window", "8192")
    parts = {part["name"]: part for part in found["parts"]}
    assert (found["needed"], found["compacted"]) == (True, True)
    assert found["before"] > found["trigger"] > found["after"] > 0
    assert [*parts] == ["system", "notes", "open request", "tail"]
    assert parts["tail"]["messages"] + found["replaced_messages"] + 2 == found["messages"]
    whole = sum(part["tokens"] for part in found["parts"]) + 3 + 4 * sum(part["messages"] for part in found["parts"])
    assert whole == found["after"]
    covered = int(parts["notes"]["told"].split(" and ")[0].split("-")[-1])
    assert len(found["notes"]["pins"]) + found["notes"]["dropped"] == covered
    assert found["text"].startswith("<conversation-notes")


def test_people_are_shown_before_and_after_what_went_where_and_what_was_cut(cli: Cli) -> None:
    file = saved(conversation())
    result = cli("compact", file, "--window", "8192")
    said = result.stdout
    found = told(cli, file, "--window", "8192")
    assert f"{found['before']:,}" in said and f"{found['after']:,}" in said and f"of {8192:,}" in said
    assert "█" in said and " over" in said
    for words in ("system", "notes", "tail", "word for word", "requests", "ledger", "read_file", "What was cut"):
        assert words in said
    assert f"{found['replaced_messages']} messages" in said
    assert "<conversation-notes" not in said
    shown = cli("compact", file, "--window", "8192", "--show").stdout
    assert shown.startswith(said) and "Request number 1:" in shown and "</conversation-notes" in shown


def test_a_loop_inside_one_turn_keeps_the_open_request_in_front_of_the_tail(cli: Cli) -> None:
    request = {"role": "user", "content": "Find the bug in the parser, please."}
    loop = [message for number in range(1, 15) for message in turn(number, 100)[1:3]]
    found = told(cli, saved([SYSTEM, request, *loop]), "--window", "8192")
    parts = {part["name"]: part for part in found["parts"]}
    assert parts["open request"]["messages"] == 1 and parts["open request"]["told"] == "word for word"
    assert parts["notes"]["told"] == "the first part of turn 1"
    assert found["replaced_messages"] + parts["tail"]["messages"] + 2 == found["messages"]


def test_a_message_that_stays_but_is_cut_is_named_with_its_sizes(cli: Cli) -> None:
    history = [SYSTEM, *turn(1, 5)[:2], {"role": "tool", "tool_call_id": "c1", "content": "word " * 20_000}]
    found = told(cli, saved(history), "--window", "8192")
    (clip,) = found["clips"]
    assert (clip["message"], clip["role"]) == (3, "tool")
    assert clip["before"] > 15_000 > 8192 > clip["after"]
    assert "message 3 (tool)" in cli("compact", "chat.json", "--window", "8192").stdout


def test_the_system_message_stays_first_even_where_only_a_result_was_cut(cli: Cli) -> None:
    result = " ".join(f"/srv/app{number}/conf.yaml https://h{number}.example/p" for number in range(2500))
    history = [SYSTEM, *turn(1)[:2], {"role": "tool", "tool_call_id": "c1", "content": result}]
    found = told(cli, saved([*history, {"role": "user", "content": "ok?"}]), "--window", "8192")
    assert [part["name"] for part in found["parts"]] == ["system", "notes", "tail"]
    assert found["parts"][0]["tokens"] < 20 and found["replaced_messages"] == 0


def test_where_nothing_can_be_gained_the_parts_that_are_too_large_are_named(cli: Cli) -> None:
    file = saved([{"role": "system", "content": "rule " * 9000}, {"role": "user", "content": "hi"}])
    result = cli("compact", file, "--window", "4096")
    assert result.exit_code == 1
    assert "Nothing can be gained: what must stay (system 9," in result.stdout


def test_the_output_is_reserved(cli: Cli) -> None:
    file = saved(conversation(6, 100))
    small, large = (told(cli, file, "--window", "8192", "--max-tokens", size) for size in ("16", "2000"))
    assert large["trigger"] < small["trigger"]


def test_tools_weigh_and_the_models_own_encoding_counts(cli: Cli) -> None:
    tools = [{"type": "function", "function": {"name": f"f{n}", "parameters": {"type": "object"}}} for n in range(40)]
    without = told(cli, saved({"model": "gpt-4o", "messages": conversation(1, 1)}), "--window", "8192")
    with_ = told(cli, saved({"model": "gpt-4o", "messages": conversation(1, 1), "tools": tools}), "--window", "8192")
    tools_part = next(part for part in with_["parts"] if part["name"] == "tools")
    assert with_["before"] - without["before"] == tools_part["tokens"] > 400
    file = saved([{"role": "user", "content": "多くのトークンが必要です。" * 50}])
    sizes = {model: told(cli, file, "--window", "8192", "--model", model)["before"] for model in ("gpt-4o", "gpt-4")}
    assert sizes["gpt-4"] > sizes["gpt-4o"], "the older encoding needs more tokens for this"


# -- the file --------------------------------------------------------------------------------------------------------


def test_each_form_of_a_file_gives_the_same(cli: Cli) -> None:
    messages = conversation(2, 20)
    request = {"model": "m", "stream": True, "temperature": 1, "messages": messages, "max_tokens": None}
    record = {"id": "x", "source": "y", "tools": None, "messages": messages, "n_messages": 9}
    seen = {
        told(cli, saved(value), "--window", "8192")["before"]
        for value in (
            messages,
            request,
            json.dumps(messages, indent=2),
            "\ufeff" + json.dumps(request) + "\n",
            json.dumps(record) + "\n" + json.dumps({"messages": [SYSTEM]}) + "\n",
        )
    }
    assert len(seen) == 1
    result = cli("compact", "-", "--window", "8192", "--json", input=json.dumps(messages).encode())
    assert {json.loads(result.stdout)["before"]} == seen


def test_a_line_of_many_is_chosen_and_said(cli: Cli) -> None:
    file = saved("\n".join(json.dumps({"messages": conversation(number, 1)}) for number in (1, 2, 3)), "many.jsonl")
    first = cli("compact", file, "--window", "8192")
    assert "conversation 1 of 3; --line N takes another" in first.stderr and first.stdout.startswith("6 messages")
    third = cli("compact", file, "--window", "8192", "--line", "3")
    assert third.stdout.startswith("14 messages in 4 turns")
    beyond = cli("compact", file, "--window", "8192", "--line", "4")
    assert beyond.exit_code == 2 and "the file has 3" in beyond.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("hello", "not valid JSON"),
        ("7", "not valid JSON"),
        ('{"model":"m"}', "holds no messages"),
        ('{"messages":null}', "holds no messages"),
        ("[" * 100_000, "not valid JSON"),
    ],
)
def test_a_file_that_is_none_is_wrong_use(cli: Cli, text: str, said: str) -> None:
    result = cli("compact", saved(text), "--window", "8192")
    assert (result.exit_code, result.stdout) == (2, "") and said in result.stderr


@pytest.mark.parametrize(
    ("messages", "said"),
    [([], "messages is empty"), ([7], "wrong type"), ([{"role": "narrator", "content": "x"}], "Unknown role")],
)
def test_messages_that_no_gateway_would_take_are_told_as_it_would(cli: Cli, messages: object, said: str) -> None:
    result = cli("compact", saved(messages), "--window", "8192")
    assert (result.exit_code, result.stdout) == (1, "") and said in result.stderr


def test_a_missing_file_and_an_unknown_window_are_told(cli: Cli) -> None:
    assert "cannot be read: No such file" in cli("compact", "gone.json", "--window", "8192").stderr
    result = cli("compact", saved(conversation(1, 1)))
    assert result.exit_code == 2 and "give --window" in result.stderr


def test_the_window_is_the_policys_or_the_catalogues_where_none_is_given(cli: Cli) -> None:
    file = saved({"model": "gpt-4o", "messages": conversation(1, 1)})
    assert told(cli, file)["window"] == 128_000
    Path("policies").mkdir()
    Path("policies/default.yaml").write_text("window: 4096\n")
    Path("weirgate.yaml").write_text("upstreams: {main: {base_url: 'http://127.0.0.1:1/v1'}}\npolicies: policies\n")
    assert told(cli, file)["window"] == 4096
