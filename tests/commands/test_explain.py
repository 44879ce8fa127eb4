"""`weirgate explain`: whom it asks, what it shows to people and to programs, and two requests or policies compared."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.commands.conftest import Cli, gateway, here

WORDS = "the quick brown fox goes on and on "
KEY = "client-secret-of-this-test"


def history(turns: int, last: str = "And now?") -> list[dict[str, Any]]:
    talk: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}]
    for turn in range(turns):
        talk.append({"role": "user", "content": f"Question {turn}: see /srv/app/f{turn}.py {WORDS * 40}"})
        talk.append({"role": "assistant", "content": f"Answer {turn}: {WORDS * 40}"})
    return [*talk, {"role": "user", "content": last}]


def saved(value: object, name: str = "request.json") -> str:
    Path(name).write_text(value if isinstance(value, str) else json.dumps(value))
    return name


def config(root: str = "http://127.0.0.1:9", **more: Any) -> None:
    """A weirgate.yaml with an agent and its skills; nothing listens at its address."""
    folder = Path("skills/shared/tone")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "SKILL.md").write_text("---\nname: tone\ndescription: When the tone matters.\n---\nBe warm.\n")
    text = {
        "server": {"port": 1},
        "upstreams": {"main": {"base_url": f"{root}/v1", "api_key": "x"}},
        "models": {"fast": {"upstream": "main", "model": "gpt-4o"}},
        "base_prompt": "You work for {tenant}.",
        "skills": {"folders": ["skills"]},
        "agents": {"support": {"model": "fast", "instructions": "Help.", "skills": ["tone"], "effort": "high"}},
        **more,
    }
    Path("weirgate.yaml").write_text(json.dumps(text))


def told(cli: Cli, *options: str, **env: str) -> dict[str, Any]:
    result = cli("explain", *options, "--json", **env)
    assert result.exit_code == 0, here(result)
    found: dict[str, Any] = json.loads(result.stdout)
    return found


# -- without a server -------------------------------------------------------------------------------------------------


def test_without_any_configuration_a_request_is_explained_all_the_same(cli: Cli) -> None:
    file = saved({"model": "gpt-4o", "messages": history(2)})
    found = told(cli, file)
    assert (found["decision"], found["held"]["window"], found["same_bytes"]) == ("fits", 128_000, True)
    result = cli("explain", file)
    assert "as if no conversation were known" in result.stderr
    assert [name.name for name in Path().iterdir()] == [file], "nothing is left in the folder"


def test_people_see_the_layers_fill_the_window_and_why(cli: Cli) -> None:
    config(keys=[])
    file = saved({"model": "support", "messages": history(20, "/tone And now?"), "max_tokens": 500})
    found = told(cli, file, "--window", "8192")
    said = cli("explain", file, "--window", "8192").stdout
    assert said.startswith("support (agent, gpt-4o at main), policy openai, mode enforce\n")
    for words in (
        "base prompt",
        "conventions",
        "instructions",
        "client's system",
        "selected skills",
        "notes",
        "newest turn",
    ):
        assert f"\n{words} " in said
    for part in found["parts"]:
        assert f"{part['tokens']:,}" in said
    (whole,) = (line.split() for line in said.splitlines() if line.startswith("prompt "))
    assert whole[1:3] == [str(found["messages"]), f"{found['tokens']:,}"] and "│" in whole[4] and "of 8,192" in said
    assert "The window has 8,192 tokens (as asked)." in said and "500 held back for the answer" in said
    assert "it would be compacted now. The account would come from gpt-4o" in said
    assert "Effort high (the agent's word), told as" in said
    assert "The notes hold\n  requests  " in said and "What was cut\n  " in said


def test_a_bar_begins_where_the_one_before_it_ends(cli: Cli) -> None:
    config()
    lines = cli("explain", saved({"model": "support", "messages": history(20)}), "--window", "8192").stdout.splitlines()
    drawn = [line for line in lines if "█" in line and not line.startswith("prompt")]
    starts = [line.index("█") for line in drawn]
    ends = [line.rindex("█") for line in drawn]
    assert len(drawn) >= 3 and all(start > end for start, end in zip(starts[1:], ends, strict=False))


def test_the_body_is_shown_byte_for_byte(cli: Cli) -> None:
    raw = json.dumps({"model": "gpt-4o", "messages": history(1), "note": "grüße"}, indent=3, ensure_ascii=False) + "\n"
    result = cli("explain", saved(raw), "--body")
    assert result.exit_code == 0 and result.stdout == raw
    assert cli("explain", "-", "--body", input=raw.encode()).stdout == raw
    assert told(cli, "request.json", "--body")["body"] == raw
    assert "body" not in told(cli, "request.json")
    nothing = cli("explain", saved({"model": "gpt-4o", "messages": history(1, "/compact")}), "--body")
    assert nothing.exit_code == 1 and nothing.stdout == "" and "A command to the gateway" in nothing.stderr


def test_a_saved_conversation_is_explained_as_any_models(cli: Cli) -> None:
    config()
    lines = [json.dumps({"id": number, "messages": history(number)}) for number in range(3)]
    file = saved("\n".join(lines), "talks.jsonl")
    assert told(cli, file, "--model", "support", "--line", "3")["messages"] == 6
    assert told(cli, saved(history(1)), "--model", "support")["agent"] is True
    for options in ([file], [saved(history(1))]):
        result = cli("explain", *options)
        assert result.exit_code == 2 and "names no model: give --model" in result.stderr


@pytest.mark.parametrize(
    ("options", "code", "reason"),
    [
        (("nothing.json",), 2, "cannot be read"),
        (("request.json", "--diff", "request.json", "--policy", "p.yaml"), 2, "two comparisons"),
        (("request.json", "--diff", "request.json", "--body"), 2, "shows one body"),
        (("request.json", "--policy", "p.yaml"), 2, "there is no policy file"),
        (("request.json", "--model", "unknown"), 1, "The model does not exist here."),
        (("request.json", "--url", "http://127.0.0.1:1"), 1, "no server answers"),
        (("skill.json",), 1, "The skill /nothing does not exist here."),
        (("broken.json",), 2, "not valid JSON"),
        (("request.json", "--label", "grün"), 2, "a label is plain ASCII"),
    ],
)
def test_what_cannot_be_explained_says_why(cli: Cli, options: tuple[str, ...], code: int, reason: str) -> None:
    config()
    saved({"model": "support", "messages": history(1)})
    saved({"model": "support", "messages": history(0, "/nothing Hi.")}, "skill.json")
    saved("{", "broken.json")
    result = cli("explain", *options)
    assert result.exit_code == code and reason in result.stderr, here(result)


def test_a_policy_file_that_is_wrong_is_told_with_its_line(cli: Cli) -> None:
    config()
    Path("p.yaml").write_text("match: '*'\ncompact_at: 0.5\ntarget: 0.9\n")
    result = cli("explain", saved({"model": "fast", "messages": history(1)}), "--policy", "p.yaml")
    assert result.exit_code == 2 and "p.yaml:3" in result.stderr and "must be below compact_at" in result.stderr


# -- two against each other -------------------------------------------------------------------------------------------


def test_two_requests_are_held_against_each_other(cli: Cli) -> None:
    config()
    first = saved({"model": "support", "messages": history(2)}, "first.json")
    second = saved({"model": "support", "messages": history(3)}, "second.json")
    found = told(cli, first, "--diff", second)["difference"]
    assert found["same"] == 5 and found["messages"] == [6, 8] and not found["equal"] and found["changed"] == []
    sizes = [sum(pair[side] for pair in found["layers"].values()) for side in (0, 1)]
    assert sizes == found["tokens"] and sizes[1] > sizes[0]
    said = cli("explain", first, "--diff", second).stdout
    assert "1: first.json\n2: second.json\n" in said and f"+{sizes[1] - sizes[0]:,}" in said
    assert "The first 5 messages are the same, byte for byte, of 6 and 8." in said
    same = cli("explain", first, "--diff", first).stdout
    assert "What would be sent is the same, byte for byte." in same and "what differs" not in same


def test_sizes_known_in_different_ways_are_said_to_be(cli: Cli) -> None:
    config()
    first = saved({"model": "fast", "messages": history(2)}, "first.json")
    said = cli("explain", first, "--diff", saved({"model": "fast", "messages": history(20)}), "--window", "8192").stdout
    assert "1 is estimated and 2 counted" in said and "The first message is the same, byte for byte" in said


def test_a_selected_skill_shows_as_what_it_costs_and_where_the_prompts_part(cli: Cli) -> None:
    config()
    first = saved({"model": "support", "messages": history(1)}, "first.json")
    said = cli("explain", first, "--diff", saved({"model": "support", "messages": history(1, "/tone Hi.")})).stdout
    assert "selected skills" in said and "differ from their first message on" in said
    assert ["skills", "none", "tone"] in [line.split() for line in said.splitlines()]


def test_one_request_is_held_against_itself_under_another_policy(cli: Cli) -> None:
    config()
    Path("tight.yaml").write_text("match: nothing-of-this-name\ncompact_at: 0.4\ntarget: 0.2\n")
    file = saved({"model": "fast", "messages": history(9)})
    found = told(cli, file, "--window", "8192", "--policy", "tight.yaml")
    assert [found[side]["decision"] for side in ("first", "second")] == ["fits", "made"]
    changed = {each["what"]: (each["first"], each["second"]) for each in found["difference"]["changed"]}
    assert changed["compacts at"][1] == f"{int(8192 * 0.4):,}" and changed["decision"] == ("fits", "made")
    assert "request.json under tight.yaml" in cli("explain", file, "--policy", "tight.yaml").stdout


# -- whom it asks -----------------------------------------------------------------------------------------------------


def bearer(**more: str) -> dict[str, str]:
    return {"authorization": f"Bearer {KEY}", **{name.replace("_", "-"): value for name, value in more.items()}}


def rows(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return sum(
            connection.execute(f"select count(*) from {table}").fetchone()[0] for table in ("usage", "conversation")
        )


def test_a_running_server_is_asked_with_the_clients_key_and_its_database_after_that(
    cli: Cli, tmp_path: Path, provider: str
) -> None:
    keys = [{"id": "k", "tenant": "acme", "secret": KEY}]
    config(provider, keys=keys, server={"port": 0})
    asked = {"model": "support", "messages": history(2)}
    file = saved(asked)
    with gateway(cwd=tmp_path) as (url, _):
        root = url.removesuffix("/v1")
        httpx.post(f"{root}/v1/chat/completions", json=asked, headers=bearer(x_session_id="told"))
        refused = cli("explain", file, "--url", root)
        assert refused.exit_code == 1 and "give the client's key with --key or in WEIRGATE_KEY" in refused.stderr
        running = told(cli, file, "--url", root, "--body", "--label", "told", WEIRGATE_KEY=KEY)
        assert running["decision"] == "again" and running["label"] == "told"
        two = told(cli, file, "--url", root, "--diff", file, "--key", KEY)
        assert two["difference"]["equal"]
    config(provider, keys=keys)
    before = rows(tmp_path / "weirgate.db")
    stopped = told(cli, file, "--body", "--label", "told", "--key", KEY)
    assert stopped == running, "the same, from the database"
    assert rows(tmp_path / "weirgate.db") == before == 2
    assert cli("explain", file).exit_code == 1
