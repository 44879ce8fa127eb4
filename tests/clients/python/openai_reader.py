"""What the OpenAI SDK for Python reads. A program of its own.

A list of {"base_url", "model", "usage"} on stdin, results on stdout.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import openai


def read(client: openai.OpenAI, model: str, usage: bool) -> dict[str, Any]:
    seen: dict[str, Any] = {"text": "", "reasoning": "", "calls": {}, "finish": [], "usage": None, "error": None}
    options: Any = {"stream_options": {"include_usage": True}} if usage else {}
    try:
        stream = client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": f"Say {model} again."}], stream=True, **options
        )
        for chunk in stream:
            if chunk.usage is not None:
                seen["usage"] = chunk.usage.model_dump(exclude_unset=True)
            for choice in chunk.choices:
                take(choice, seen)
    except openai.APIError as error:
        seen["error"] = {"kind": type(error).__name__, "status": getattr(error, "status_code", None)}
    return seen


def take(choice: Any, seen: dict[str, Any]) -> None:
    extra = choice.delta.model_extra or {}
    seen["text"] += choice.delta.content or ""
    seen["reasoning"] += extra.get("reasoning_content") or extra.get("reasoning") or ""
    for call in choice.delta.tool_calls or ():
        known = seen["calls"].setdefault(str(call.index), {"id": "", "name": "", "arguments": ""})
        known["id"] = call.id or known["id"]
        if call.function is not None:
            known["name"] += call.function.name or ""
            known["arguments"] += call.function.arguments or ""
    if choice.finish_reason is not None:
        seen["finish"].append(choice.finish_reason)


def main() -> None:
    tasks = json.load(sys.stdin)
    clients = {
        url: openai.OpenAI(base_url=url, api_key="test-key", timeout=30, max_retries=0)
        for url in {task["base_url"] for task in tasks}
    }
    json.dump([read(clients[task["base_url"]], task["model"], task["usage"]) for task in tasks], sys.stdout)


if __name__ == "__main__":
    main()
