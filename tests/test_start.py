"""What a start does without: libraries that only a failure, a migration, a scrape or another command needs.

No test can hold seconds on a machine that it does not know. What is held is what they went to: a module that is on
this list and is imported again is a twentieth of a start, or a third of it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands.conftest import BOUND, clean

UNNEEDED = {
    "alembic": "a migration",
    "mako": "alembic",
    "sqlalchemy": "making the statements that sqlite.json holds",
    "proxy.store.composing": "the same",
    "proxy.store.schema": "the same",
    "structlog": "the first line that is logged",
    "rich": "tables, and structlog",
    "pygments": "rich",
    "prometheus_client": "the first scrape",
    "pydantic_settings": "WEIRGATE_ variables",
    "dotenv": "pydantic_settings",
    "starlette.routing": "a path that is no model call's",
    "proxy.core.overflow_numbers": "a provider that fails",
    "proxy.core.overflow_phrases": "the same",
    "proxy.core.credentials": "a compaction, or a provider that fails",
    "http.client": "asking a running server",
    "proxy.commands.doctor": "another command",
    "litellm": "nothing of ours",
    "PIL": "nothing of ours",
}

# Serves on a free port; once it listens, tells what is loaded, and leaves as on SIGTERM.
PROGRAM = """\
import gc, json, os, signal, sys
from proxy.commands import serving

def told(text):
    if text.startswith("listening on http://"):
        print(json.dumps({"loaded": [*sys.modules], "collecting": gc.isenabled(), "frozen": gc.get_freeze_count()}))
        os.kill(os.getpid(), signal.SIGTERM)

serving.say = told
sys.argv = ["weirgate", "serve", *sys.argv[1:]]
from proxy.__main__ import main
main()
"""


def started(folder: Path, **env: str) -> dict[str, object]:
    options = ("--upstream", "http://127.0.0.1:1/v1", "--port", "0")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *options],
        cwd=folder,
        env=clean(env),
        capture_output=True,
        text=True,
        timeout=BOUND,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    value: dict[str, object] = json.loads(done.stdout)
    return value


def loaded(told: dict[str, object]) -> set[str]:
    names = told["loaded"]
    assert isinstance(names, list)
    return set(names)


@pytest.mark.parametrize("which", ["a new database", "a current database"])
def test_a_start_imports_nothing_that_it_does_not_need(which: str, tmp_path: Path) -> None:
    if which == "a current database":
        started(tmp_path)
        assert (tmp_path / "weirgate.db").is_file()
    found = loaded(started(tmp_path))
    assert {name: why for name, why in UNNEEDED.items() if name in found} == {}
    assert {"proxy.app", "proxy.gateway", "proxy.store.sqlite", "uvicorn"} <= found


def test_variables_are_read_all_the_same(tmp_path: Path) -> None:
    assert "pydantic_settings" in loaded(started(tmp_path, WEIRGATE_SERVER__HOLD="1"))


def test_the_collector_is_on_while_it_serves_and_does_not_see_what_was_loaded(tmp_path: Path) -> None:
    told = started(tmp_path)
    assert told["collecting"] is True
    assert isinstance(told["frozen"], int) and told["frozen"] > 10_000
