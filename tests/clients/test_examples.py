"""Every example in docs/clients is run through the gateway by its real client, or says in its first line why not."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests import test_readme
from tests.clients import programs
from tests.data import ROOT

EXAMPLES = ROOT / "docs" / "clients"
ADDRESS = "http://127.0.0.1:8400/v1"
ANSWER = "A weir keeps a river from overflowing."

# The client that an example needs, the command, and how often the answer must be printed.
RUNNABLE: Mapping[str, tuple[str, Sequence[str], int]] = {
    "openai_sdk.py": ("openai-python", (sys.executable,), 1),
    "openai_sdk.mjs": ("openai-node", ("node",), 1),
    "vercel_ai_sdk.mjs": ("vercel", ("node",), 1),
    "langchain_chat.py": ("langchain", (str(programs.CLIENTS_BIN / "python"),), 1),
    "llm.sh": ("llm", ("bash", "-euo", "pipefail"), 2),
}


def _first_line(example: Path) -> str:
    return example.read_text(encoding="utf-8").splitlines()[0]


def _claim(first_line: str) -> str:
    """What an example says of itself: `run`, `not run` with a reason, or nothing that counts."""
    if first_line.endswith("Run by tests/clients/test_examples.py."):
        return "run"
    _, found, reason = first_line.partition("Not run: ")
    return "not run" if found and reason.strip() else ""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", RUNNABLE)
def test_an_example_prints_the_answer_that_came_through_the_gateway(name: str, gateway: str, tmp_path: Path) -> None:
    client, command, times = RUNNABLE[name]
    programs.need(client)
    example = shutil.copy(EXAMPLES / name, tmp_path)
    if client in programs.NODE_PACKAGES:  # a module looks for its libraries beside itself
        (tmp_path / "node_modules").symlink_to(programs.NODE_FOLDER / "node_modules")
    said = programs.run([*command, str(example)], tmp_path, environment={"WEIRGATE_URL": gateway})
    assert said.splitlines() == [ANSWER] * times


def test_every_example_is_run_or_says_why_not() -> None:
    examples = {path.name: _claim(_first_line(path)) for path in sorted(EXAMPLES.iterdir()) if path.suffix != ".md"}
    assert [name for name, claim in examples.items() if not claim] == []
    assert {name for name, claim in examples.items() if claim == "run"} == set(RUNNABLE)


def test_a_claim_without_a_reason_does_not_count() -> None:
    assert _claim("# Aider. Not run: too large.") == "not run"
    assert _claim("# Aider. Not run: ") == "" == _claim("# Aider.")
    assert _claim("# x. Run by tests/clients/test_examples.py.") == "run"


def test_the_client_in_the_readme_gets_the_answer_through_the_gateway(gateway: str, tmp_path: Path) -> None:
    here = f"tested by {Path(__file__).relative_to(ROOT).as_posix()}"
    shown = [one for one in test_readme.written() if one.mark == here]
    assert [one.language for one in shown] == ["python"]
    ask = "client.chat.completions.create(model='some-model', messages=[{'role': 'user', 'content': 'And?'}])"
    program = shown[0].code.replace(ADDRESS, gateway) + f"\nprint({ask}.choices[0].message.content)\n"
    assert gateway in program
    assert programs.run([sys.executable, "-c", program], tmp_path).strip() == ANSWER


def test_the_page_of_clients_names_every_example() -> None:
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    missing = [path.name for path in EXAMPLES.iterdir() if path.suffix != ".md" and f"]({path.name})" not in page]
    assert missing == []
