"""What LangChain reads. A program of its own, run in `.venv-clients`.

A list of {"base_url", "model", "usage"} on stdin, results on stdout.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import openai
from langchain_openai import ChatOpenAI


def read(base_url: str, model: str, usage: bool) -> dict[str, Any]:
    chat = ChatOpenAI(model=model, base_url=base_url, api_key="test-key", timeout=30, max_retries=0, stream_usage=usage)
    whole: Any = None
    text = ""
    seen: dict[str, Any] = {"error": None}
    try:
        for chunk in chat.stream(f"Say {model} again."):
            text += chunk.text
            whole = chunk if whole is None else whole + chunk
    except (openai.APIError, ValueError) as error:
        seen["error"] = {"kind": type(error).__name__, "status": getattr(error, "status_code", None)}
    if whole is not None:
        seen["calls"] = [{key: call[key] for key in ("id", "name", "args")} for call in whole.tool_calls]
        seen["bad calls"] = len(whole.invalid_tool_calls)
        seen["finish"] = whole.response_metadata.get("finish_reason")
        seen["usage"] = whole.usage_metadata
    return {**seen, "text": text}


def main() -> None:
    json.dump([read(task["base_url"], task["model"], task["usage"]) for task in json.load(sys.stdin)], sys.stdout)


if __name__ == "__main__":
    main()
