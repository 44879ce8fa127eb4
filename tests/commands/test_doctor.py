"""`weirgate doctor`: a sound installation is ok, and each trouble is one line with one next step."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

from typer.testing import Result

from proxy.commands import doctor
from proxy.core.steps import Limits, Ratio
from proxy.store import Calibration
from tests.commands.conftest import Cli, gateway, here
from tests.commands.records import NOV_1, database


def findings(result: Result) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in json.loads(result.stdout)["findings"]}


def test_a_sound_installation_does_not_fail(cli: Cli, provider: str) -> None:
    result = cli("doctor", "--upstream", f"{provider}/v1", "--format", "json")
    found = findings(result)
    assert result.exit_code == 0 and json.loads(result.stdout)["ok"] is True, here(result)
    assert {name for name, each in found.items() if each["state"] != "ok"} <= {"sqlite", "open files"}
    assert "weirgate" in found["versions"]["found"] and "Python 3." in found["versions"]["found"]
    assert "answers in" in found["upstream main"]["found"]
    assert "counting works" in found["token ranks"]["found"]
    assert not Path("weirgate.db").exists(), "a look must not make a database"


def test_for_people_each_finding_is_a_line_and_each_trouble_has_a_next_step(cli: Cli) -> None:
    result = cli("doctor", "--upstream", "http://127.0.0.1:1/v1")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert all(line.split()[0] in ("ok", "warn", "fail", "->") for line in lines)
    failed = next(number for number, line in enumerate(lines) if line.startswith("fail"))
    assert "upstream main" in lines[failed] and lines[failed + 1].strip().startswith("-> is it running")
    troubles = [line for line in lines if line.split()[0] in ("warn", "fail")]
    assert len(troubles) == sum(line.strip().startswith("->") for line in lines)


def test_what_a_provider_says_to_our_look_is_judged(cli: Cli, provider: str) -> None:
    Path("weirgate.yaml").write_text(
        "models: {'*': {upstream: open}}\n"
        "upstreams:\n"
        f"  open: {{base_url: '{provider}/refusing/v1'}}\n"
        f"  keyed: {{base_url: '{provider}/refusing/v1', api_key: wrong-provider-key}}\n"
        f"  listless: {{base_url: '{provider}/listless/v1'}}\n"
    )
    result = cli("doctor", "--format", "json")
    found = findings(result)
    assert result.exit_code == 1
    assert [found[f"upstream {name}"]["state"] for name in ("open", "keyed", "listless")] == ["ok", "fail", "warn"]
    assert "wrong-provider-key" not in result.stdout


def test_a_broken_configuration_fails_and_the_rest_is_still_examined(cli: Cli) -> None:
    Path("weirgate.yaml").write_text("server: {prot: 1}\n")
    result = cli("doctor", "--format", "json")
    found = findings(result)
    assert result.exit_code == 1
    assert found["configuration"]["state"] == "fail" and "weirgate check" in found["configuration"]["next"]
    assert found["token ranks"]["state"] == "ok"


def test_the_database_is_opened_and_what_was_learned_is_shown(cli: Cli, tmp_path: Path) -> None:
    database(
        tmp_path / "weirgate.db",
        learned=(
            Calibration(
                upstream="main",
                model="m",
                limits=Limits(total=8192, source="learned"),
                expires_at=NOV_1 * 2,
                estimate=Ratio(value=1.25, samples=9),
            ),
        ),
    )
    found = findings(cli("doctor", "--format", "json"))
    assert (found["database"]["state"], found["server"]["state"]) == ("ok", "ok")
    assert found["learned main"]["found"].startswith("m: window 8,192 until 20")
    assert "1.25 x our estimates (9 calls)" in found["learned main"]["found"]


def test_a_file_that_is_no_database_fails(cli: Cli) -> None:
    Path("weirgate.db").write_bytes(b"something else entirely")
    found = findings(cli("doctor", "--format", "json"))
    assert found["database"]["state"] == "fail" and "not a SQLite database" in found["database"]["found"]
    assert Path("weirgate.db").read_bytes() == b"something else entirely"


def test_a_running_server_is_asked(cli: Cli, provider: str, tmp_path: Path) -> None:
    with gateway("--upstream", f"{provider}/v1", "--port", "0", cwd=tmp_path) as (root, _):
        result = cli("doctor", "--url", root, "--upstream", f"{provider}/v1", "--format", "json")
        found = findings(result)
        assert result.exit_code == 0, here(result)
        assert "its database can be written" in found["server"]["found"]
        assert found["learned"]["found"] == "no windows or ratios yet"
        # Without its address: the database is found to be in use, and the next step names the option.
        held = findings(cli("doctor", "--format", "json"))
        assert held["database"]["state"] == "fail" and "--url" in held["database"]["next"]


def test_an_old_sqlite_is_warned_of() -> None:
    found = doctor._sqlite()
    assert (found.state == "ok") == (sqlite3.sqlite_version_info >= (3, 51, 3))
    assert sqlite3.sqlite_version in found.found
