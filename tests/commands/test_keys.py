"""`weirgate keys`: on the file of a server that does not run, and through one that does."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from proxy.server.auth import well_formed
from tests.commands.conftest import Cli, gateway, here

HELLO = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Hello."}]}


def test_a_key_is_made_listed_and_revoked_on_the_file(cli: Cli) -> None:
    empty = cli("keys", "list")
    assert empty.exit_code == 0 and "there are no keys" in empty.stderr and not Path("weirgate.db").exists()
    made = cli("keys", "add", "--tenant", "acme", "--id", "ci", "--model", "gpt-*", "--model", "small")
    assert made.exit_code == 0, here(made)
    secret = made.stdout.strip()
    assert well_formed(secret) and made.stdout.count("\n") == 1, "the secret stands alone on stdout"
    assert secret not in made.stderr and "shown this once" in made.stderr
    listed = cli("keys", "list")
    assert secret not in listed.stdout
    assert listed.stdout.splitlines()[1].split()[:5] == ["ci", "acme", "gpt-*,", "small", "open"]
    gone = cli("keys", "revoke", "ci")
    assert gone.exit_code == 0 and "opens nothing any more" in gone.stderr
    assert "revoked" in cli("keys", "list").stdout
    again = cli("keys", "revoke", "ci")
    assert again.exit_code == 0 and "was revoked on" in again.stderr
    assert secret.encode() not in Path("weirgate.db").read_bytes()


def test_for_programs_everything_is_one_object(cli: Cli) -> None:
    made = json.loads(cli("keys", "add", "--format", "json").stdout)
    assert (made["tenant"], made["models"], made["source"]) == ("default", ["*"], "database")
    assert well_formed(made["secret"])
    (listed,) = json.loads(cli("keys", "list", "--format", "json").stdout)["data"]
    assert listed["id"] == made["id"] and "secret" not in listed and "digest" not in listed
    assert listed["state"] == "open"
    assert cli("keys", "revoke", made["id"]).exit_code == 0
    (listed,) = json.loads(cli("keys", "list", "--format", "json").stdout)["data"]
    assert (listed["state"], listed["revoked_at"] is None) == ("revoked", False)


def test_what_cannot_be_done_is_told(cli: Cli) -> None:
    assert cli("keys", "add", "--id", "k", "--tenant", "a").exit_code == 0
    assert cli("keys", "add", "--id", "k", "--tenant", "b").exit_code == 0
    taken = cli("keys", "add", "--id", "k", "--tenant", "a")
    assert taken.exit_code == 1 and "exists" in taken.stderr and taken.stdout == ""
    bad = cli("keys", "add", "--tenant", "a b")
    assert bad.exit_code == 1 and "tenant is made of" in bad.stderr
    unclear = cli("keys", "revoke", "k")
    assert unclear.exit_code == 2 and "--tenant" in unclear.stderr
    assert cli("keys", "revoke", "k", "--tenant", "b").exit_code == 0
    unknown = cli("keys", "revoke", "none")
    assert unknown.exit_code == 1 and "there is no key none" in unknown.stderr


def test_a_configured_key_is_listed_and_left_alone(cli: Cli) -> None:
    Path("weirgate.yaml").write_text(
        "upstreams: {main: {base_url: 'http://127.0.0.1:1/v1'}}\n"
        "server: {port: 1}\n"
        "keys: [{id: team, tenant: t, secret: 0123456789abcdef}]\n"
    )
    listed = cli("keys", "list")
    assert listed.stdout.splitlines()[1].split() == ["team", "t", "*", "open", "configuration"]
    assert "0123456789abcdef" not in listed.stdout
    assert cli("keys", "revoke", "team").exit_code == 1
    taken = cli("keys", "add", "--tenant", "t", "--id", "team")
    assert taken.exit_code == 1 and "stands in the configuration" in taken.stderr


def test_through_a_running_server_a_key_works_at_once_and_not_after_it_was_revoked(
    cli: Cli, provider: str, tmp_path: Path
) -> None:
    secret = "0123456789abcdef-admin"
    text = f"server: {{port: 0}}\nupstreams: {{main: {{base_url: '{provider}/v1'}}}}\nadmin: {{secret: {secret}}}\n"
    (tmp_path / "weirgate.yaml").write_text(text)
    with gateway(cwd=tmp_path) as (root, _):

        def call(key: str) -> int:
            headers = {"authorization": f"Bearer {key}"}
            return httpx.post(f"{root}/v1/chat/completions", json=HELLO, headers=headers).status_code

        made = cli("keys", "add", "--tenant", "acme", "--id", "ci", "--url", root)
        assert made.exit_code == 0, here(made)
        assert "the first key: from now on every client needs one" in made.stderr
        assert call(made.stdout.strip()) == 200 and call("wg-other") == 401
        assert "ci" in cli("keys", "list", "--url", root).stdout
        gone = cli("keys", "revoke", "ci", "--url", root)
        assert gone.exit_code == 0, here(gone)
        assert call(made.stdout.strip()) == 401


def test_limits_are_set_shown_and_taken_back_on_the_file(cli: Cli) -> None:
    Path("weirgate.yaml").write_text(
        "upstreams: {main: {base_url: 'http://127.0.0.1:1/v1'}}\n"
        "server: {port: 1}\n"
        "key_limits: {streams: 9}\n"
        "keys: [{id: team, tenant: t, secret: 0123456789abcdef, limits: {cost_per_day: 2.5}}]\n"
    )
    made = cli("keys", "add", "--id", "ci", "--limit", "requests_per_minute=60", "--limit", "expires=2096-01-31")
    assert made.exit_code == 0, here(made)
    listed = {key["id"]: key for key in json.loads(cli("keys", "list", "--format", "json").stdout)["data"]}
    assert listed["team"]["limits"] == {"cost_per_day": 2.5, "streams": 9}
    assert listed["ci"]["limits"] == {"requests_per_minute": 60, "streams": 9, "expires": 3978806400.0}
    changed = cli("keys", "limit", "team", "cost_per_day=none", "tokens_per_day=1_000_000")
    assert changed.exit_code == 0 and "tokens/day 1,000,000, cost/day $2.5" in changed.stderr, here(changed)
    assert cli("keys", "limit", "team", "cost_per_day=0.5", "stopped=yes").exit_code == 0
    line = cli("keys", "list").stdout.splitlines()[1]
    assert "stopped" in line and "cost/day $0.5" in line and "streams 9" in line
    assert cli("keys", "limit", "team", "expires=2020-01-01", "stopped=no").exit_code == 0
    assert "expired" in cli("keys", "list").stdout.splitlines()[1]


@pytest.mark.parametrize(
    "said", ["requests=1", "streams", "streams=", "streams=many", "cost_per_day=-1", "stopped=maybe", "expires=soon"]
)
def test_what_is_no_limit_is_told(cli: Cli, said: str) -> None:
    assert cli("keys", "add", "--id", "k").exit_code == 0
    wrong = cli("keys", "limit", "k", said)
    assert wrong.exit_code == 2 and said.partition("=")[0] in wrong.stderr
    assert json.loads(cli("keys", "list", "--format", "json").stdout)["data"][0]["limits"] == {}


def test_through_a_running_server_a_limit_holds_at_once(cli: Cli, provider: str, tmp_path: Path) -> None:
    secret = "0123456789abcdef-admin"
    text = f"server: {{port: 0}}\nupstreams: {{main: {{base_url: '{provider}/v1'}}}}\nadmin: {{secret: {secret}}}\n"
    (tmp_path / "weirgate.yaml").write_text(text)
    with gateway(cwd=tmp_path) as (root, _):
        made = cli("keys", "add", "--id", "ci", "--limit", "requests_per_minute=1", "--url", root)
        headers = {"authorization": f"Bearer {made.stdout.strip()}"}

        def call() -> int:
            return httpx.post(f"{root}/v1/chat/completions", json=HELLO, headers=headers).status_code

        assert [call(), call()] == [200, 429]
        changed = cli("keys", "limit", "ci", "requests_per_minute=none", "stopped=yes", "--url", root)
        assert changed.exit_code == 0, here(changed)
        assert call() == 403
        cli("keys", "limit", "ci", "stopped=none", "--url", root)
        assert call() == 200
        assert "ci" in cli("keys", "list", "--url", root).stdout
