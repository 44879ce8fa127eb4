"""A scripted model that calls `load_skill`, through the whole application: one message, one end, one row per round.

The JSON answer says what the stream says, whatever the model does and whatever fails in a later round.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from proxy.core.rounds import MOST
from tests.fakes import Script, SeenRequest, chat_chunks
from tests.scenarios.acts import Act, refusing
from tests.scenarios.gate import Answer, Gate, Wire, assistant, prompts, tool, user
from tests.scenarios.skilled import FOUND, GREP, TONE, loads, saying, support

both = pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
NAMED = {"x-session-id": "talk"}


async def ask(weir: Gate, stream: bool, messages: Sequence[Wire] = (user("Write to Ann."),), **more: Any) -> Answer:
    if stream:
        more = {"stream_options": {"include_usage": True}, **more}
    return await weir.ask(messages, model="support", headers=NAMED, stream=stream, **more)


def told(answer: Answer) -> tuple[object, ...]:
    """All that a client can tell of an answer."""
    last = (answer.frames if answer.streamed else [answer.json])[-1]
    calls = [(call["id"], call["function"]) for call in answer.message.get("tool_calls") or ()]
    sums = {name: value for name, value in answer.usages[-1].items() if not name.endswith("_details")}
    return answer.status, answer.text, calls, answer.finish, len(answer.usages), sums, last.get("weirgate")


ALONE = (saying("Let me look.", loads()), saying("Dear Ann."))
SCRIPTS: dict[str, tuple[tuple[Act, ...], str, int, str]] = {
    "no call": ((saying("Dear Ann."),), "Dear Ann.", 0, "stop"),
    "theirs": ((saying("See.", FOUND),), "See.", 1, "tool_calls"),
    "alone": (ALONE, "Let me look.\n\nDear Ann.", 0, "stop"),
    "without a word": ((saying(None, loads()), saying("Dear Ann.")), "Dear Ann.", 0, "stop"),
    "mixed": ((saying("See.", loads(), FOUND),), "See.", 1, "tool_calls"),
    "mixed in a later round": ((saying("Hm.", loads()), saying(None, FOUND, loads(id="w2"))), "Hm.", 1, "tool_calls"),
    "twice": (
        (saying(None, loads()), saying("Hm.", loads(id="w2")), saying("Dear Ann.")),
        "Hm.\n\nDear Ann.",
        0,
        "stop",
    ),
    "two at once": ((saying(None, loads(), loads(id="w2")), saying("Dear Ann.")), "Dear Ann.", 0, "stop"),
    "bad slug": ((saying(None, loads("nobody")), saying("Dear Ann.")), "Dear Ann.", 0, "stop"),
    "no ids": ((saying(None, loads(id=""), loads(id="")), saying("Dear Ann.")), "Dear Ann.", 0, "stop"),
    "for ever": ((saying(None, loads()),), "", 0, "stop"),
    "for ever with words": ((saying("Hm.", loads()),), "\n\n".join(["Hm."] * (MOST + 1)), 0, "stop"),
}


@pytest.mark.parametrize("name", SCRIPTS)
async def test_the_client_gets_one_message_and_the_books_one_row_per_round(name: str, tmp_path: Path) -> None:
    acts, text, calls, finish = SCRIPTS[name]
    seen = []
    for stream in (False, True):
        async with support(tmp_path / str(stream), *acts) as (weir, up):
            answer = await ask(weir, stream, tools=[GREP])
            rows = await weir.rows()
            assert (answer.text, answer.finish, len(answer.message.get("tool_calls") or ())) == (text, finish, calls)
            assert answer.done is stream
            assert [row.purpose for row in rows] == ["chat", *["tool_round"] * (len(rows) - 1)]
            assert {row.parent for row in rows[1:]} <= {rows[0].id}
            assert answer.usages[-1]["completion_tokens"] == sum(row.output for row in rows)
            assert answer.usages[-1]["prompt_tokens"] == rows[-1].input
            assert len(rows) <= MOST + 1
            seen.append((told(answer), [entry.request.json["messages"] for entry in up.ledger]))
    assert seen[0] == seen[1]


@both
async def test_the_next_call_has_the_whole_of_what_was_said(stream: bool, tmp_path: Path) -> None:
    async with support(tmp_path, *ALONE, saying("See.", loads(id="w2"), FOUND), saying("Done.")) as (weir, up):
        first = await ask(weir, stream)
        talk = [user("Write to Ann."), first.message, user("And find it.")]
        second = await ask(weir, stream, talk, tools=[GREP])
        await ask(weir, stream, [*talk, second.message, tool("g1", "found")], tools=[GREP])
        before: list[Wire] = []
        for prompt in prompts(up)[1:]:
            assert prompt[: len(before)] == before
            before = prompt
        assert [message["role"] for message in before[-4:]] == ["user", "assistant", "tool", "tool"]
        assert "loaded already" in before[-2]["content"]


@both
async def test_a_later_round_that_nobody_began_is_repeated(stream: bool, tmp_path: Path) -> None:
    for number, text in enumerate(("Let me look.", None)):
        acts = (saying(text, loads()), refusing(503), saying("Dear Ann."))
        async with support(tmp_path / str(number), *acts) as (weir, up):
            answer = await ask(weir, stream)
            assert answer.text == (f"{text}\n\nDear Ann." if text else "Dear Ann.")
            assert answer.finish == "stop"
            assert [row.purpose for row in await weir.rows()] == ["chat", "tool_round", "retry"]
            assert prompts(up)[1] == prompts(up)[2]
            if stream:
                roles = [(choice["delta"]).get("role") for frame in answer.frames for choice in frame["choices"]]
                assert (roles[0], set(roles[1:])) == ("assistant", {None})


@both
async def test_what_fails_in_a_later_round_is_told_and_never_looks_whole(stream: bool, tmp_path: Path) -> None:
    async with support(tmp_path, saying("Let me look.", loads()), refusing(400)) as (weir, _):
        answer = await ask(weir, stream)
        assert answer.code == "upstream_rejected"
        assert answer.status == (200 if stream else 400)
        assert not answer.done
        assert [row.status for row in await weir.rows()] == ["ok", "failed"]
        assert (await weir.stored())["hidden"] == 0


@both
async def test_an_overflow_in_a_later_round_is_cured_though_earlier_words_have_gone_out(
    stream: bool, tmp_path: Path
) -> None:
    def refusal() -> Act:
        limit = "This model's maximum context length is 3000 tokens. However, your messages resulted in 4000 tokens."
        return refusing(400, message=limit)

    words = " ".join(["harbour"] * 60)
    talk: list[Wire] = []
    for turn in range(30):
        talk += [user(f"Question {turn}: {words}?"), assistant(f"Answer {turn}: {words}.")]
    acts = (saying("Let me look.", loads()), refusal(), saying("Dear Ann."))
    async with support(tmp_path, *acts) as (weir, up):
        answer = await ask(weir, stream, [*talk, user("Write to Ann.")])
        assert (answer.text, answer.finish) == ("Let me look.\n\nDear Ann.", "stop")
        assert answer.compaction == "recovered"
        _, refused, cured = prompts(up)
        assert cured[-2:] == refused[-2:]
        assert TONE in cured[-1]["content"]
        assert len(cured) < len(refused)
        assert [row.purpose for row in await weir.rows()] == ["chat", "tool_round", "recovery"]


async def test_a_stream_that_breaks_off_in_a_later_round_ends_with_an_error(tmp_path: Path) -> None:
    async def broken(_: SeenRequest, reply: Script) -> None:
        await reply.head(200, {"content-type": "text/event-stream"})
        for chunk in chat_chunks("Dear", finish=None):
            await reply.event(chunk)
        await reply.reset()

    async with support(tmp_path, saying("Let me look.", loads()), broken) as (weir, _):
        answer = await ask(weir, True)
        assert answer.text == "Let me look.\n\nDear"
        assert answer.error is not None
        assert not answer.done
        assert answer.finish is None
        assert [row.status for row in await weir.rows()] == ["ok", "partial"]


@both
async def test_a_skill_that_is_withdrawn_is_not_loaded_any_more(stream: bool, tmp_path: Path) -> None:
    async with support(tmp_path, *ALONE, saying(None, loads(id="w2")), saying("Done.")) as (weir, up):
        first = await ask(weir, stream)
        place = tmp_path / "skills" / "shared" / "tone" / "SKILL.md"
        place.write_text(f"---\nname: tone\ndescription: Before a letter.\nusers: [anna]\n---\n{TONE}\n")
        weir.app.skills.reload()
        weir.app.places.forget()
        await ask(weir, stream, [user("Write to Ann."), first.message, user("And Bob.")])
        assert "there is no skill" in prompts(up)[-1][-1]["content"]
        assert up.ledger[-1].request.json["tools"] == up.ledger[0].request.json["tools"]  # frozen
