"""`weirgate keys`: on the file of a server that does not run, and through one that does."""

from __future__ import annotations

import json
from pathlib import Path

import httpx

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
