"""The request bodies: an agent's chat histories, the same on every machine and in every run.

Made from a word list of our own and a seeded generator; nothing is downloaded or copied. Every tool call has its
result and every result its call. Keys stand in the order in which OpenAI's Python SDK writes them: messages first.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

KB = 1024
MB = 1024 * KB
GROWN = 12  # files in a growing series
SALT = "%%%%SALTSALT%%%%"  # load.c writes 16 new characters over each
TIGHT = "tight"  # the model whose window is a fraction of a 2 MB history; the gateway's policy says so

WORDS = tuple(
    """
    river weir gate water level stone bank flow spring flood meadow bridge mill wheel channel sluice timber iron
    rope barge cargo harbour lantern morning evening repair measure record inspect open close raise lower report
    valley north south east west season rain frost thaw current depth width gauge keeper ledger page column total
    account letter answer question plan change remove add rename build test release module function value result
    error retry timeout limit window token budget
    """.split()
)


class Function(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    arguments: str


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    type: str = "function"
    function: Function


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""


class Bodies(msgspec.Struct, frozen=True, kw_only=True):
    """Name -> the files that the generator cycles over; and every model they ask for, for peers that list theirs."""

    files: dict[str, tuple[Path, ...]]
    models: tuple[str, ...]


def prose(chance: random.Random, size: int) -> str:
    """About `size` ASCII characters of pseudo text, with a path or a number in it now and then."""
    parts: list[str] = []
    length = 0
    while length < size:
        kind = chance.random()
        if kind < 0.03:
            part = f"src/{chance.choice(WORDS)}/{chance.choice(WORDS)}.py:{chance.randrange(1, 900)}"
        elif kind < 0.06:
            part = str(chance.randrange(10, 1_000_000))
        elif kind < 0.12:
            part = chance.choice(WORDS) + ".\n"
        else:
            part = chance.choice(WORDS)
        parts.append(part)
        length += len(part) + 1
    return " ".join(parts)[:size]


TOOLS = tuple(
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{about} Paths are relative to the root of the project.",
            "parameters": {
                "type": "object",
                "properties": {
                    "path": {"type": "string", "description": "the file or folder"},
                    "text": {"type": "string", "description": "what to look for or to write"},
                    "limit": {"type": "integer", "minimum": 1, "maximum": 2000},
                },
                "required": ["path"],
                "additionalProperties": False,
            },
        },
    }
    for name, about in (
        ("read_file", "Read a file and return its lines with their numbers."),
        ("search", "Find the lines that hold a text, in a file or below a folder."),
        ("write_file", "Write a file, whole, and return what changed."),
        ("run_tests", "Run the tests below a folder and return what failed."),
    )
)


def agent_history(count: int, size: int) -> tuple[Message, ...]:
    """`count` messages of an agent at work, whose JSON has about `size` bytes (within 3 %); the last is a user's."""
    share = 100  # characters per tool result; the first try shows what all the rest weighs
    for _ in range(3):
        messages = _history(count, share)
        results = sum(message.role == "tool" for message in messages)
        share = max(16, share + (size - len(msgspec.json.encode(messages))) // results)
    return messages


def _history(count: int, share: int) -> tuple[Message, ...]:
    """Turns of ten: a request, four calls with their results, an answer."""
    chance = random.Random(count)
    messages = [Message(role="system", content="You are a careful engineer. " + prose(chance, 900))]
    while len(messages) < count - 1:
        place = (len(messages) - 1) % 10
        if place == 0:
            messages.append(Message(role="user", content=prose(chance, 240)))
        elif place == 9 or len(messages) == count - 2:
            messages.append(Message(role="assistant", content=prose(chance, 300)))
        else:
            messages.extend(_tool_round(chance, len(messages), share))
    messages.append(Message(role="user", content="Go on, please, and say what is left. " + prose(chance, 120)))
    return tuple(messages)


def _tool_round(chance: random.Random, serial: int, share: int) -> Iterator[Message]:
    name = chance.choice(("read_file", "search", "write_file", "run_tests"))
    path = f"src/{chance.choice(WORDS)}/{chance.choice(WORDS)}.py"
    arguments = msgspec.json.encode({"path": path, "text": prose(chance, 60), "limit": 400}).decode()
    function = Function(name=name, arguments=arguments)
    call = ToolCall(id=f"call_{serial:05d}{chance.randrange(16**8):08x}", function=function)
    yield Message(role="assistant", content=prose(chance, 80), tool_calls=(call,))
    # a generator of its own, so that tries with different shares differ in nothing else
    length = int(share * random.Random(serial).uniform(0.5, 1.5))
    yield Message(role="tool", tool_call_id=call.id, content=prose(chance, length))


def small_talk() -> tuple[Message, ...]:
    """Three messages, about 1 KB as a body."""
    chance = random.Random("small")
    return (
        Message(role="user", content="Please look after the weir. " + prose(chance, 380)),
        Message(role="assistant", content=prose(chance, 160)),
        Message(role="user", content=prose(chance, 240)),
    )


def encoded(messages: Sequence[Message], *, model: str = "bench", stream: bool = False, tools: bool = False) -> bytes:
    """The body as a client sends it, compact."""
    body: dict[str, object] = {"messages": messages, "model": model}
    if stream:
        body["stream"] = True
        body["stream_options"] = {"include_usage": True}
    if tools:
        body["tools"] = TOOLS
    return msgspec.json.encode(body)


def grown(messages: Sequence[Message], count: int) -> Iterator[tuple[Message, ...]]:
    """`count` histories, each the one before and one more message, which is new in every request that sends it."""
    chance = random.Random("grown")
    added = tuple(
        Message(role="user", content=f"Note {number} ({SALT}): {prose(chance, 400)}") for number in range(1, count + 1)
    )
    for number in range(1, count + 1):
        yield (*messages, *added[:number])


def salted(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The same history with something new in each message, so that no request has a message of an earlier one."""
    return tuple(msgspec.structs.replace(message, content=f"{SALT} {message.content}") for message in messages)


def retold(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The same history as another conversation: its first request (which the system message precedes) differs."""
    first = msgspec.structs.replace(messages[1], content=f"At the other weir: {messages[1].content}")
    return (messages[0], first, *messages[2:])


def write_bodies(folder: Path, *, paced_chunks: int, held_chunks: int) -> Bodies:
    """All bodies as files in `folder`. A paced stream has `paced_chunks`, one every 20 ms; one that is only held open
    `held_chunks`, one every 100 ms."""
    large = agent_history(400, 2 * MB)
    paced, held = f"sse-{paced_chunks}-20", f"sse-{held_chunks}-100"
    made: dict[str, tuple[bytes, ...]] = {
        "1 KB": (encoded(small_talk()),),
        "1 KB new": (encoded(salted(small_talk())),),
        "300 KB": (encoded(agent_history(150, 300 * KB), tools=True),),
        "1 MB of 20": (encoded(agent_history(20, MB), tools=True),),
        "1 MB of 2000": (encoded(agent_history(2000, MB), tools=True),),
        "2 MB": (encoded(large, tools=True),),
        "2 MB cold": (encoded(salted(large), tools=True),),
        "2 MB grown": tuple(encoded(history, tools=True) for history in grown(large, GROWN)),
        "2 MB tight": (encoded(retold(large), model=TIGHT, tools=True),),
        "burst": (encoded(small_talk(), model="sse-200-0", stream=True),),
        "paced": (encoded(small_talk(), model=paced, stream=True),),
        "held": (encoded(small_talk(), model=held, stream=True),),
    }
    files: dict[str, tuple[Path, ...]] = {}
    for name, contents in made.items():
        files[name] = tuple(folder / f"{name.replace(' ', '-')}-{number}.json" for number in range(len(contents)))
        for path, content in zip(files[name], contents, strict=True):
            path.write_bytes(content)
    return Bodies(files=files, models=("bench", TIGHT, "sse-200-0", paced, held))
