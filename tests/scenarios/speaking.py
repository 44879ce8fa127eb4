"""Speaking into a turn while its model works, for the scenarios of conversations that the gateway keeps."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.fakes import Script, SeenRequest
from tests.scenarios.acts import Act
from tests.scenarios.gate import Answer, Gate, Wire, user
from tests.scenarios.test_conversation_items import Kept, left

INTO = {"x-weirgate-interject": "true"}


def held(act: Act) -> tuple[Act, asyncio.Event, asyncio.Event]:
    """`act`, which tells when it was asked and waits until it may answer."""
    going, release = asyncio.Event(), asyncio.Event()

    async def slow(request: SeenRequest, reply: Script) -> None:
        going.set()
        await release.wait()
        await act(request, reply)

    return slow, going, release


async def into(talk: Kept, *said: str | Wire, headers: dict[str, str] | None = None, **more: Any) -> Answer:
    """Say something into the turn that runs."""
    messages = [user(each) if isinstance(each, str) else each for each in said]
    named = {**INTO, **(headers or {})}
    return await talk.weir.ask(
        messages, model=talk.model, conversation=talk.id, stream=talk.stream, headers=named, **more
    )


async def left_for(weir: Gate, count: int) -> None:
    """Until so many messages wait to be read by a running turn."""
    while await left(weir) < count:
        await asyncio.sleep(0)
