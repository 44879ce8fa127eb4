"""What summary models answer, good and bad; and a conversation that needs one, with the account of its requests."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from typing import Any

from tests.fakes import Script, SeenRequest, chat_chunks, tool_call, usage
from tests.scenarios.acts import Act, refusing
from tests.scenarios.gate import Wire, assistant, shown, tool, user
from tests.strict import StrictUpstream

GOOD = """\
## Requests and intent
- The user has every gate of the weir checked; the newest request is open.

## Constraints
- Gates stay shut during checks.

## Decisions and reasons
- Gates are checked one by one, because the log is long.

## Work done
- Read the files of all gates so far.

## Open work and task list
- [ ] report on the remaining gates

## Facts
- Every gate so far is shut.

## Next step
- Answer the open request.
"""
RUSSIAN = re.sub(r"(?m)^- .*$", "- Пользователь проверяет все шлюзы плотины, и каждый из них пока закрыт.", GOOD)
LONG = GOOD.replace(
    "- Every gate", "\n".join(f"- Fact number {n} about the weir." for n in range(500)) + "\n- Every gate"
)
PLAY = "User: What about gate 3?\n\nAssistant: Gate 3 is shut as well.\n\nUser: And gate 4?\n\nAssistant: So is gate 4."
SYNTAX = '<tool_call>\n{"name": "read_file", "arguments": {"path": "/srv/weir/gate_1.yaml"}}\n</tool_call>'


def is_summary(request: SeenRequest) -> bool:
    return len(request.messages) == 1 and "Now write the notes" in shown(request.messages[0])


def saying(text: str | None, **more: Any) -> Act:
    async def act(_: SeenRequest, reply: Script) -> None:
        await reply.sse(chat_chunks(text, usage=usage(900, 90), size=64, **more))

    return act


async def thinking(_: SeenRequest, reply: Script) -> None:
    first, *_rest, last = chat_chunks("", finish="stop")
    thought = {**first, "choices": [{"index": 0, "delta": {"reasoning_content": "Hm."}, "finish_reason": None}]}
    await reply.sse([first, thought, last])


async def repeating(request: SeenRequest, reply: Script) -> None:
    await saying(shown(request.messages[0]))(request, reply)


async def resetting(_: SeenRequest, reply: Script) -> None:
    await reply.head(200, {"content-type": "text/event-stream"})
    for chunk in chat_chunks(GOOD, finish=None, size=64)[:5]:
        await reply.event(chunk)
    await reply.reset()


async def silent(_: SeenRequest, reply: Script) -> None:
    await reply.hang()


async def stuck(_: SeenRequest, reply: Script) -> None:
    """Begins, and never goes on."""
    await reply.head(200, {"content-type": "text/event-stream"})
    for chunk in chat_chunks(GOOD, finish=None, size=64)[:3]:
        await reply.event(chunk)
    await reply.hang()


def slow(seconds: float) -> Act:
    """Alive all the time, for longer than its first words may take."""

    async def act(_: SeenRequest, reply: Script) -> None:
        chunks = chat_chunks(GOOD, usage=usage(900, 90), size=64)
        await reply.head(200, {"content-type": "text/event-stream"})
        for chunk in chunks:
            await reply.event(chunk)
            await asyncio.sleep(seconds / len(chunks))
        await reply.event(b"[DONE]")
        await reply.end()

    return act


overflowing = refusing(400, message="This model's maximum context length is exceeded. Please shorten the prompt.")


class Narrow:
    """Refuses what is over a window that nobody knows yet, with its numbers, and answers what is not."""

    def __init__(self, window: int) -> None:
        self._strict = StrictUpstream(window=window, answer=lambda request: GOOD)

    async def __call__(self, request: SeenRequest, reply: Script) -> None:
        await self._strict(request, reply)


class Provider:
    """The conversation's model, which checks all that it is asked; what asks for a summary goes to `summariser`."""

    def __init__(self, summariser: Act, window: int | None) -> None:
        self.strict = StrictUpstream(window=window, answer=lambda request: "Gate report done.")
        self.summariser = summariser
        self.summaries: list[Wire] = []
        self.told: list[Sequence[Wire]] = []
        """The prompts of the conversation."""

    async def __call__(self, request: SeenRequest, reply: Script) -> None:
        if is_summary(request):
            self.summaries.append(request.json)
            await self.summariser(request, reply)
        else:
            self.told.append(request.messages)
            await self.strict(request, reply)


def checking(turns: int) -> list[Wire]:
    """A conversation of an agent that reads a file in each turn, about 430 tokens a turn; the last request is open."""
    said: list[Wire] = []
    for turn in range(1, turns + 1):
        log = "\n".join(f"{turn:02d}:{minute:02d} gate {turn} level {turn * 40 + minute} shut" for minute in range(48))
        said += [
            user(request(turn)),
            assistant(None, tool_call(f"c{turn}", "read_file", {"path": f"/srv/weir/gate_{turn}.yaml"})),
            tool(f"c{turn}", log),
            assistant(f"Gate {turn} is shut; its log ends at {turn:02d}:47."),
        ]
    return [*said, user(request(turns + 1))]


def wordy(turns: int) -> list[Wire]:
    """A conversation whose user says more than any notes can hold word for word."""
    said: list[Wire] = []
    for turn in range(1, turns + 1):
        words = " ".join(f"detail{turn}x{word}" for word in range(100))
        said += [user(f"{request(turn)} {words}"), assistant(f"Gate {turn} is shut.")]
    return [*said, user(request(turns + 1))]


def request(turn: int) -> str:
    return f"Request {turn}: please check gate {turn} in /srv/weir/gate_{turn}.yaml and report what you find."


def account(prompt: Iterable[Wire], turns: int) -> tuple[int, int, int, int]:
    """Of the requests 1 to `turns`: verbatim in `prompt`, cut and said so, counted, and lost."""
    text = "\n".join(map(shown, prompt))
    cut = {turn for turn in range(1, turns + 1) if f"[turn {turn}, cut] Request {turn}:" in text}
    verbatim = {turn for turn in range(1, turns + 1) if request(turn) in text} - cut
    stated = re.search(r"\(and (\d+) earlier request", text)
    counted = int(stated[1]) if stated else 0
    return len(verbatim), len(cut), counted, turns - len(verbatim) - len(cut) - counted
