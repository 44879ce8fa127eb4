"""A scripted provider with moods: it streams at a pace, caches prompts, refuses long ones and fails now and then.

Belongs here: what one upstream of a rehearsal answers. Everything follows from the request and from how many came
before it; there is no chance in it. Never: what clients send (`traffic`).
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from typing import Any, Final

import msgspec

from tests.fakes import Script, SeenRequest, chat_chunks, chat_reply, error_body, tool_call, usage
from tests.scenarios.summarisers import GOOD, is_summary

_WORDS: Final = "The gate stands as it was left, and the water goes on below the weir as before. "
_BLOCK: Final = 64
"""Tokens that are cached together."""
OUTAGE: Final = 8.0
_KEPT: Final = 64
"""Prompts that the cache holds."""
_REFERENCE: Final = re.compile(r"\bres_[a-z0-9]{6,}")


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds to the first token and between two; `window` in tokens, `stated` in a refusal or not; one call in `fails`
    comes to nothing, and from `down` on (seconds after the first call) all of them, for `OUTAGE` seconds."""

    first: float
    between: float
    window: int
    stated: bool = True
    fails: int = 29
    down: float = math.inf


class Provider:
    """One upstream."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self.asked = 0
        self._began: float | None = None
        self.summaries = 0
        self._cache: dict[str, None] = {}

    async def __call__(self, request: SeenRequest, reply: Script) -> None:
        if request.path.endswith("/embeddings"):
            data = [{"object": "embedding", "index": 0, "embedding": [0.1, 0.2]}]
            await reply.json(200, {"object": "list", "data": data, "usage": {"prompt_tokens": 9, "total_tokens": 9}})
            return
        if request.method == "GET":
            await reply.json(200, {"object": "list", "data": [{"id": "gpt-4o-mini", "object": "model"}]})
            return
        self.asked += 1
        if await self._failed(reply):
            return
        told = json.dumps(request.messages, ensure_ascii=False)
        size = len(told) // 4
        if size > self.pace.window:
            await reply.json(400, error_body(self._refusal(size), code="context_length_exceeded", param="messages"))
            return
        await self._answer(request, reply, told, size)

    async def _failed(self, reply: Script) -> bool:
        now = asyncio.get_running_loop().time()
        self._began = now if self._began is None else self._began
        if self.asked % self.pace.fails == 0 or 0 <= now - self._began - self.pace.down < OUTAGE:
            await reply.json(503, error_body("The engine is overloaded.", type="server_error"))
        elif self.asked % (3 * self.pace.fails) == 1:
            await reply.json(500, error_body("The server had an error.", type="server_error"))
        elif self.asked % (5 * self.pace.fails) == 2:
            await reply.json(429, error_body("Rate limit reached.", type="rate_limit_error"), {"retry-after": "30"})
        else:
            return False
        return True

    def _refusal(self, size: int) -> str:
        if not self.pace.stated:
            return "The prompt is too long for this model."
        return (
            f"This model's maximum context length is {self.pace.window} tokens. However, your messages resulted in "
            + (f"{size} tokens. Please reduce the length of the messages.")
        )

    async def _answer(self, request: SeenRequest, reply: Script, told: str, size: int) -> None:
        calls: list[dict[str, Any]] = []
        if is_summary(request):
            self.summaries += 1
            text = GOOD if self.summaries % 3 else "I would rather not."
        else:
            text = _WORDS * (1 + self.asked % 4)
            found = _REFERENCE.search(told)
            offered = b"read_tool_result" in request.body and request.messages[-1]["role"] == "user"
            if found and offered and self.asked % 3 == 0:
                calls, text = [tool_call(f"call_{self.asked}", "read_tool_result", {"reference": found[0]})], ""
        spent = usage(size, len(text) // 4 + 8 * len(calls) + 1, cached=self._cached(told))
        await asyncio.sleep(self.pace.first * (1 + self.asked % 5 / 2))
        if not request.stream:
            await reply.json(200, chat_reply(text or None, calls=calls, usage=spent))
            return
        await reply.head(200, {"content-type": "text/event-stream"})
        for chunk in chat_chunks(text or None, calls=calls, usage=spent, size=16):
            await reply.event(chunk)
            await asyncio.sleep(self.pace.between)
        await reply.event(b"[DONE]")
        await reply.end()

    def _cached(self, told: str) -> int:
        """Tokens of `told` that are in the cache, which forgets everything once in a while."""
        if self.asked % 17 == 0:
            self._cache.clear()
        most = max((_common(told, known) for known in self._cache), default=0)
        if len(self._cache) >= _KEPT:
            del self._cache[next(iter(self._cache))]
        self._cache[told] = None
        return most // 4 // _BLOCK * _BLOCK


def _common(one: str, other: str) -> int:
    """How many characters two texts begin with together."""
    least, most = 0, min(len(one), len(other))
    while least < most:
        middle = (least + most + 1) // 2
        if one[least:middle] == other[least:middle]:
            least = middle
        else:
            most = middle - 1
    return least
