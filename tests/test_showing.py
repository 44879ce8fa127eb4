"""What a client is shown of one answer, however many upstream calls it takes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.chain import message
from proxy.core.conversation import Clarification, Reasoning, Text
from proxy.core.hidden import shown
from proxy.core.steps import Outcome, Prompt, Reply, Report
from proxy.core.usage import Usage
from proxy.dialects.chat.reply import read_answer
from proxy.dialects.sse import SseReader
from proxy.showing import Showing, context
from tests.edges import Reader, events
from tests.replies import chat_chunks, chat_reply, tool_call, usage

OWN = frozenset(["load_skill"])
LOAD = tool_call("w1", "load_skill", {"name": "tone"})
GREP = tool_call("g1", "grep", {"for": "x"})


def report(**more: Any) -> Report:
    known: dict[str, Any] = {"conversation": "c", "tokens": 10, "window": 100}
    return Report(**(known | more))


def prompt(own: frozenset[str] = OWN, **more: Any) -> Prompt:
    return Prompt(messages=(), untouched=False, max_output=None, estimated=0, shape=b"", report=report(**more), own=own)


class Shown:
    """A showing that is fed as an attempt feeds it, and what its client has read."""

    def __init__(self, *, include_usage: bool = True, begun: bool = False) -> None:
        self.reader = Reader(begun)
        self.showing = Showing(self.reader, "real", include_usage=include_usage)

    async def hear(self, *chunks: Any) -> None:
        for event in SseReader(1 << 20).feed(events(*chunks)):
            self.showing.feed(self.showing.read(event))
            if data := self.showing.due():
                await self.reader.write(data)

    async def round(self, *chunks: Any, first: bool = False, **more: Any) -> None:
        await self.showing.begin(prompt(**more), next_round=not first)
        await self.hear(*chunks)

    def end(self) -> None:
        self.reader.read += self.showing.end()

    @property
    def payloads(self) -> list[bytes]:
        return [line[6:] for line in b"".join(self.reader.read).split(b"\n") if line.startswith(b"data: ")]

    @property
    def frames(self) -> list[dict[str, Any]]:
        return [json.loads(data) for data in self.payloads if data != b"[DONE]"]


def put_together(frames: list[dict[str, Any]]) -> dict[str, Any]:
    """The message as a strict reader puts it together: one id, the role first and once, one finish, ordered calls."""
    assert len({(frame["id"], frame["model"], frame["created"]) for frame in frames}) == 1
    choices = [choice for frame in frames for choice in frame["choices"]]
    assert {choice["index"] for choice in choices} == {0}
    deltas = [choice["delta"] for choice in choices]
    assert deltas[0]["role"] == "assistant"
    assert not any(delta.get("role") for delta in deltas[1:])
    finishes = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    assert len(finishes) == 1
    assert choices[-1]["finish_reason"] == finishes[0]
    calls: list[dict[str, Any]] = []
    for delta in deltas:
        for part in delta.get("tool_calls") or ():
            if part["index"] == len(calls):
                calls.append({**part, "function": {"name": "", "arguments": ""}})
            call = calls[part["index"]]
            for name in ("name", "arguments"):
                call["function"][name] += part["function"].get(name) or ""
    text = "".join(delta.get("content") or "" for delta in deltas)
    return {"text": text, "calls": calls, "finish": finishes[0]}


def chunks(text: str | None, *calls: dict[str, Any], id: str = "one", **more: Any) -> list[dict[str, Any]]:
    made = chat_chunks(text, calls=calls, **({"usage": usage(50, 5)} | more))
    return [{**chunk, "id": id, "created": len(id)} for chunk in made]


async def test_a_round_of_one_goes_out_as_it_came() -> None:
    for own in (OWN, frozenset[str]()):
        for said in (chunks("Hello there."), chunks("See.", GREP), chunks(None, GREP)):
            client = Shown()
            await client.round(*said, first=True, own=own)
            client.end()
            assert client.payloads == [*(json.dumps(chunk).encode() for chunk in said), b"[DONE]"]


async def test_nothing_is_given_before_there_is_content() -> None:
    client = Shown()
    said = chunks("Hello", GREP)
    await client.round(said[0], first=True)
    assert (client.reader.read, client.showing.said) == ([], False)
    await client.hear(*said[1:])
    assert (client.showing.said, client.showing.complete) == (True, True)
    assert client.showing.reply().finish == "tool_calls"


@pytest.mark.parametrize("text", ["Let me look.", None])
async def test_rounds_are_one_message_with_one_end(text: str | None) -> None:
    client = Shown()
    await client.round(*chunks(text, LOAD), first=True)
    await client.round(*chunks("Done.", id="three", usage=usage(80, 7)))
    client.end()
    made = put_together(client.frames[:-1])
    assert made == {"text": f"{text}\n\nDone." if text else "Done.", "calls": [], "finish": "stop"}
    last = client.frames[-1]
    assert (last["id"], last["choices"]) == ("one", [])
    assert (last["usage"]["prompt_tokens"], last["usage"]["completion_tokens"]) == (80, 12)
    assert last["weirgate"] == {"rounds": 2, "usage": {"prompt_tokens": 130, "completion_tokens": 12}}
    assert client.payloads[-1] == b"[DONE]"


async def test_a_mixed_round_hands_over_the_clients_call_alone() -> None:
    client = Shown(include_usage=False)
    await client.round(*chunks("Hm.", LOAD), first=True)
    await client.round(*chunks("See.", LOAD, {**GREP, "extra_content": {"google": {"thought_signature": "s"}}}))
    client.end()
    made = put_together(client.frames)
    assert (made["text"], made["finish"]) == ("Hm.\n\nSee.", "tool_calls")
    ((call),) = made["calls"]
    assert (call["id"], call["function"]) == ("g1", GREP["function"])
    assert call["extra_content"] == {"google": {"thought_signature": "s"}}  # its provider wants it back


async def test_our_call_in_the_last_round_is_unseen_and_the_finish_is_stop() -> None:
    client = Shown()
    await client.round(*chunks(None, LOAD), first=True)
    await client.round(*chunks(None, LOAD))
    client.end()
    assert put_together(client.frames[:-1]) == {"text": "", "calls": [], "finish": "stop"}


async def test_a_whole_reply_in_one_frame_is_shown_in_either_round() -> None:
    def whole(text: str, *calls: dict[str, Any], finish: str) -> dict[str, Any]:
        delta = {"role": "assistant", "content": text, "tool_calls": [{"index": n, **c} for n, c in enumerate(calls)]}
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return {"id": "one", "created": 3, "model": "scripted", "choices": [choice]}

    client = Shown()
    await client.round(whole("Let me look.", LOAD, finish="tool_calls"), first=True)
    await client.round({**whole("Done.", GREP, finish="tool_calls"), "usage": usage(80, 7)})
    client.end()
    frames = [{**frame, "model": "scripted"} for frame in client.frames]
    for frame in frames[1:]:  # a later round's frame may repeat the role: it begins no second message of another role
        for choice in frame["choices"]:
            choice["delta"].pop("role", None)
    made = put_together(frames[:-1])
    assert made["text"] == "Let me look.\n\nDone."
    assert [call["id"] for call in made["calls"]] == ["g1"]
    assert frames[-1]["usage"]["completion_tokens"] == 7


async def test_a_plain_call_in_one_frame_keeps_what_only_its_provider_knows() -> None:
    call = {"index": 0, **GREP, "extra_content": {"google": {"thought_signature": "s"}}}
    choice = {"index": 0, "delta": {"role": "assistant", "tool_calls": [call]}, "finish_reason": "tool_calls"}
    frame = {"id": "one", "x": 1, "choices": [choice]}
    client = Shown()
    await client.round(frame, first=True, own=frozenset())
    client.end()
    assert client.payloads == [json.dumps(frame).encode(), b"[DONE]"]


@pytest.mark.parametrize("text", ["Let me look.", None])
@pytest.mark.parametrize("role_apart", [True, False])
async def test_the_role_is_said_first_whatever_is_held_back(text: str | None, role_apart: bool) -> None:
    first = chunks(text, LOAD)
    if not role_apart:
        first = [*first[1:]]
        first[0]["choices"][0]["delta"]["role"] = "assistant"
    client = Shown()
    await client.round(*first, first=True)
    await client.round(*chunks("Done.", id="three"))
    client.end()
    assert put_together(client.frames[:-1])["finish"] == "stop"


async def test_an_attempt_that_failed_before_anything_was_shown_leaves_no_trace() -> None:
    client = Shown()
    await client.round(*chunks("Hello")[:1], first=True)
    await client.showing.begin(prompt())
    await client.hear(*chunks("Again.", id="three"))
    client.end()
    assert client.frames[0]["id"] == "three"
    assert put_together(client.frames[:-1])["text"] == "Again."


@pytest.mark.parametrize("text", ["Let me look.", None])
async def test_a_later_round_that_is_asked_for_again_still_stands_behind_the_earlier_ones(text: str | None) -> None:
    client = Shown()
    await client.round(*chunks(text, LOAD), first=True)
    await client.round(*chunks("Do")[:1])
    await client.showing.begin(prompt())  # the same round again
    await client.hear(*chunks("Done.", id="three", usage=usage(80, 7)))
    client.end()
    assert put_together(client.frames[:-1])["text"] == (f"{text}\n\nDone." if text else "Done.")
    assert client.frames[-1]["usage"]["completion_tokens"] == 12


async def test_a_first_attempts_role_is_not_taken_for_the_seconds() -> None:
    client = Shown()
    await client.round(*chunks("x")[:1], first=True)
    await client.showing.begin(prompt())
    second = chunks(None, LOAD)[1:]
    second[0]["choices"][0]["delta"]["role"] = "assistant"
    await client.hear(*second)
    await client.round(*chunks("Done."))
    client.end()
    assert put_together(client.frames[:-1])["text"] == "Done."


async def test_what_a_head_that_has_gone_cannot_say_any_more_is_said_at_the_end() -> None:
    late = Shown(begun=True)
    await late.round(*chunks("Hello"), first=True, compaction="auto")
    late.end()
    assert b": weirgate tokens=10; window=100; compaction=auto\n\n" in late.reader.read
    early = Shown()
    await early.round(*chunks("Hello"), first=True, compaction="auto")
    early.end()
    assert b": weirgate" not in b"".join(early.reader.read)


async def test_a_body_is_the_upstreams_own_unless_rounds_were_joined() -> None:
    client = Shown()
    client.showing.body = b'{"as": "it came"}'
    reply = Reply(message=message("assistant", (Text(text="Done."),)), finish="stop", usage=None)
    assert client.showing.whole(Outcome(report=report(), reply=reply)) == client.showing.body
    assert client.showing.whole(Outcome(report=report(), reply=None, joined=True)) == client.showing.body
    client.showing.body = json.dumps(chat_reply("x", calls=[GREP])).encode()
    made = json.loads(client.showing.whole(Outcome(report=report(), reply=reply, joined=True, rounds=2, read=130)))
    assert made["choices"][0]["message"] == {"role": "assistant", "content": "Done."}
    assert made["choices"][0]["finish_reason"] == "stop"
    assert made["weirgate"] == {"rounds": 2, "usage": {"prompt_tokens": 130, "completion_tokens": 0}}


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_a_joined_body_tells_and_counts_what_all_rounds_thought(name: str) -> None:
    client = Shown()
    last = chat_reply("Done.", usage={**usage(30, 7), "completion_tokens_details": {"reasoning_tokens": 2, "more": 1}})
    last["choices"][0]["message"][name] = "Warm."
    client.showing.body = json.dumps(last).encode()
    said = message("assistant", (Reasoning(text="Which tone? Warm."), Text(text="Done.")))
    reply = Reply(message=said, finish="stop", usage=Usage(input=30, output=12, reasoning=6))
    made = json.loads(client.showing.whole(Outcome(report=report(), reply=reply, joined=True, rounds=2, read=40)))
    assert made["choices"][0]["message"] == {"role": "assistant", "content": "Done.", name: "Which tone? Warm."}
    assert made["usage"]["completion_tokens_details"] == {"reasoning_tokens": 6, "more": 1}
    del last["choices"][0]["message"][name], last["usage"]["completion_tokens_details"]
    client.showing.body = json.dumps(last).encode()
    made = json.loads(client.showing.whole(Outcome(report=report(), reply=reply, joined=True, rounds=2, read=40)))
    assert made["choices"][0]["message"]["reasoning_content"] == "Which tone? Warm."
    assert made["usage"]["completion_tokens_details"] == {"reasoning_tokens": 6}


def test_what_the_head_says_of_a_prompt() -> None:
    assert context(report(window=None)) == "tokens=10; window=unknown; compaction=none"
    told = context(report(compaction="auto", writer="a b\r\n" + "c" * 200, stopped="paused"))
    assert told == f"tokens=10; window=100; compaction=auto; notes=a_b__{'c' * 123}; paused=paused"


TEXTS = st.one_of(st.none(), st.text("ab \n", min_size=1, max_size=9))


@given(
    st.lists(st.tuples(TEXTS, st.integers(1, 2), st.booleans()), max_size=3),
    TEXTS,
    st.sets(st.sampled_from(["load", "grep"])),
    st.integers(1, 9),
)
async def test_a_stream_and_a_body_say_the_same(
    rounds: list[tuple[str | None, int, bool]], last: str | None, called: set[str], size: int
) -> None:
    client, replies, body = Shown(), [], b""
    said = [
        (text, [tool_call(f"w{n}", "load_skill", "{}") for n in range(loads)], again) for text, loads, again in rounds
    ]
    said.append((last, [{"load": LOAD, "grep": GREP}[name] for name in sorted(called)], False))
    for number, (text, calls, again) in enumerate(said):
        counted = usage(50 + number, 5)
        body = json.dumps(chat_reply(text, calls=calls, usage=counted)).encode()
        reply = read_answer(body)
        assert isinstance(reply, Reply)
        replies.append(reply)
        made = chunks(text, *calls, id="x" * (number + 1), usage=counted, size=size)
        await client.showing.begin(prompt(), next_round=number > 0)
        if again:
            await client.hear(made[0])
            await client.showing.begin(prompt())
        await client.hear(*made)
    client.end()
    streamed = put_together(client.frames[:-1])
    seen = shown([reply.message for reply in replies], OWN)
    calls_left = bool(seen and seen.calls)
    used = Usage(input=50 + len(said) - 1, output=5 * len(said))
    finish = "tool_calls" if calls_left else "stop"
    client.showing.body = body
    outcome = Outcome(
        report=report(), reply=Reply(message=seen, finish=finish, usage=used), joined=True, rounds=len(said), read=9
    )
    whole = json.loads(client.showing.whole(outcome))
    choice = whole["choices"][0]
    assert streamed["text"] == (choice["message"]["content"] or "")
    assert [(call["id"], call["function"]) for call in streamed["calls"]] == [
        (call["id"], call["function"]) for call in choice["message"].get("tool_calls") or ()
    ]
    assert streamed["finish"] == choice["finish_reason"] == finish
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert client.frames[-1]["usage"][name] == whole["usage"][name]


@pytest.mark.parametrize("finish", ["tool_calls", "stop"])
@pytest.mark.parametrize("words", [None, "Hm."])
async def test_what_the_user_is_asked_is_one_more_piece_of_the_message_with_its_data(
    words: str | None, finish: str
) -> None:
    pause = Clarification(id="q1", question="Which?", options=("a", "b"))
    asks = tool_call("q1", "ask_user", {"question": "Which?", "options": ["a", "b"]})
    client = Shown()
    made = chunks(words, asks, id="x", usage=usage(50, 5))
    await client.showing.begin(prompt(OWN | {"ask_user"}))
    await client.hear(*made)
    client.reader.read += client.showing.end(pause)
    streamed = put_together(client.frames[:-1])
    text = "Hm.\n\nWhich?\n\n1. a\n2. b" if words else "Which?\n\n1. a\n2. b"
    assert (streamed["text"], streamed["calls"], streamed["finish"]) == (text, [], "stop")
    data = {"id": "q1", "kind": "clarification_request", "question": "Which?", "options": ["a", "b"]}
    deltas = [choice["delta"] for frame in client.frames for choice in frame["choices"]]
    assert [delta["weirgate"] for delta in deltas if "weirgate" in delta] == [{"pause": data}]
    client.showing.body = json.dumps(chat_reply(words, calls=[asks], usage=usage(50, 5), finish=finish)).encode()
    said = message("assistant", (Text(text=text),))
    outcome = Outcome(report=report(), reply=Reply(message=said, finish="stop", usage=None), joined=True, pause=pause)
    choice = json.loads(client.showing.whole(outcome))["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == (text, "stop")
    assert choice["message"]["weirgate"] == {"pause": data}
    assert "tool_calls" not in choice["message"]
