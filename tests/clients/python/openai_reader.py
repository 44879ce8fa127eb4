"""What the OpenAI SDK for Python reads. A program of its own: a list of tasks on stdin, one answer for each on stdout.

What a task and an answer hold stands in `tests/clients/programs.py`; the other readers hold to the same.
"""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any

import openai

ROUNDS = 4


def read(client: openai.OpenAI, task: dict[str, Any], messages: list[Any], rounds: int = ROUNDS) -> dict[str, Any]:
    seen: dict[str, Any] = {
        "text": "", "reasoning": "", "calls": {}, "finish": [], "usage": None, "tokens": None,
        "messages": 0, "ids": [], "error": None,
    }  # fmt: skip
    try:
        said = (streamed if task.get("stream", True) else whole)(client, request(task, messages), seen)
    except openai.APIError as error:
        said = None
        seen["error"] = {
            "kind": type(error).__name__, "status": getattr(error, "status_code", None), "code": error.code,
        }  # fmt: skip
    seen["calls"] = [{**call, "arguments": parsed(call["raw"])} for _, call in sorted(seen["calls"].items())]
    if seen["usage"]:
        seen["tokens"] = [seen["usage"].get("prompt_tokens"), seen["usage"].get("completion_tokens")]
    results = task.get("results")
    if results and said and seen["calls"] and rounds > 1:
        answers = [
            {"role": "tool", "tool_call_id": call["id"], "content": results[call["name"]]} for call in seen["calls"]
        ]
        seen["next"] = read(client, task, [*messages, said, *answers], rounds - 1)
    return seen


def request(task: dict[str, Any], messages: list[Any]) -> dict[str, Any]:
    asked: dict[str, Any] = {"model": task["model"], "messages": messages, "stream": task.get("stream", True)}
    if task.get("usage") and asked["stream"]:
        asked["stream_options"] = {"include_usage": True}
    if task.get("tools"):
        asked["tools"] = task["tools"]
    return {**asked, "extra_body": task.get("extra") or {}}


def whole(client: openai.OpenAI, asked: dict[str, Any], seen: dict[str, Any]) -> Any:
    answer = client.chat.completions.create(**asked)
    seen["ids"].append(answer.id)
    seen["usage"] = answer.usage and answer.usage.model_dump(exclude_unset=True)
    seen["messages"] = len(answer.choices)
    for choice in answer.choices:
        take(choice.message, seen)
        seen["finish"].append(choice.finish_reason)
    return answer.choices[0].message.model_dump(exclude_unset=True) if answer.choices else None


def streamed(client: openai.OpenAI, asked: dict[str, Any], seen: dict[str, Any]) -> Any:
    parts = set()
    for chunk in client.chat.completions.create(**asked):
        if chunk.usage is not None:
            seen["usage"] = chunk.usage.model_dump(exclude_unset=True)
        if chunk.id and chunk.id not in seen["ids"]:
            seen["ids"].append(chunk.id)
        for choice in chunk.choices:
            parts.add((chunk.id, choice.index))
            take(choice.delta, seen)
            if choice.finish_reason is not None:
                seen["finish"].append(choice.finish_reason)
    seen["messages"] = len(parts)
    calls = [
        {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": call["raw"]}}
        for _, call in sorted(seen["calls"].items())
    ]
    return {"role": "assistant", "content": seen["text"] or None, **({"tool_calls": calls} if calls else {})}


def take(said: Any, seen: dict[str, Any]) -> None:
    """A delta or a whole message: calls of a whole message have no index and stand in order."""
    extra = said.model_extra or {}
    seen["text"] += said.content or ""
    seen["reasoning"] += extra.get("reasoning_content") or extra.get("reasoning") or ""
    for place, call in enumerate(said.tool_calls or ()):
        known = seen["calls"].setdefault(getattr(call, "index", place), {"id": "", "name": "", "raw": ""})
        known["id"] = call.id or known["id"]
        if call.function is not None:
            known["name"] += call.function.name or ""
            known["raw"] += call.function.arguments or ""


def parsed(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return None


def main() -> None:
    answers = []
    with contextlib.ExitStack() as opened:
        clients: dict[tuple[str, str], openai.OpenAI] = {}  # making one costs more than an answer does
        for task in json.load(sys.stdin):
            messages = task.get("messages") or [{"role": "user", "content": f"Say {task['model']} again."}]
            url, key = task["base_url"], task.get("key") or "test-key"
            if (url, key) not in clients:
                made = openai.OpenAI(base_url=url, api_key=key, timeout=90, max_retries=0)
                clients[url, key] = opened.enter_context(made)
            answers.append(read(clients[url, key], task, messages))
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
