"""What fails in a later round, and who leaves in the middle of one: an honest error, and nothing that looks whole."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.clients import hearing, loading, programs, wire
from tests.clients.hearing import Heard
from tests.clients.loading import Key, Say, load
from tests.durability.asking import Reply, chat
from tests.durability.process import running
from tests.fakes import Script, ScriptedUpstream, SeenRequest, chat_chunks, error_body

Act = Callable[[SeenRequest, Script], Awaitable[None]]
LOOK, DEAR = "Let me look.", "Dear"
LEAVES = 1.0
"""Seconds within which a provider is left whose client has left."""

pytestmark = pytest.mark.timeout(240)


async def internal(_: SeenRequest, reply: Script) -> None:
    await reply.json(500, error_body("It broke.", type="server_error"))


async def nobody(_: SeenRequest, reply: Script) -> None:
    await reply.reset()


async def begun(asked: SeenRequest, reply: Script) -> None:
    """Half of an answer."""
    if asked.stream:
        await reply.head(200, {"content-type": "text/event-stream"})
        for chunk in chat_chunks(DEAR, finish=None):
            await reply.event(chunk)
    else:
        await reply.head(200, {"content-type": "application/json"}, length=500)
        await reply.write(b'{"id": "x", "choices": [{"index": 0, ')


async def broken(asked: SeenRequest, reply: Script) -> None:
    await begun(asked, reply)
    await reply.close()


async def error_inside(asked: SeenRequest, reply: Script) -> None:
    error = error_body("It broke.", type="server_error")
    if asked.stream:
        await begun(asked, reply)
        await reply.event(error)
        await reply.event(b"[DONE]")
        await reply.end()
    else:
        await reply.json(200, error)


async def endless(asked: SeenRequest, reply: Script) -> None:
    """`[DONE]` without a finish; as JSON, an answer without a choice."""
    if asked.stream:
        await reply.sse(chat_chunks(DEAR, finish=None))
    else:
        await reply.json(200, {"id": "x", "object": "chat.completion", "choices": []})


# name: (what the provider does in the second round, whether that says something in a stream first)
FAULTS: dict[str, tuple[Act, bool]] = {
    "500": (internal, False),
    "reset": (nobody, False),
    "breaks off": (broken, True),
    "error inside": (error_inside, True),
    "no finish": (endless, True),
}
KEYS = tuple(
    Key(fault, words, mode) for fault in FAULTS for words in ("with words", "without") for mode in ("json", "sse")
)


class Failing(loading.Model):
    """Loads a skill, with or without a word before, and fails in the second round."""

    async def __call__(self, request: SeenRequest, reply: Script) -> None:
        key = Key.of(request)
        if len(request.messages) > 2:
            await FAULTS[key.case][0](request, reply)
        else:
            await self.say(first(key), request, reply)


def first(key: Key) -> Say:
    return Say(LOOK if key.manner == "with words" else None, (load(),))


@pytest.fixture(scope="module", params=hearing.CLIENTS)
def heard(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Heard:
    programs.need(request.param)
    return asyncio.run(hearing.hear(request.param, tmp_path_factory.mktemp(request.param), KEYS, model=Failing()))


def shown(key: Key) -> str:
    """What a stream has told of before it fails."""
    said = [LOOK] * (key.manner == "with words") + [DEAR] * FAULTS[key.case][1]
    return "\n\n".join(said)


def test_a_later_round_that_fails_is_an_error_and_nothing_else(heard: Heard) -> None:
    wrong = []
    for key, answers in heard.answers.items():
        (answer,) = answers
        text = shown(key) if key.stream else ""
        error = answer["error"] or {}
        told_status = (error.get("status") or 0) >= 500
        # Once text has gone out the status has, too; then a frame says it.
        honest = bool(error) if text else told_status
        if not honest or answer["finish"] or answer["text"] not in ("", text) or answer["calls"]:
            wrong.append(f"{key}: {answer}")
        if answer.get("faults") or (heard.client == "wire" and answer["text"] != text):
            wrong.append(f"{key}: {answer}")
    assert wrong == []


def test_both_rounds_have_their_rows(heard: Heard) -> None:
    for key, rows in heard.rows.items():
        said = key.stream and FAULTS[key.case][1]
        assert [(row["purpose"], row["status"]) for row in rows] == [
            ("chat", "ok"),
            ("tool_round", "partial" if said else "failed"),
        ], key
        assert rows[1]["parent"] == rows[0]["id"]
        assert len(heard.asked[key]) == 2, key


class Patient(loading.Model):
    """Says nothing in the second round until `told`, and then fails or goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.told = asyncio.Event()

    async def __call__(self, request: SeenRequest, reply: Script) -> None:
        key = Key.of(request)
        if len(request.messages) == 2:
            await self.say(first(key), request, reply)
            return
        await reply.hang(self.told)
        await (self.say(Say(DEAR), request, reply) if key.case == "goes on" else internal(request, reply))


@pytest.mark.parametrize("case", ["goes on", "fails"])
async def test_what_comes_after_the_held_head_is_told_in_frames(case: str, tmp_path: Path) -> None:
    """The head of a stream goes out after `server.hold` though no round has said anything: then no status is left."""
    key = Key(case, "without", "sse")
    loading.installed(tmp_path)
    model = Patient()
    async with (
        ScriptedUpstream(model) as up,
        running(up.url, tmp_path, "--config", "weir.yaml", server__hold=0.1) as weir,
    ):
        with await weir.connect() as line:
            await line.send(chat("support", str(key), stream=True, id="held", user=str(key)))
            await up.arrived(2)
            status, headers = await line.head()
            model.told.set()
            seen = wire.answer(Reply(status, headers, await line.rest()), usage=False)
        await weir.still()
        rows = await hearing.listed(weir)
    assert (status, seen["faults"]) == (200, [])
    if case == "goes on":
        assert (seen["text"], seen["finish"], seen["error"]) == (DEAR, ["stop"], None)
    else:
        assert (seen["text"], seen["finish"], bool(seen["error"])) == ("", [], True)
    assert [row["status"] for row in rows] == ["ok", "ok" if case == "goes on" else "failed"]


# -- leaving ----------------------------------------------------------------------------------------------------------


class Hanging(loading.Model):
    """Loads a skill and then goes silent: before its answer, or in the middle of it."""

    async def __call__(self, request: SeenRequest, reply: Script) -> None:
        key = Key.of(request)
        if len(request.messages) > 2:
            if key.case == "middle":
                await begun(request, reply)
            await reply.hang()
        else:
            await self.say(first(key), request, reply)


@pytest.mark.parametrize("words", ["with words", "without"])
@pytest.mark.parametrize("stage", ["before", "middle"])
@pytest.mark.parametrize("mode", ["json", "sse"])
async def test_who_leaves_in_a_later_round_stops_it(mode: str, stage: str, words: str, tmp_path: Path) -> None:
    key = Key(stage, words, mode)
    loading.installed(tmp_path)
    async with (
        ScriptedUpstream(Hanging()) as up,
        running(up.url, tmp_path, "--config", "weir.yaml") as weir,
    ):
        with await weir.connect() as line:
            await line.send(chat("support", str(key), stream=key.stream, id="leaving", user=str(key)))
            last = await up.arrived(2)
            wanted = shown_before_leaving(key)
            if wanted:
                status, headers = await line.head()
                read = b""
                while Reply(status, headers, read[: read.rfind(b"\n\n")]).text != wanted:
                    read += await line.piece()
            left = time.monotonic()
        async with asyncio.timeout(LEAVES):
            await last.gone.wait()
        print(f"{key}: left after {time.monotonic() - left:.3f} s")
        await weir.still()
        rows = await hearing.listed(weir)
    assert [(row["purpose"], row["status"], row["parent"]) for row in rows] == [
        ("chat", "ok", None),
        ("tool_round", "cancelled", rows[0]["id"]),
    ]
    assert rows[1]["duration"] is not None


def shown_before_leaving(key: Key) -> str:
    """What a stream has said when its second round goes silent."""
    if not key.stream:
        return ""
    return "\n\n".join([LOOK] * (key.manner == "with words") + [DEAR] * (key.case == "middle"))


class Asking(loading.Model):
    """Asks the user and never ends; whoever goes on all the same is answered."""

    async def __call__(self, request: SeenRequest, reply: Script) -> None:
        if len(request.messages) > 2:
            await self.say(Say(DEAR), request, reply)
        elif request.stream:
            await reply.head(200, {"content-type": "text/event-stream"})
            for chunk in chat_chunks(LOOK, calls=(loading.question().wire,), finish=None):
                await reply.event(chunk)
            await reply.hang()
        else:
            await begun(request, reply)
            await reply.hang()


@pytest.mark.parametrize("mode", ["json", "sse"])
async def test_who_leaves_before_a_question_is_whole_was_asked_nothing(mode: str, tmp_path: Path) -> None:
    key = Key("leaves", "asking", mode)
    loading.installed(tmp_path)
    async with (
        ScriptedUpstream(Asking()) as up,
        running(up.url, tmp_path, "--config", "weir.yaml") as weir,
    ):
        with await weir.connect() as line:
            await line.send(chat("support", str(key), stream=key.stream, id="leaving", user=str(key)))
            last = await up.arrived(1)
            if key.stream:
                status, headers = await line.head()
                read = b""
                while Reply(status, headers, read[: read.rfind(b"\n\n")]).text != LOOK:
                    read += await line.piece()
                assert b"Which Ann" not in read
        async with asyncio.timeout(LEAVES):
            await last.gone.wait()
        await weir.still()
        talk = [("user", str(key)), ("assistant", LOOK), ("user", "The second.")]
        messages = [{"role": role, "content": words} for role, words in talk]
        with await weir.connect() as line:
            await line.send(chat("support", messages, stream=False, id="back", user=str(key)))
            await line.head()
            await line.rest()
        rows = await hearing.listed(weir)
    assert [row["status"] for row in rows] == ["cancelled", "ok"]
    assert up.ledger[1].request.messages[-2:] == messages[-2:]
