"""`weirgate check`: exit codes and places; what is wrong is found by `proxy.check`, which has tests of its own."""

from __future__ import annotations

import json
from pathlib import Path

from tests.commands.conftest import Cli, here

GOOD = "upstreams: {main: {base_url: 'https://api.openai.com/v1'}}\n"


def test_a_sound_configuration_is_0(cli: Cli) -> None:
    Path("weirgate.yaml").write_text(GOOD)
    result = cli("check")
    assert result.exit_code == 0 and result.stdout == "", here(result)
    assert "weirgate.yaml is fit to serve" in result.stderr


def test_a_problem_is_1_and_told_with_file_line_and_what_was_meant(cli: Cli) -> None:
    Path("other.yaml").write_text(GOOD + "server:\n  prot: 1\n")
    result = cli("check", "--config", "other.yaml")
    assert result.exit_code == 1
    assert result.stdout == 'error   other.yaml:3: server.prot: unknown key; did you mean "port"?\n'


def test_warnings_alone_are_0(cli: Cli) -> None:
    Path("weirgate.yaml").write_text(GOOD + "models: {mine: {upstream: main}}\n")
    result = cli("check")
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["warning", "warning"]
    assert "fit to serve, 2 to look at" in result.stderr


def test_policies_are_checked_too(cli: Cli) -> None:
    Path("policies").mkdir()
    Path("policies/default.yaml").write_text("compact_at: 2\n")
    Path("weirgate.yaml").write_text(GOOD + "policies: policies\n")
    result = cli("check")
    assert result.exit_code == 1 and result.stdout.startswith("error   policies/default.yaml:1: compact_at:")


def test_for_programs_it_is_json(cli: Cli) -> None:
    Path("weirgate.yaml").write_text(GOOD + "keys: 7\n")
    result = cli("check", "--format", "json")
    told = json.loads(result.stdout)
    assert (result.exit_code, told["ok"], told["warnings"]) == (1, False, [])
    assert (told["problems"][0]["line"], told["problems"][0]["key"]) == (2, "keys")


def test_without_a_file_it_says_how_to_name_one(cli: Cli) -> None:
    result = cli("check")
    assert result.exit_code == 1 and "name a file with --config" in result.stdout
    assert cli("check", "--config", "gone.yaml").exit_code == 1


def test_the_environment_names_a_file_as_well(cli: Cli) -> None:
    Path("here.yaml").write_text(GOOD)
    assert cli("check", WEIRGATE_CONFIG="here.yaml").exit_code == 0
