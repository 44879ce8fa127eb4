"""What LangChain reads. A program of its own, run in `.venv-clients`: a list of tasks on stdin, one answer for each on
stdout, as `tests/clients/programs.py` describes them. LangChain names a stream itself, so its ids are not the server's.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import openai
from langchain_core.messages import ToolMessage, convert_to_messages
from langchain_openai import ChatOpenAI

ROUNDS = 4


def read(chat: Any, task: dict[str, Any], messages: list[Any], rounds: int = ROUNDS) -> dict[str, Any]:
    seen: dict[str, Any] = {"text": "", "calls": [], "finish": [], "usage": None, "tokens": None, "messages": 0,
                            "ids": [], "error": None}  # fmt: skip
    said: Any = None
    try:
        for chunk in chat.stream(messages) if task.get("stream", True) else [chat.invoke(messages)]:
            seen["text"] += chunk.text
            said = chunk if said is None else said + chunk
    except (openai.APIError, ValueError) as error:
        seen["error"] = {
            "kind": type(error).__name__,
            "status": getattr(error, "status_code", None),
            "code": getattr(error, "code", None),
        }
    if said is not None:
        take(said, seen)
    results = task.get("results")
    if results and seen["calls"] and not seen["error"] and rounds > 1:
        answers = [ToolMessage(results[call["name"]], tool_call_id=call["id"]) for call in seen["calls"]]
        seen["next"] = read(chat, task, [*messages, said, *answers], rounds - 1)
    return seen


def take(said: Any, seen: dict[str, Any]) -> None:
    """LangChain joins every chunk to one message; two ends would read as "stopstop"."""
    about = said.response_metadata
    seen["calls"] = [
        {"id": call["id"], "name": call["name"], "arguments": call["args"]} for call in said.tool_calls
    ] + [
        {"id": call["id"], "name": call["name"], "arguments": None, "raw": call["args"]}
        for call in said.invalid_tool_calls
    ]  # fmt: skip
    seen["finish"] = [about["finish_reason"]] if about.get("finish_reason") else []
    seen["ids"] = [about["id"]] if about.get("id") else []
    seen["messages"] = 1
    if said.usage_metadata:
        seen["usage"] = said.usage_metadata
        seen["tokens"] = [said.usage_metadata["input_tokens"], said.usage_metadata["output_tokens"]]


def talker(task: dict[str, Any]) -> Any:
    chat = ChatOpenAI(
        model=task["model"],
        base_url=task["base_url"],
        api_key=task.get("key") or "test-key",
        timeout=90,
        max_retries=0,
        stream_usage=bool(task.get("usage")),
        extra_body=task.get("extra") or None,
    )
    return chat.bind_tools(task["tools"]) if task.get("tools") else chat


def main() -> None:
    answers = []
    for task in json.load(sys.stdin):
        said = task.get("messages") or [{"role": "user", "content": f"Say {task['model']} again."}]
        answers.append(read(talker(task), task, convert_to_messages(said)))
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
