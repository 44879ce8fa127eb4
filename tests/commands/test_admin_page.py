"""docs/admin.md cannot lie: its examples are run in their order, against a gateway that is configured as it says."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import httpx

from tests.clients import programs
from tests.commands.conftest import BOUND, clean, gateway
from tests.data import ROOT
from tests.test_readme import examples

PAGE = (ROOT / "docs" / "admin.md").read_text(encoding="utf-8")
HELLO = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Hello."}]}
CONFIGURATION = PAGE.partition("```yaml\n")[2].partition("```")[0]


def test_every_example_of_the_page_works(provider: str, tmp_path: Path) -> None:
    programs.need("curl")
    env = {"PROVIDER_KEY": "p" * 20, "WEIRGATE_ADMIN": "a" * 20, "TEAM_KEY": "t" * 20}
    configured = CONFIGURATION.replace("https://api.example.com/v1", f"{provider}/v1")
    assert "key_limits" in configured and configured != CONFIGURATION
    (tmp_path / "weirgate.yaml").write_text(f"server: {{port: 0}}\n{configured}")
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "weirgate"
    with gateway(cwd=tmp_path, env=env) as (root, _):
        # The page's commands find the server by the configuration; here its port is any that was free.
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m proxy "$@" --url {root}\n')
        command.chmod(0o755)
        headers = {"authorization": f"Bearer {env['TEAM_KEY']}"}
        assert httpx.post(f"{root}/v1/chat/completions", json=HELLO, headers=headers).status_code == 200
        blocks = [example.code for example in examples(PAGE)]
        assert len(blocks) == 3 and all(example.mark.startswith("tested by") for example in examples(PAGE))
        script = "set -e\n" + "\necho\n".join(blocks)
        path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-c", script.replace("\ncurl", "\necho; curl")],
            cwd=tmp_path,
            env=clean({**env, "url": root, "PATH": path}),
            capture_output=True,
            text=True,
            timeout=BOUND,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert httpx.post(f"{root}/v1/chat/completions", json=HELLO, headers=headers).status_code == 200
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert said[0]["limits"] == {"requests_per_minute": 600, "cost_per_day": 25.0, "streams": 20}
    assert said[1]["limits"]["cost_per_day"] == 40.0
    assert said[2] == {"tenant": "acme", "stopped": True}
    assert "cost/day $10" in done.stderr and "tokens/day 2,000,000" in done.stderr
    for name in ("focus.csv", "month.csv"):
        (line,) = csv.DictReader((tmp_path / name).read_text().splitlines())
        assert (line["BillingAccountId"], line["SubAccountId"], line["ConsumedQuantity"]) == ("acme", "team", "1200")


def test_the_page_names_every_route_and_every_limit_that_there_is() -> None:
    from proxy.server.admin import admin_routes
    from proxy.server.quotas import LIMITS

    class Anything:
        def __getattr__(self, name: str) -> object:
            return Anything()

        def __call__(self, *arguments: object) -> object:
            return Anything()

    for route in admin_routes(Anything(), Anything()):  # type: ignore[arg-type]
        named = route.route.replace("/v1/weirgate/conversations/{id}", ".../{id}")
        assert f"{named}`" in PAGE, route.route
    for limit in LIMITS:
        assert f"| `{limit}` |" in PAGE
