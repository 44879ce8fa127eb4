"""The driver of an explanation: what would go upstream for a call, with nothing sent and nothing stored.

Belongs here: the two answers that the core needs of the world, what the store knows and how large something is, and the
bytes of the body. Never: an upstream, a row, a lease or a metric; the core asks for none of them here.
"""

from __future__ import annotations

import asyncio
from operator import add
from typing import Any, Final

import msgspec

from proxy.core import measure
from proxy.core.conversation import Message
from proxy.core.errors import Internal, StoreUnavailable
from proxy.core.explaining import Asked, explained
from proxy.core.explanation import Explained, Explanation
from proxy.core.steps import Call, Count, Limits, Memory, Recall, Step
from proxy.dialects.chat import dressing
from proxy.dialects.chat.request import encode_prompt
from proxy.dialects.members import elements
from proxy.dialects.strict import without_lone_surrogates
from proxy.gateway import Counting, Gateway
from proxy.playing import advance
from proxy.snapshots import Destination

_NEVER: Final = 0.0
"""When an explanation takes place, for the store: so long ago that nothing counts as used by it, and lives longer."""


async def explain(
    gateway: Gateway, call: Call, destination: Destination, summariser: Destination | None = None, *, window: int | None
) -> tuple[Explanation, bytes | None]:
    """The account of `call`, and the body that would go upstream (None: nothing would). `window` in place of the known
    one. Raises what `Gateway.serve` would raise before anything is sent."""
    snap = gateway.snapshots.of(call, destination, summariser)
    if window is not None:
        snap = msgspec.structs.replace(snap, limits=Limits(total=window, source="asked"))
    asked = Asked(tools=_tools(call), barred=dressing.barred(call))
    flow = explained(call, snap, asked)
    loop, answer = asyncio.get_running_loop(), None
    while True:
        # All of it in the worker: that a history is large must not be felt by anybody's stream.
        done, step = await loop.run_in_executor(gateway.workers, advance, flow.send, answer)
        if done:
            found: Explained = step
            body = None if found.prompt is None else encode_prompt(call, found.prompt, snap.model)
            return found.told, body
        answer = await _answered(gateway, call, step)


async def _answered(gateway: Gateway, call: Call, step: Step) -> Any:
    match step:
        case Recall():
            try:
                return await gateway.store.recall(call.caller.tenant, step, _NEVER)
            except StoreUnavailable:
                if gateway.store_required:
                    raise
                return Memory()
        case Count():
            return await counted(gateway.counter, step.messages, step.encoding)
        case _:
            raise Internal("A rehearsal asks for nothing else.")


async def counted(counter: Counting, messages: tuple[Message, ...], encoding: str) -> tuple[int, ...]:
    """Exact tokens of each message, with what no tokenizer sees of it."""
    counts = await counter.count(tuple(map(measure.countable, messages)), encoding)
    return tuple(map(add, counts, map(measure.uncountable, messages)))


def _tools(call: Call) -> int:
    """How many tools the client defines, the old API's included."""
    lists = ((name, call.fields.get(name, b"null")) for name in ("tools", "functions"))
    return sum(len(elements(without_lone_surrogates(raw), name)) for name, raw in lists if raw[:1] == b"[")
