"""What the OpenAI SDK for Python holds a conversation with. A program of its own.

A list of {"base_url", "model", "stream", "messages", "says"} on stdin: after `messages` the user says each of `says`,
and every answer goes into the history as the SDK gave it. Results on stdout: a list of answers for each task.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import openai


def answer(client: openai.OpenAI, task: dict[str, Any], messages: list[Any]) -> dict[str, Any]:
    try:
        if task["stream"]:
            return streamed(client, task["model"], messages)
        whole = client.chat.completions.create(model=task["model"], messages=messages)
        (choice,) = whole.choices
        extra = (choice.message.model_extra or {}).get("weirgate")
        return {"text": choice.message.content, "weirgate": extra, "finish": choice.finish_reason}
    except openai.APIError as error:
        return {"error": {"kind": type(error).__name__, "code": error.code}}


def streamed(client: openai.OpenAI, model: str, messages: list[Any]) -> dict[str, Any]:
    said: dict[str, Any] = {"text": "", "weirgate": None, "finish": None}
    for chunk in client.chat.completions.create(model=model, messages=messages, stream=True):
        for choice in chunk.choices:
            said["text"] += choice.delta.content or ""
            said["weirgate"] = (choice.delta.model_extra or {}).get("weirgate") or said["weirgate"]
            said["finish"] = choice.finish_reason or said["finish"]
    return said


def talk(task: dict[str, Any]) -> list[dict[str, Any]]:
    client = openai.OpenAI(base_url=task["base_url"], api_key="test-key", timeout=30, max_retries=0)
    messages, answers = list(task["messages"]), []
    for said in task["says"]:
        messages.append({"role": "user", "content": said})
        answers.append(answer(client, task, messages))
        messages.append({"role": "assistant", "content": answers[-1].get("text", "")})
    return answers


if __name__ == "__main__":
    json.dump([talk(task) for task in json.load(sys.stdin)], sys.stdout)
