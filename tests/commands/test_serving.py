"""`weirgate serve` as a process: it starts as the README says, or says why not, with the exit code of its help."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.commands.conftest import BOUND, clean, gateway

HELLO = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Hello."}]}


def refused(*options: str, cwd: Path, env: dict[str, str] | None = None) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "proxy", "serve", *options],
        cwd=cwd,
        env=clean(env or {}),
        capture_output=True,
        text=True,
        timeout=BOUND,
        check=False,
    )
    assert done.stdout == ""
    return done.returncode, done.stderr


def chat(root: str, key: str = "") -> tuple[dict[str, str], dict[str, object]]:
    headers = {"content-type": "application/json", **({"authorization": f"Bearer {key}"} if key else {})}
    request = urllib.request.Request(f"{root}/v1/chat/completions", json.dumps(HELLO).encode(), headers)
    with urllib.request.urlopen(request, timeout=BOUND) as answer:
        return {name.lower(): value for name, value in answer.headers.items()}, json.loads(answer.read())


@pytest.mark.parametrize(("options", "window"), [((), "128000"), (("--window", "32768"), "32768")])
def test_an_upstream_is_all_it_needs(provider: str, tmp_path: Path, options: tuple[str, ...], window: str) -> None:
    with gateway("--upstream", f"{provider}/v1", "--port", "0", *options, cwd=tmp_path) as (root, child):
        assert root.startswith("http://127.0.0.1:")
        headers, answer = chat(root)
        assert f"window={window};" in headers["x-weirgate-context"]
        assert answer["object"] == "chat.completion"
        child.send_signal(signal.SIGTERM)
        assert child.wait(BOUND) == 0
    assert (tmp_path / "weirgate.db").is_file()


def test_a_configuration_file_is_named_or_found_in_the_folder(provider: str, tmp_path: Path) -> None:
    text = f"server: {{port: 0}}\nupstreams: {{main: {{base_url: '{provider}/v1'}}}}\n"
    text += 'keys: [{id: k, tenant: t, secret: "${env:A_KEY}"}]\n'
    (tmp_path / "weirgate.yaml").write_text(text)
    env = {"A_KEY": "0123456789abcdef-k"}
    with gateway("--config", "weirgate.yaml", cwd=tmp_path, env=env) as (root, _):
        assert chat(root, env["A_KEY"])[1]["object"] == "chat.completion"
    with gateway(cwd=tmp_path, env=env) as (root, _):
        assert chat(root, env["A_KEY"])[1]["object"] == "chat.completion"


def test_without_anything_it_says_what_to_do(tmp_path: Path) -> None:
    code, said = refused(cwd=tmp_path)
    assert code == 2
    assert "weirgate serve --upstream http" in said and "weirgate serve --config weirgate.yaml" in said
    assert [*tmp_path.iterdir()] == []


def test_an_address_that_others_reach_needs_keys(provider: str, tmp_path: Path) -> None:
    code, said = refused("--upstream", f"{provider}/v1", "--host", "0.0.0.0", "--port", "0", cwd=tmp_path)
    assert code == 2
    assert "can be reached from other machines and there are no client keys" in said
    assert "Traceback" not in said


def test_a_broken_configuration_is_told_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "weirgate.yaml").write_text(
        "upstreams: {main: {base_url: 'http://127.0.0.1:1/v1'}}\nserver: {prot: 1}\n"
    )
    code, said = refused("--config", "weirgate.yaml", cwd=tmp_path)
    assert (code, said) == (2, 'weirgate: weirgate.yaml:2: server.prot: unknown key; did you mean "port"?\n')


def test_an_address_that_is_taken_is_told(provider: str, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        code, said = refused("--upstream", f"{provider}/v1", "--port", port, cwd=tmp_path)
    assert code == 2 and "in use" in said and "Traceback" not in said


def test_a_database_that_another_process_has_is_told(provider: str, tmp_path: Path) -> None:
    options = ("--upstream", f"{provider}/v1", "--port", "0")
    with gateway(*options, cwd=tmp_path) as (_, child):
        code, said = refused(*options, cwd=tmp_path)
        assert code == 2 and f"in use by another process ({child.pid})" in said
        assert "Traceback" not in said


def test_two_keys_of_one_id_are_told_and_can_be_put_right(provider: str, tmp_path: Path) -> None:
    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "proxy", *command],
            cwd=tmp_path,
            env=clean({}),
            capture_output=True,
            text=True,
            timeout=BOUND,
            check=False,
        )

    assert run("keys", "add", "--tenant", "t", "--id", "k").returncode == 0
    text = f"server: {{port: 0}}\nupstreams: {{main: {{base_url: '{provider}/v1'}}}}\n"
    (tmp_path / "weirgate.yaml").write_text(text + "keys: [{id: k, tenant: t, secret: 0123456789abcdef}]\n")
    code, said = refused(cwd=tmp_path)
    assert code == 2 and "two keys have the id 'k'" in said and "Traceback" not in said


def test_policies_that_change_while_it_serves_are_told_in_lines_of_json(provider: str, tmp_path: Path) -> None:
    folder = tmp_path / "policies"
    folder.mkdir()
    (folder / "default.yaml").write_text("compact_at: 0.8\n")
    (tmp_path / "weirgate.yaml").write_text(
        f"server: {{port: 0}}\nupstreams: {{main: {{base_url: '{provider}/v1'}}}}\npolicies: policies\n"
    )
    with gateway(cwd=tmp_path) as (_, child):
        assert child.stderr is not None
        for text, level, event in (
            ("compact_at: 7\n", "error", "policies kept as they were"),
            ("compact_at: 0.7\n", "info", "policies replaced"),
        ):
            (folder / "changed").write_text(text)
            (folder / "changed").rename(folder / "default.yaml")
            child.send_signal(signal.SIGHUP)
            line = json.loads(child.stderr.readline())
            assert (line["level"], line["event"]) == (level, event)
            assert ("compact_at" in str(line.get("problems"))) == (level == "error")
