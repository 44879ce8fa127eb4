"""The demo as people start it, without the model: another server stands in, and everything is stopped at the end."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from demo.children import ChildFailed, running, wait_until_ready
from demo.run import arguments, stated
from tests.clients.replay import Recording, provider
from tests.data import ROOT
from tests.demo.test_talk import ANSWER


def _demo(*options: str) -> tuple[int, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    done = subprocess.run(
        [sys.executable, str(ROOT / "demo" / "run.py"), *options],
        cwd=ROOT,
        env={**clean, "COLUMNS": "100", "NO_PROXY": "127.0.0.1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=90,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.timeout(120)
def test_the_demo_runs_through_the_gateway_with_any_server() -> None:
    with provider({"yes": Recording(ANSWER)}) as server:
        status, said = _demo("--upstream", server.base_url, "--model", "yes", "--window", "4096", "--turns", "3")
    assert status == 0, said
    assert "direct: 3/3 turns answered; through Weirgate: 3/3" in said
    assert "as gpt-4o-mini" in said


def test_a_server_that_does_not_answer_is_one_sentence_and_status_two() -> None:
    with provider({}) as server:
        gone = server.base_url
    status, said = _demo("--upstream", gone)
    assert status == 2
    assert "state --model and --window" in said and "Traceback" not in said


def test_a_window_is_read_from_the_words_that_servers_use() -> None:
    assert stated({"id": "m", "meta": {"n_ctx": 2048}}) == 2048
    assert stated({"id": "m", "max_model_len": 4096}) == 4096
    assert stated({"id": "m", "context_length": 8192, "meta": None}) == 8192
    assert stated({"id": "m", "max_model_len": None}) is None


@pytest.mark.parametrize("wrong", [["--turns", "0"], ["--turns", "41"], ["--window", "5"], ["--model", "m"]])
def test_an_option_out_of_range_is_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        arguments(wrong)
    assert refused.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_a_program_is_gone_after_its_block_even_if_it_ignores_the_request_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("demo.children.STOP_SECONDS", 0.3)
    stubborn = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    )
    log = tmp_path / "log"
    with running([sys.executable, "-c", stubborn], log, cwd=tmp_path) as child:
        for _ in range(400):
            if "up" in log.read_text():
                break
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(0.05)
    assert child.poll() == -9


def test_a_program_that_ends_before_it_serves_is_reported_with_its_last_words(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with (
        running([sys.executable, "-c", "print('no such weights'); raise SystemExit(3)"], log, cwd=tmp_path) as child,
        pytest.raises(ChildFailed, match=r"ended with code 3(.|\n)*no such weights"),
    ):
        wait_until_ready(child, "http://127.0.0.1:9/health", log, seconds=20)
