"""Histories that the tests of compaction share: short builders, a strategy for whole ones, and a strict validator.

Nothing here is taken from the code under test but the words (`Message`, blocks) and the identity of a message.
"""

from __future__ import annotations

import json

from hypothesis import strategies as st

from proxy.core import chain, measure
from proxy.core.conversation import Media, Message, Text, ToolCall, ToolResult
from proxy.core.policy import Policy
from proxy.core.steps import Limits
from proxy.core.tail import History

START = chain.begin(b"s" * 32)
PICTURE = Media(kind="image", digest="ab" * 16, size=900, width=512, height=512, wire=b'{"type":"image_url"}')


def system(text: str) -> Message:
    return chain.message("system", (Text(text=text),))


def user(text: str, *media: Media) -> Message:
    return chain.message("user", (Text(text=text, media=media),))


def model(text: str, *calls: ToolCall) -> Message:
    said = (Text(text=text),) if text else ()
    return chain.message("assistant", (*said, *calls))


def call(id: str, name: str = "read_file", **arguments: object) -> ToolCall:
    return ToolCall(id=id, name=name, arguments=json.dumps(arguments))


def result(id: str, text: str, *media: Media) -> Message:
    return chain.message("tool", (ToolResult(call_id=id, text=text, media=media),))


def lines(count: int, mark: str = "line") -> str:
    """About eleven estimated tokens a line."""
    return "\n".join(f"{mark} {number}: the quick brown fox goes on and on" for number in range(count))


def loop(turns: int, size: int = 20) -> tuple[Message, ...]:
    """An agent's history: in each turn a request, a call with its result, an answer."""
    said: list[Message] = []
    for turn in range(turns):
        said += [
            user(f"Look at src/part_{turn}.py and tell me about ticket ABC-{turn + 100}."),
            model("", call(f"c{turn}", path=f"src/part_{turn}.py")),
            result(f"c{turn}", lines(size, f"part {turn}")),
            model(f"Part {turn} holds value_{turn}."),
        ]
    return tuple(said)


def history(messages: tuple[Message, ...], scale: float = 1.0, fixed: int = 3) -> History:
    sizes = tuple(round(item.tokens * scale) for item in messages)
    return History(messages, chain.follow(START, messages), sizes, fixed, scale)


def room(window: int, max_output: int | None = None) -> measure.Room:
    found = measure.room(Policy(), Limits(total=window), max_output)
    assert found is not None
    return found


def flaws(messages: tuple[Message, ...]) -> list[str]:
    """What a strict provider would refuse: each call answered exactly once right behind it, nothing empty."""
    found: list[str] = []
    open_calls: list[str] = []
    for place, item in enumerate(messages):
        if item.role == "tool":
            ids = [block.call_id for block in item.blocks if isinstance(block, ToolResult)]
            if len(ids) != 1 or ids[0] not in open_calls:
                found.append(f"{place}: a result of no open call")
            else:
                open_calls.remove(ids[0])
        else:
            if open_calls:
                found.append(f"{place}: calls without a result: {open_calls}")
            open_calls = [block.id for block in item.blocks if isinstance(block, ToolCall)]
            if open_calls and (item.role != "assistant" or len(set(open_calls)) < len(open_calls)):
                found.append(f"{place}: calls of the wrong role, or one id twice")
            if item.role not in ("system", "developer", "user", "assistant"):
                found.append(f"{place}: unknown role {item.role}")
        if not any(
            isinstance(block, ToolCall)
            or (isinstance(block, Text | ToolResult) and (block.text.strip() or block.media))
            for block in item.blocks
        ):
            found.append(f"{place}: empty")
    if open_calls:
        found.append(f"end: calls without a result: {open_calls}")
    return found


WORDS = (
    "the a file src/app/main.py https://example.com/a?b=1 4711 ABC-17 run_tests naïve 日本語 error: E501 $ ` \n"
).split(" ")
texts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=40).map(" ".join).filter(lambda text: bool(text.strip()))
long_texts = st.builds(lambda text, times: (text + " ") * times, texts, st.integers(1, 30))


@st.composite
def turn(draw: st.DrawFn, number: int) -> list[Message]:
    said = [user(draw(st.one_of(texts, long_texts))) for _ in range(draw(st.integers(1, 2)))]
    if draw(st.integers(0, 5)) == 0:
        said.insert(draw(st.integers(0, len(said))), system(draw(texts)))
    for step in range(draw(st.integers(0, 3))):
        ids = [f"c{number}_{step}_{place}" for place in range(draw(st.integers(1, 3)))]
        said.append(model(draw(st.sampled_from(["", "Let me look."])), *(call(id, path=draw(texts)) for id in ids)))
        said.extend(result(id, draw(st.one_of(texts, long_texts))) for id in draw(st.permutations(ids)))
    if draw(st.booleans()):
        said.append(model(draw(texts)))
    return said


@st.composite
def conversations(draw: st.DrawFn) -> tuple[Message, ...]:
    """Sound histories: system messages anywhere, neighbouring user messages, parallel calls, open loops."""
    said = [system(draw(texts))] if draw(st.booleans()) else []
    if draw(st.integers(0, 4)) == 0:
        said.append(model("Hello, how can I help?"))
    for number in range(draw(st.integers(1, 6))):
        said.extend(draw(turn(number)))
    return tuple(said)


@st.composite
def broken(draw: st.DrawFn) -> tuple[Message, ...]:
    """Histories as bad clients send them: results lost, doubled, moved, orphaned; empty messages; one id twice."""
    said = list(draw(conversations()))
    for _ in range(draw(st.integers(1, 6))):
        place = draw(st.integers(0, len(said)))
        match draw(st.integers(0, 5)):
            case 0 if said:
                said.pop(place % len(said))
            case 1 if said:
                said.insert(place, said[draw(st.integers(0, len(said) - 1))])
            case 2:
                said.insert(place, result(draw(st.sampled_from(["c0_0_0", "zz"])), draw(st.sampled_from(["", "late"]))))
            case 3:
                said.insert(place, draw(st.sampled_from([user(" "), model(""), system("\n")])))
            case 4:
                said.insert(place, model("", call("same", a=1), call("same", a=2)))
            case _:
                said.insert(place, draw(st.sampled_from([result("same", "x"), result("same", ""), user("Go on.")])))
    return tuple(said)
