"""`weirgate usage`: sums, rows and money, from a file and from a running server."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from proxy.commands.outcome import NotDone
from proxy.commands.usage import digits_for, dollars, exact, moment
from tests.commands.conftest import BOUND, Cli, clean, gateway, here
from tests.commands.records import NOV_1, database, row

NOW = NOV_1 + 10 * 86_400
HELLO = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Hello."}]}


def lines(text: str) -> list[list[str]]:
    return [[cell for cell in line.split("  ") if cell.strip()] for line in text.splitlines()]


def cells(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line] for line in lines(text)]


# -- times and money -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1h", NOW - 3600),
        ("30m", NOW - 1800),
        ("7d", NOW - 7 * 86_400),
        ("2w", NOW - 14 * 86_400),
        ("2026-11-01", NOV_1),
        ("2026-11-01T12:30", NOV_1 + 45_000),
        ("2026-11-01T12:30:00+02:00", NOV_1 + 37_800),
        ("1793491200", NOV_1),
        ("1793491200.5", NOV_1 + 0.5),
        ("999999d", 0.0),
        ("7", 7.0),
        (None, None),
    ],
)
def test_a_time_is_read_in_each_of_its_forms(text: str | None, seconds: float | None) -> None:
    assert moment(text, NOW) == seconds


@pytest.mark.parametrize("text", ["", "yesterday", "-1", "1y", "nan", "inf", "1e99", "2026-13-01", "1969-01-01"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(NotDone, match="is no time") as refused:
        moment(text, NOW)
    assert refused.value.code == 2


@pytest.mark.parametrize(
    ("nano", "shown"),
    [
        (0, "$0.000000"),
        (1_500, "$0.000002"),
        (999_999_999, "$1.000000"),
        (1_500_000_000, "$1.5000"),
        (1_234_567_890_123_456, "$1,234,567.89"),
    ],
)
def test_nano_dollars_are_shown_as_dollars(nano: int, shown: str) -> None:
    assert dollars(nano, digits_for(nano)) == shown


def test_a_cost_for_programs_is_exact() -> None:
    assert exact(1_500_000_001) == "1.500000001" and exact(7) == "0.000000007" and exact(None) is None


# -- from a file -----------------------------------------------------------------------------------------------------


def test_without_a_server_and_a_database_it_says_where_it_looked(cli: Cli) -> None:
    result = cli("usage")
    assert result.exit_code == 1 and result.stdout == ""
    assert "no server answers at http://127.0.0.1:8400 and there is no database weirgate.db yet" in result.stderr
    assert not Path("weirgate.db").exists(), "asking must not make a database"


def test_sums_by_model_have_separators_dollars_and_a_total(cli: Cli, tmp_path: Path) -> None:
    database(tmp_path / "weirgate.db")
    result = cli("usage", "--by", "model")
    assert result.exit_code == 0, here(result)
    head, *rows, total = cells(result.stdout)
    assert (
        head == "model calls input cached output reasoning cost estimated unpriced failed compactions recovered".split()
    )
    by_model = {line[0]: line[1:] for line in rows}
    assert [*by_model] == ["gpt-4o", "small", "local"], "the dearest first"
    assert by_model["gpt-4o"] == ["2", "1,234,567", "800", "1,000", "0", "$1.5000", "0", "0", "1", "0", "0"]
    assert by_model["small"][5:7] == ["$0.0000", "1"]
    assert total == ["total", "4", "3,703,701", "1,600", "3,000", "0", "$1.5000", "1", "1", "1", "2", "1"]
    assert "1 of 4 calls have no known price" in result.stderr


def test_sums_by_day_conversation_and_key(cli: Cli, tmp_path: Path) -> None:
    database(tmp_path / "weirgate.db")
    days = cells(cli("usage", "--by", "day").stdout)
    assert [line[:2] for line in days[1:]] == [["2026-11-01", "1"], ["2026-11-02", "3"], ["total", "4"]]
    keys = cells(cli("usage", "--by", "key").stdout)
    assert sorted(line[:3] for line in keys[1:-1]) == [["k1", "acme", "2"], ["k1", "other", "1"], ["k2", "acme", "1"]]
    conversations = cells(cli("usage", "--by", "conversation").stdout)
    assert sorted(line[1] for line in conversations[1:-1]) == ["acme", "other"]


def test_since_and_until_bound_what_is_counted(cli: Cli, tmp_path: Path) -> None:
    database(tmp_path / "weirgate.db")

    def calls(*options: str) -> int:
        return int(json.loads(cli("usage", "--by", "day", "--format", "json", *options).stdout)["total"]["calls"])

    assert calls() == 4
    assert calls("--since", "2026-11-02") == 3
    assert calls("--until", "2026-11-02") == 1
    assert calls("--since", "2026-11-02", "--until", str(NOV_1 + 90_000)) == 1


def test_single_calls_say_what_became_of_each(cli: Cli, tmp_path: Path) -> None:
    database(tmp_path / "weirgate.db")
    result = cli("usage")
    head, *rows, total = cells(result.stdout)
    assert head[:4] == ["time (UTC)", "model", "purpose", "status"]
    assert [line[0] for line in rows] == sorted((line[0] for line in rows), reverse=True)
    newest, failed, estimated, oldest = rows
    assert oldest == "2026-11-01 00:00:00|gpt-4o|chat|ok|1,234,567|400|1,000|$1.5000|75%".split("|")
    assert estimated[4] == "~1,234,567" and estimated[-1] == "auto"
    assert failed[3] == "failed: upstream_timeout"
    assert newest[7] == "unpriced" and newest[-1] == "recovered"
    assert total[0] == "total" and total[1] == "4 calls"
    assert "~ our estimate" in result.stderr


def test_a_compacted_call_says_who_wrote_its_notes_and_why_no_more_is_done(cli: Cli, tmp_path: Path) -> None:
    rows = (
        row("a", compaction="auto", notes_by="small"),
        row("b", compaction="auto", notes_by="builtin", paused="still_above"),
        row("c", paused="no_notes"),
    )
    database(tmp_path / "weirgate.db", rows)
    shown = cli("usage").stdout
    assert "  auto by small" in shown and "  paused: no_notes" in shown
    assert "  auto by builtin; paused: still_above" in shown
    told = json.loads(cli("usage", "--format", "json").stdout)["data"]
    assert [(one["notes_by"], one["paused"]) for one in told] == [(one.notes_by, one.paused) for one in rows[::-1]]
    assert ",compaction_id,notes_by,paused," in cli("usage", "--format", "csv").stdout.splitlines()[0]


def test_the_limit_is_said_where_it_cut(cli: Cli, tmp_path: Path) -> None:
    database(tmp_path / "weirgate.db")
    result = cli("usage", "--limit", "2")
    assert len(cells(result.stdout)) == 4
    assert "the newest 2 calls" in result.stderr


def test_csv_holds_every_column_and_no_formula(cli: Cli, tmp_path: Path) -> None:
    evil = row("e", model="=HYPERLINK(1)", end_user="@x", cost=1)
    database(tmp_path / "weirgate.db", (evil, row("f", end_user="plain, with comma", cost=None, unpriced=True)))
    found = {line["id"]: line for line in csv.DictReader(io.StringIO(cli("usage", "--format", "csv").stdout))}
    assert (found["e"]["model"], found["e"]["end_user"]) == ("'=HYPERLINK(1)", "'@x")
    assert found["e"]["cost_usd"] == "0.000000001"
    assert (found["f"]["end_user"], found["f"]["cost_usd"], found["f"]["unpriced"]) == ("plain, with comma", "", "true")
    sums = list(csv.DictReader(io.StringIO(cli("usage", "--by", "model", "--format", "csv").stdout)))
    assert {line["model"] for line in sums} == {"'=HYPERLINK(1)", "gpt-4o"}


def test_names_that_clients_chose_cannot_command_a_terminal(cli: Cli, tmp_path: Path) -> None:
    database(tmp_path / "weirgate.db", (row("e", model="[red]x\x1b[2J\x07"),))
    result = cli("usage")
    assert "\x1b" not in result.stdout and "\x07" not in result.stdout
    assert "[red]x\ufffd[2J\ufffd" in result.stdout


def test_json_has_the_form_of_the_endpoint_with_a_total(cli: Cli, tmp_path: Path) -> None:
    database(tmp_path / "weirgate.db")
    told = json.loads(cli("usage", "--format", "json").stdout)
    assert (told["object"], told["by"], len(told["data"])) == ("list", None, 4)
    assert told["total"]["cost_usd"] == "1.500020000" and told["total"]["calls"] == 4
    assert told["data"][-1]["cost"] == 1_500_000_000 and told["data"][-1]["cost_usd"] == "1.500000000"


def test_a_reader_that_has_read_enough_is_no_failure(tmp_path: Path) -> None:
    database(tmp_path / "weirgate.db", tuple(row(f"r{number}") for number in range(2000)))
    child = subprocess.Popen(
        [sys.executable, "-m", "proxy", "usage", "--format", "csv"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env=clean({}),
    )
    assert child.stdout is not None and child.stderr is not None
    assert child.stdout.readline().startswith(b"id,")
    child.stdout.close()
    said = child.stderr.read()
    assert (child.wait(BOUND), b"BrokenPipe" in said, b"Traceback" in said) == (0, False, False)
    child.stderr.close()


def test_a_reader_that_is_gone_before_the_first_line_is_no_failure(tmp_path: Path) -> None:
    database(tmp_path / "weirgate.db")
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "proxy", "usage", "--by", "model"],
            stdout=writing,
            stderr=subprocess.PIPE,
            cwd=tmp_path,
            env=clean({}),
            timeout=BOUND,
            check=False,
        )
    finally:
        os.close(writing)
    assert (done.returncode, b"BrokenPipe" in done.stderr) == (0, False)


# -- from a server ---------------------------------------------------------------------------------------------------


def test_a_running_server_is_asked_with_the_configured_secret(cli: Cli, provider: str, tmp_path: Path) -> None:
    text = f"server: {{port: 0}}\nupstreams: {{main: {{base_url: '{provider}/v1', api_key: '${{env:NOT_HERE}}'}}}}\n"
    text += "keys: [{id: k, tenant: t, secret: 0123456789abcdef-k}]\nadmin: {secret: '${env:ADMIN_OF_TEST}'}\n"
    (tmp_path / "weirgate.yaml").write_text(text)
    secrets = {"NOT_HERE": "provider-key", "ADMIN_OF_TEST": "0123456789abcdef-admin"}
    with gateway(cwd=tmp_path, env=secrets) as (root, _):
        key = {"authorization": "Bearer 0123456789abcdef-k"}
        assert httpx.post(f"{root}/v1/chat/completions", json=HELLO, headers=key).status_code == 200
        # This shell does not hold the provider's key, and needs none.
        seen = cli("usage", "--by", "model", "--url", root, ADMIN_OF_TEST=secrets["ADMIN_OF_TEST"])
        assert cells(seen.stdout)[-1][:3] == ["total", "1", "1,000"], here(seen)
        assert f"from the server at {root}" in seen.stderr
        own = cli("usage", "--by", "model", "--url", f"{root}/v1/", WEIRGATE_KEY="0123456789abcdef-k")
        assert own.exit_code == 0, here(own)
        refused = cli("usage", "--url", root, WEIRGATE_ADMIN="wrong")
        assert refused.exit_code == 1 and "set WEIRGATE_ADMIN" in refused.stderr
        # Without the address the database is found, and is in use: it is not opened beside the server.
        held = cli("usage")
        assert held.exit_code == 1 and "in use by another process" in held.stderr and "--url" in held.stderr


@pytest.mark.parametrize("url", ["ftp://x", "127.0.0.1:8400", "http://user:pw@127.0.0.1", "http://127.0.0.1:99999"])
def test_an_address_that_is_none_is_wrong_use(cli: Cli, url: str) -> None:
    result = cli("usage", "--url", url)
    assert result.exit_code == 2 and "--url" in result.stderr
    assert "pw" not in result.stderr


def test_an_address_where_nobody_or_somebody_else_answers_is_told(cli: Cli, provider: str) -> None:
    assert "no server answers at http://127.0.0.1:1" in cli("usage", "--url", "http://127.0.0.1:1").stderr
    other = cli("usage", "--url", provider)
    assert other.exit_code == 1 and "is no Weirgate" in other.stderr


def test_a_secret_that_cannot_be_one_is_not_shown(cli: Cli) -> None:
    result = cli("usage", WEIRGATE_ADMIN="line one\nline two")
    assert result.exit_code == 2 and "line" not in result.stderr


def test_only_what_is_asked_for_is_counted_and_several_columns_add_up(cli: Cli, tmp_path: Path) -> None:
    database(tmp_path / "weirgate.db")
    some = cli("usage", "--where", "tenant=acme", "--where", "key=k1", "--format", "json")
    assert {(row["tenant"], row["key"]) for row in json.loads(some.stdout)["data"]} == {("acme", "k1")}
    lines = json.loads(cli("usage", "--by", "tenant,key", "--format", "json").stdout)["data"]
    assert sorted((*line["group"], line["calls"]) for line in lines) == [
        ("acme", "k1", 2),
        ("acme", "k2", 1),
        ("other", "k1", 1),
    ]
    head, *_ = cli("usage", "--by", "tenant,key", "--format", "csv").stdout.splitlines()
    assert head.startswith("tenant,key,calls")
    assert "tenant,key" in cli("usage", "--by", "tenant,key").stdout
    for wrong in (("--where", "colour=red"), ("--where", "key"), ("--by", "key,colour")):
        assert cli("usage", *wrong).exit_code == 2


@pytest.mark.parametrize("form", ["json", "csv", "focus"])
def test_an_export_that_reached_its_limit_says_so(cli: Cli, tmp_path: Path, form: str) -> None:
    database(tmp_path / "weirgate.db", (row("a"), row("b")))
    assert "the newest 2 calls" in cli("usage", "--format", form, "--limit", "2").stderr
    assert "the newest" not in cli("usage", "--format", form, "--limit", "3").stderr


def test_focus_is_csv_in_its_columns_of_single_calls(cli: Cli, tmp_path: Path) -> None:
    database(tmp_path / "weirgate.db")
    lines = cli("usage", "--format", "focus").stdout.splitlines()
    assert lines[0].startswith("BilledCost,BillingAccountId,") and len(lines) == 5
    assert cli("usage", "--format", "focus", "--by", "day").exit_code == 2
