"""Which of the recorded streams are chat completions, and the broken ones made from them.

Only reading and naming; the comparison stands in `test_recorded_streams.py`.
"""

from __future__ import annotations

import json
from typing import Any

from tests import data
from tests.clients.replay import Recording

AT_ONCE = "error-at-once"
AS_JSON = ".json"
HALVES = "openai/chat/openai-text"
ERRORS = "openai/responses/openai-error.1"
REFUSAL = "openai/responses/reasoning-model-temperature-error"


def _is_chat(payload: bytes) -> bool:
    frame = json.loads(payload)
    choices = frame.get("choices") if isinstance(frame, dict) else None
    return isinstance(choices, list) and all("delta" in choice for choice in choices)


def streams() -> dict[str, Recording]:
    """Every recorded stream of chat completion chunks, by package and name."""
    found = {}
    for answer in data.provider_streams():
        if answer.is_stream and all(map(_is_chat, payloads := answer.payloads())):
            found[f"{answer.package}/{answer.name}"] = Recording(payloads)
    return found


def bodies() -> dict[str, Recording]:
    """Every recorded chat completion that was one JSON body, by package and name."""
    found = {}
    for answer in data.provider_streams():
        if not answer.is_stream and json.loads(body := answer.body()).get("object") == "chat.completion":
            found[f"{answer.package}/{answer.name}{AS_JSON}"] = Recording([], body=body)
    return found


def broken() -> dict[str, Recording]:
    """Real streams that end in a real provider's error, at once and in the middle, and a refusal before any stream."""
    if not data.is_there():
        return {}
    by_name = {
        f"{one.package}/{one.name}.{'stream' if one.is_stream else 'json'}": one for one in data.provider_streams()
    }
    said = by_name[f"{HALVES}.stream"].payloads()
    error = _error(by_name[f"{ERRORS}.stream"].payloads())
    return {
        "error-in-the-middle": Recording([*said[: len(said) // 2], error], done=False),
        AT_ONCE: Recording([error], done=False),
        "refused": Recording([by_name[f"{REFUSAL}.json"].body()], status=400),
    }


def _error(payloads: list[bytes]) -> bytes:
    """The error object of a recorded error stream, in the form in which chat streams carry it."""
    frames: list[dict[str, Any]] = [json.loads(payload) for payload in payloads]
    return next(json.dumps({"error": frame["error"]}).encode() for frame in frames if "error" in frame)
