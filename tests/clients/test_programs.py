"""A client that is not installed is said aloud, and in CI it is a failure: never a silent pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients import programs
from tests.clients.replay import Recording, events

CLIENTS = ("langchain", "llm", "openai-node", "vercel", "vercel-openai", "curl")


@pytest.fixture
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """Neither node nor anything that `make clients` makes."""
    monkeypatch.setattr(programs, "CLIENTS_BIN", tmp_path / "bin")
    monkeypatch.setattr(programs, "NODE_FOLDER", tmp_path / "node")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)
    return monkeypatch


@pytest.mark.parametrize("client", CLIENTS)
def test_an_absent_client_is_skipped_with_its_remedy(bare_machine: pytest.MonkeyPatch, client: str) -> None:
    with pytest.raises(pytest.skip.Exception, match=r"make clients|apt-get install"):
        programs.need(client)


@pytest.mark.parametrize("client", CLIENTS)
def test_an_absent_client_fails_in_ci(bare_machine: pytest.MonkeyPatch, client: str) -> None:
    bare_machine.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="in CI that is an error"):
        programs.need(client)


def test_a_program_that_fails_is_a_failure_with_its_words(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"ended with 3(.|\n)*no luck"):
        programs.run(["bash", "-c", "echo no luck >&2; exit 3"], tmp_path)


def test_the_replaying_provider_sends_a_frame_of_usage_alone_only_when_asked() -> None:
    said = b'{"choices":[{"index":0,"delta":{"content":"a"}}],"usage":null}'
    filters = b'{"choices":[],"prompt_filter_results":[]}'
    usage = b'{"choices":[],"usage":{"prompt_tokens":1}}'
    recording = Recording([filters, said, usage])
    assert b"".join(events(recording, usage=True)).count(b"data: ") == 4
    quiet = b"".join(events(recording, usage=False))
    assert quiet == b"data: " + filters + b"\n\ndata: " + said + b"\n\ndata: [DONE]\n\n"
