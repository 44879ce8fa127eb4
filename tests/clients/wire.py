"""A client that reads the bytes: what an SDK would forgive or never see is a fault here.

It reads tasks and gives answers as the readers of `programs` do, with one member more: `faults`, what of the answer is
not a well-formed one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tests.clients.framing import Wire
from tests.durability.asking import DONE, Line, Reply, chat

NAME = "wire"
ROUNDS = 4


async def ask(port: int, tasks: Sequence[Wire]) -> list[Wire]:
    with await Line.open(port) as line:
        return [await _read(line, task, task["messages"], ROUNDS) for task in tasks]


async def _read(line: Line, task: Wire, messages: list[Wire], rounds: int) -> Wire:
    stream = bool(task["stream"])
    more = {**task.get("extra", {}), **({"tools": task["tools"]} if task.get("tools") else {})}
    if stream and task["usage"]:
        more["stream_options"] = {"include_usage": True}
    await line.send(chat(task["model"], messages, stream=stream, id="wire", **more))
    seen = answer(await line.whole(), usage=bool(task["usage"]))
    results = task.get("results")
    if results and seen["calls"] and not seen["error"] and rounds > 1:
        said = {"role": "assistant", "content": seen["text"] or None, "tool_calls": seen.pop("wire")}
        told = [
            {"role": "tool", "tool_call_id": each["id"], "content": results[each["name"]]} for each in seen["calls"]
        ]
        seen["next"] = await _read(line, task, [*messages, said, *told], rounds - 1)
    return seen


def answer(reply: Reply, *, usage: bool) -> Wire:
    """What the answer says, and what is wrong with it."""
    payloads = reply.payloads
    seen: Wire = {"text": "", "reasoning": "", "calls": [], "finish": [], "usage": None, "tokens": None, "messages": 0,
                  "ids": [], "error": None, "weirgate": None, "wire": [], "faults": []}  # fmt: skip
    if reply.status != 200 or payloads[-1].get("error"):
        error = payloads[-1]["error"]
        seen["error"] = {"kind": error["type"], "status": reply.status, "code": error["code"]}
        payloads = payloads[:-1]
        if reply.streamed and DONE in reply.body:
            seen["faults"].append("an error and [DONE]")
    elif reply.streamed:
        seen["faults"] += _ending(reply.body)
    for payload in payloads:
        if payload["id"] not in seen["ids"]:
            seen["ids"].append(payload["id"])
        if payload.get("usage"):
            seen["usage"] = payload["usage"]
            seen["weirgate"] = payload.get("weirgate")
            seen["tokens"] = [payload["usage"]["prompt_tokens"], payload["usage"]["completion_tokens"]]
    choices = [choice for payload in payloads for choice in payload["choices"]]
    for choice in choices:
        _take(choice.get("delta", choice.get("message")), seen)
        if choice["finish_reason"]:
            seen["finish"].append(choice["finish_reason"])
    seen["messages"] = len({choice["index"] for choice in choices})
    if reply.streamed and payloads:
        seen["faults"] += _odd(payloads, choices, usage=usage, whole=seen["error"] is None)
    for call in seen["calls"]:
        call["arguments"] = _parsed(call["raw"])
    return seen


def _take(said: Wire, seen: Wire) -> None:
    seen["text"] += said.get("content") or ""
    seen["reasoning"] += said.get("reasoning_content") or ""
    for place, part in enumerate(said.get("tool_calls") or ()):
        function = part.get("function") or {}
        index = part.get("index", place)
        if index == len(seen["calls"]):
            if not part.get("id") or not function.get("name") or part.get("type") != "function":
                seen["faults"].append(f"call {index} begins without id, name or type")
            seen["calls"].append({"id": part.get("id"), "name": function.get("name"), "raw": ""})
            seen["wire"].append({**{name: value for name, value in part.items() if name != "index"}})
        if not 0 <= index < len(seen["calls"]) or index < len(seen["calls"]) - 1:
            seen["faults"].append(f"call {index} stands behind call {len(seen['calls']) - 1}")
            continue
        call = seen["calls"][index]
        if part.get("id") and part["id"] != call["id"]:
            seen["faults"].append(f"call {index} has two ids")
        call["raw"] += function.get("arguments") or ""
        seen["wire"][index]["function"] = {"name": call["name"], "arguments": call["raw"]}


def _ending(body: bytes) -> list[str]:
    found = []
    if body.count(DONE) != 1:
        found.append(f"[DONE] {body.count(DONE)} times")
    if body.rstrip().splitlines()[-1:] != [DONE]:
        found.append("[DONE] is not the last line")
    return found


def _odd(payloads: Sequence[Wire], choices: Sequence[dict[str, Any]], *, usage: bool, whole: bool) -> list[str]:
    """What frames must not do, whoever reads them."""
    found = []
    for name in ("id", "created", "model", "object"):
        if len(values := {payload.get(name) for payload in payloads}) != 1:
            found.append(f"{name} is {values}")
    roles = [choice["delta"].get("role") for choice in choices]
    if roles[:1] != ["assistant"] or not set(roles) <= {"assistant", None}:
        found.append(f"roles are {roles}")
    ends = [place for place, choice in enumerate(choices) if choice["finish_reason"]]
    if ends != ([len(choices) - 1] if whole else []):
        found.append(f"it finishes at {ends} of {len(choices)}")
    counts = [place for place, payload in enumerate(payloads) if payload.get("usage")]
    if whole and usage and counts != [len(payloads) - 1]:
        found.append(f"usage stands at {counts} of {len(payloads)}")
    return found


def _parsed(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return None
