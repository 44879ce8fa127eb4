"""The command line itself: help that reads and is quick, versions, completion, colour, exit codes."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from proxy import __version__
from tests.commands.conftest import BOUND, Cli, clean
from tests.commands.records import database

COMMANDS = ("serve", "usage", "compact", "check", "doctor", "keys", "keys add", "keys list", "keys revoke")
OWN = ("settings", "settings show", "settings set", "settings reset")


def test_the_help_names_every_command_and_the_exit_codes(cli: Cli) -> None:
    result = cli("--help")
    assert result.exit_code == 0
    assert all(
        command in result.stdout for command in ("serve", "usage", "compact", "check", "keys", "doctor", "settings")
    )
    assert "Exit codes" in result.stdout
    assert "..." not in result.stdout.replace("[ARGS]...", ""), "a summary is cut short"


@pytest.mark.parametrize("command", (*COMMANDS, *OWN))
def test_each_commands_help_says_what_it_does_and_its_exit_codes(cli: Cli, command: str) -> None:
    result = cli(*command.split(), "--help", COLUMNS="100")
    assert result.exit_code == 0 and "Exit codes" in result.stdout
    said = result.stdout.split("\n\n")[1]
    assert len(said.split()) > 4 and said.rstrip().endswith("."), "a help without a sentence"


def test_without_a_command_the_help_is_shown(cli: Cli) -> None:
    assert "usage" in cli().stdout + cli().stderr


def test_the_version_is_told(cli: Cli) -> None:
    assert cli("--version").stdout == f"weirgate {__version__}\n"


@pytest.mark.parametrize(
    "wrong", [("serv",), ("usage", "--by", "colour"), ("compact",), ("keys", "revoke"), ("serve", "--port", "x")]
)
def test_wrong_use_is_exit_code_2(cli: Cli, wrong: tuple[str, ...]) -> None:
    result = cli(*wrong)
    assert result.exit_code == 2 and result.stdout == ""


def test_help_loads_nothing_but_the_command_line() -> None:
    code = "import sys, proxy.__main__ as m\ntry: m.app(['usage', '--help'])\nexcept SystemExit: pass\n"
    code += "print(*sorted(name for name in sys.modules if '.' not in name), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=BOUND, env=clean({}), check=True
    )
    loaded = set(done.stderr.split())
    heavy = set("msgspec sqlalchemy alembic aiohttp pydantic_settings starlette uvicorn structlog yaml asyncio".split())
    assert "typer" in loaded
    # Not pydantic: typer itself reads the options with it.
    assert heavy & loaded == set()


def test_the_shell_completes_commands_and_values(tmp_path: Path) -> None:
    # The program is called by its name there: completion knows it by that.
    script = tmp_path / "weirgate"
    script.write_text(f"#!{sys.executable}\nfrom proxy.__main__ import main\nmain()\n")
    script.chmod(0o755)

    def asked(*words: str) -> list[str]:
        env = {"_WEIRGATE_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
        done = subprocess.run(
            [str(script)], capture_output=True, text=True, timeout=BOUND, env=clean(env), cwd=tmp_path, check=False
        )
        return done.stdout.split()

    assert asked("weirgate", "us") == ["usage"]
    assert asked("weirgate", "keys", "") == ["add", "list", "limit", "revoke"]
    assert asked("weirgate", "usage", "--by", "")[:4] == ["model", "conversation", "day", "key"]


def terminal(*arguments: str, cwd: Path, **env: str) -> str:
    """What the command writes to a terminal."""
    leader, follower = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "proxy", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=follower,
        stderr=subprocess.DEVNULL,
        cwd=cwd,
        env={**clean({"TERM": "xterm-256color", "COLUMNS": "120"}), "NO_COLOR": "", **env},
    )
    os.close(follower)
    pieces: list[bytes] = []
    try:
        while piece := os.read(leader, 65_536):
            pieces.append(piece)
    except OSError:
        pass  # Linux reports the end of a terminal as an error
    finally:
        os.close(leader)
        child.wait(BOUND)
    return b"".join(pieces).decode()


def test_colour_is_for_terminals_that_want_it(tmp_path: Path) -> None:
    assert "\x1b[1;31merror" in terminal("check", cwd=tmp_path)
    plain = terminal("check", cwd=tmp_path, NO_COLOR="1")
    assert "error" in plain and "\x1b[31m" not in plain and "\x1b[1;31m" not in plain


def test_a_table_at_a_terminal_shows_every_figure_whole(tmp_path: Path) -> None:
    database(tmp_path / "weirgate.db")
    shown = terminal("usage", "--by", "model", cwd=tmp_path, NO_COLOR="1", COLUMNS="160")
    assert "3,703,701" in shown and "$1.5000" in shown and "─" in shown
