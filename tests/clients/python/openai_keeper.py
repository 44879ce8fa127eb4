"""What the OpenAI SDK for Python reads of a conversation that the gateway keeps. A program of its own.

{"base_url", "model"} on stdin; what each call returned on stdout, as the SDK holds it, by the names in
`tests/clients/test_conversations.py`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import openai

ITEMS: Any = [
    {"role": "developer", "content": "Be brief."},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello."}]},
    {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "nothing"},
    {"role": "assistant", "content": "Good day."},
]


def refused(call: Any) -> dict[str, Any]:
    try:
        call()
    except openai.APIStatusError as error:
        return {"kind": type(error).__name__, "status": error.status_code, "code": error.code, "param": error.param}
    return {}


def main(task: dict[str, Any]) -> dict[str, Any]:
    client = openai.OpenAI(base_url=task["base_url"], api_key="test-key", timeout=30, max_retries=0)
    kept = client.conversations
    made = kept.create(metadata={"topic": "weirs"}, items=ITEMS[:2])
    put = kept.items.create(made.id, items=ITEMS[2:])
    said: Any = [{"role": "user", "content": "What is a weir?"}]
    answer = client.chat.completions.create(model=task["model"], messages=said, extra_body={"conversation": made.id})
    items = list(kept.items.list(made.id, order="asc", limit=2, include=["message.input_image.image_url"]))
    newest = kept.items.list(made.id)
    return {
        "made": made.to_dict(),
        "put": put.to_dict(),
        "answer": answer.choices[0].message.content,
        "items": [item.to_dict() for item in items],
        "kinds": [type(item).__name__ for item in items],
        "newest": newest.to_dict(),
        "one": kept.items.retrieve(str(items[1].id), conversation_id=made.id).to_dict(),
        "told": kept.retrieve(made.id).to_dict(),
        "changed": kept.update(made.id, metadata={"topic": "rivers"}).to_dict(),
        "deleted": kept.delete(made.id).to_dict(),
        "gone": refused(lambda: kept.retrieve(made.id)),
        "bad": refused(lambda: kept.create(metadata={"k" * 65: "v"})),
    }


if __name__ == "__main__":
    json.dump(main(json.load(sys.stdin)), sys.stdout)
