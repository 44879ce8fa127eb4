"""`weirgate settings`: with the client's own key, through a server that runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proxy.commands.outcome import NotDone
from proxy.commands.settings import share
from tests.commands.conftest import Cli, gateway, here

A, B, ADMIN = "0123456789-client-a", "0123456789-client-b", "0123456789-operator"


@pytest.fixture
def configured(provider: str, tmp_path: Path) -> Path:
    (tmp_path / "weirgate.yaml").write_text(
        f"server: {{port: 0}}\nupstreams: {{main: {{base_url: '{provider}/v1'}}}}\n"
        "models: {small: {upstream: main}, large: {upstream: main}}\n"
        f"keys: [{{id: a, tenant: t, secret: {A}}}, {{id: b, tenant: t, secret: {B}, models: [small]}}]\n"
        f"admin: {{secret: {ADMIN}}}\n"
    )
    return tmp_path


def test_settings_are_shown_set_and_reset_with_the_clients_key(cli: Cli, configured: Path) -> None:
    with gateway(cwd=configured) as (root, _):

        def told(*words: str, key: str = A) -> dict[str, Any]:
            result = cli("settings", *words, "--url", root, "--format", "json", WEIRGATE_KEY=key)
            assert result.exit_code == 0, here(result)
            return dict(json.loads(result.stdout))

        nothing: dict[str, Any] = {"automatic": True, "threshold": None, "thresholds": {}, "summary_model": None}
        assert told("show") == nothing
        assert told("set", "--threshold", "70%", "--model", "large=0.5", "--model", "a=b=0.4") == {
            **nothing,
            "threshold": 0.7,
            "thresholds": {"large": 0.5, "a=b": 0.4},
        }
        # What is not named stays.
        some = told("set", "--automatic", "off", "--summary-model", "small", "--model", "a=b=none")
        assert some == {"automatic": False, "threshold": 0.7, "thresholds": {"large": 0.5}, "summary_model": "small"}
        assert told("show") == some
        assert told("show", "--user", "ann") == nothing == told("show", key=B)
        assert told("set", "--user", "ann & bob", "--threshold", "0.3")["threshold"] == 0.3
        assert told("show", "--user", "ann & bob")["threshold"] == 0.3
        cleared = told("set", "--threshold", "none", "--summary-model", "none", "--automatic", "on")
        assert cleared == {**nothing, "thresholds": {"large": 0.5}}
        people = cli("settings", "show", "--url", root, "--key", A)
        assert people.exit_code == 0 and [line.split("  ")[0] for line in people.stdout.splitlines()] == [
            "setting",
            "automatic compaction",
            "threshold",
            "threshold of large",
            "summary model",
        ]
        assert "50 %" in people.stdout and "the policy's" in people.stdout
        back = cli("settings", "reset", "--url", root, WEIRGATE_KEY=A)
        assert back.exit_code == 0 and back.stdout == "" and "the key's own settings" in back.stderr
        assert told("show") == nothing
        assert told("show", "--user", "ann & bob")["threshold"] == 0.3


def test_what_the_server_refuses_is_told_and_the_operators_secret_opens_nobodys_account(
    cli: Cli, configured: Path
) -> None:
    with gateway(cwd=configured) as (root, _):
        for env in ({}, {"WEIRGATE_KEY": "wrong"}, {"WEIRGATE_ADMIN": ADMIN}, {"WEIRGATE_KEY": ADMIN}):
            # The configuration with the operator's secret lies in this folder.
            result = cli("settings", "show", "--url", root, **env)
            assert result.exit_code == 1 and result.stdout == "", here(result)
            assert "--key or in WEIRGATE_KEY" in result.stderr and ADMIN not in result.stderr
        large = cli("settings", "set", "--summary-model", "large", "--url", root, WEIRGATE_KEY=B)
        assert large.exit_code == 1 and "one that this key may call" in large.stderr
        low = cli("settings", "set", "--threshold", "0.2", "--url", root, WEIRGATE_KEY=B)
        assert low.exit_code == 1 and "from 0.30 to 0.95" in low.stderr


def test_a_gateway_without_keys_is_not_sent_the_operators_secret(cli: Cli, provider: str, tmp_path: Path) -> None:
    text = f"server: {{port: 0}}\nupstreams: {{main: {{base_url: '{provider}/v1'}}}}\nadmin: {{secret: {ADMIN}}}\n"
    (tmp_path / "weirgate.yaml").write_text(text)
    with gateway(cwd=tmp_path) as (root, _):
        assert cli("settings", "set", "--threshold", "0.4", "--url", root).exit_code == 0
        for key, threshold in (("", "40 %"), (ADMIN, "the policy's"), ("sk-provider", "the policy's")):
            shown = cli("settings", "show", "--url", root, WEIRGATE_KEY=key)
            assert shown.stdout.splitlines()[2].split("  ")[-1].strip() == threshold, here(shown)


def test_wrong_use_is_told_before_anything_changes(cli: Cli, configured: Path) -> None:
    with gateway(cwd=configured) as (root, _):
        for words in ((), ("--threshold", "seventy"), ("--model", "large"), ("--model", "=0.5"), ("--threshold", "70")):
            result = cli("settings", "set", *words, "--url", root, WEIRGATE_KEY=A)
            assert result.exit_code == 2 and result.stdout == "", here(result)


def test_without_a_server_there_is_nobody_to_ask(cli: Cli) -> None:
    Path("weirgate.yaml").write_text("upstreams: {main: {base_url: 'http://127.0.0.1:1/v1'}}\nserver: {port: 1}\n")
    result = cli("settings", "show", WEIRGATE_KEY=A)
    assert result.exit_code == 1 and "no server answers at http://127.0.0.1:1" in result.stderr
    broken = cli("settings", "show", WEIRGATE_KEY="no\nsecret")
    assert broken.exit_code == 2 and "no secret" in broken.stderr


@pytest.mark.parametrize(
    ("text", "value"), [("0.7", 0.7), ("70%", 0.7), (" 72.5 % ", 0.725), ("30%", 0.3), ("none", None)]
)
def test_a_share_is_a_number_or_a_percentage(text: str, value: float | None) -> None:
    assert share(text) == value


@pytest.mark.parametrize("text", ["", "70", "0", "1", "-0.5", "nan", "inf", "100%", "70%%", "7 0%", "%"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(NotDone):
        share(text)
