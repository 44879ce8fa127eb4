"""A known beginning is compared and not read again; whatever is known, a body is read as it would be from nothing."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from proxy.core import chain
from proxy.core.conversation import Message
from proxy.core.errors import Malformed
from proxy.core.recognition import recognise
from proxy.core.steps import Call, Caller
from proxy.dialects.chat.messages import read_message
from proxy.dialects.chat.request import Bounds, Tools, decode_call
from proxy.upstream.beginnings import LEAST, Beginnings

CALLER = Caller(tenant="t", key="k")
START = chain.begin(b"s" * 32)
WRITERS: list[dict[str, Any]] = [{"separators": (",", ":")}, {}, {"indent": 1}, {"ensure_ascii": False}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"messages": [1]}}}]


def said(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def talk(turns: int, size: int = 600) -> list[dict[str, Any]]:
    """A history that is long enough to be kept."""
    spoken = [said("system", "Be brief.")]
    for turn in range(turns):
        spoken += [said("user", f"{turn} é " + "word " * (size // 5)), said("assistant", f"answer {turn}")]
    return [*spoken, said("user", "And now?")]


def body(messages: list[Any], how: dict[str, Any] | None = None, **more: Any) -> bytes:
    return json.dumps({"model": "m", "messages": messages, **more}, **(how or WRITERS[0])).encode()


class Read:
    """Decodes, and counts what it was given."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, wire: bytes, index: int) -> Message:
        self.count += 1
        return read_message(wire, index)


def asked(memory: Beginnings, raw: bytes, caller: Caller = CALLER, read: Read | None = None) -> Call:
    """One call from end to end: decoded, recognised, remembered."""
    own = memory.of(caller)
    call = decode_call(raw, caller, read or read_message, {}, None, own)
    own.keep(raw, recognise(START, call.messages, call.known))
    return call


def same(found: Call, raw: bytes) -> bool:
    """Whether this is the call that is decoded from nothing, the raw messages apart, which stand in `history`."""
    fresh = decode_call(raw, CALLER, read_message, {})
    plain = [msgspec.structs.replace(each, fields={}, history=b"", known=None) for each in (found, fresh)]
    fields = [{**each.fields, "messages": b""} for each in (found, fresh)]
    return plain[0] == plain[1] and fields[0] == fields[1] and bytes(found.history) == bytes(fresh.history)


@pytest.mark.parametrize("how", WRITERS)
def test_a_history_that_grew_is_read_where_it_is_new(how: dict[str, Any]) -> None:
    memory, read = Beginnings(), Read()
    history = talk(12)
    first = asked(memory, body(history, how), read=read)
    assert (first.known, read.count) == (None, len(history))
    raw = body([*history, said("assistant", "so"), said("user", "more")], how, tools=TOOLS)
    second = asked(memory, raw, read=read)
    assert second.known is not None
    assert len(second.known.messages) == len(history)
    assert read.count == len(history) + 2
    assert all(one is other for one, other in zip(first.messages, second.messages, strict=False))
    assert same(second, raw)


@given(
    lengths=st.lists(st.tuples(st.integers(0, 14), st.integers(0, 14), st.sampled_from(WRITERS)), max_size=6),
    size=st.sampled_from([0, 300, 2000]),
)
def test_whatever_came_before_a_body_is_read_as_from_nothing(
    lengths: list[tuple[int, int, dict[str, Any]]], size: int
) -> None:
    """Histories that grow, go back and are edited anywhere, in any writing."""
    memory = Beginnings()
    for turns, edited, how in lengths:
        history = talk(turns, size)
        if edited < len(history):
            history[edited] = said(history[edited]["role"], "edited")
        raw = body(history, how)
        assert same(asked(memory, raw), raw)
        assert same(asked(memory, raw), raw)


def test_an_edit_or_a_rewind_keeps_what_lies_before_it() -> None:
    memory = Beginnings()
    history = talk(20)
    asked(memory, body(history))
    for told in (history[:-3], [*history[:-1], said("user", "other")], [*history[:40], said("user", "x" * 999)]):
        found = asked(memory, body(told))
        assert found.known is not None
        assert len(found.known.messages) == len(told) - 1
        assert same(found, body(told))


def test_a_change_of_the_same_length_is_a_change() -> None:
    memory = Beginnings()
    history = talk(20)
    asked(memory, body(history))
    told = [*history[:35], said("user", history[35]["content"][::-1]), *history[36:]]
    found = asked(memory, body(told))
    assert found.known is None
    assert same(found, body(told))
    near = [*history[:39], said("user", history[39]["content"][::-1]), *history[40:]]
    found = asked(memory, body(near))
    assert found.known is not None
    assert len(found.known.messages) == 39
    assert same(found, body(near))


def test_of_conversations_that_are_alike_the_one_with_the_longest_beginning_is_taken() -> None:
    memory = Beginnings()
    head = [said("user", "x" * (LEAST + 200)), said("assistant", "y")]
    branches = [[*head, said("user", name), said("assistant", "1"), said("user", "2")] for name in "abc"]
    for told in branches:
        asked(memory, body(told))
    for told in branches:
        found = asked(memory, body([*told, said("assistant", "3"), said("user", "4")]))
        assert found.known is not None
        assert len(found.known.messages) == len(told)


def test_what_one_conversation_shares_with_a_body_says_nothing_of_another_that_parts_earlier() -> None:
    spoken = talk(10)
    changed = said("user", spoken[1]["content"].replace("0 ", "x ", 1))
    late = [*spoken[:-1], said("user", "late"), said("user", "end")]
    early = [spoken[0], changed, *spoken[2:-1], said("user", "other"), said("user", "end")]
    memory = Beginnings()
    asked(memory, body(early))
    asked(memory, body(late))
    read = Read()
    raw = body([*spoken[:-1], said("user", "other"), said("user", "end")])
    assert same(asked(memory, raw, read=read), raw)
    assert read.count == 2


@pytest.mark.parametrize("commas", [(b",", b" , "), (b" ,", b", "), (b",\n", b",")])
def test_a_writer_whose_commas_differ_is_read_anew_each_time(commas: tuple[bytes, bytes]) -> None:
    memory = Beginnings()
    wires = [json.dumps(each, separators=(",", ":")).encode() for each in talk(12)]
    for _ in range(2):
        joined = b"".join(wire + commas[index % 2] for index, wire in enumerate(wires))
        raw = b'{"model":"m","messages":[' + joined.rstrip(b", \n") + b"]}"
        found = asked(memory, raw)
        assert (found.known, memory.held) == (None, 0)
        assert same(found, raw)


def test_a_key_does_not_warm_anothers_calls() -> None:
    memory = Beginnings()
    raw = body(talk(12))
    asked(memory, raw)
    for other in (Caller(tenant="t", key="other"), Caller(tenant="other", key="k")):
        assert asked(memory, raw, other).known is None
    assert asked(memory, raw).known is not None


def test_what_is_short_is_not_kept() -> None:
    memory = Beginnings()
    for _ in range(2):
        assert asked(memory, body(talk(2, 50))).known is None
    assert memory.held == 0


@pytest.mark.parametrize(
    "tail",
    [
        b'{"role":"user","role":"user"}',
        b'{"role":"user","content":' + b"[" * 70 + b"]" * 70 + b"}",
        b'{"role":"user","content":"\xff"}',
        b'{"role":"nobody"}',
        b"7",
        b"",
        b'{"role":"user"}],"messages":[{"role":"user","content":"x"}',
        b'{"role":"user"}]}{"a":[1',
    ],
)
def test_what_is_wrong_behind_a_known_beginning_is_refused_as_ever(tail: bytes) -> None:
    memory = Beginnings()
    history = talk(12)
    asked(memory, body(history))
    known = json.dumps(history, separators=(",", ":")).encode()[:-1]
    raw = b'{"model":"m","messages":' + known + b"," + tail + b"]}"
    with pytest.raises(Malformed) as plain:
        decode_call(raw, CALLER, read_message, {})
    own = memory.of(CALLER)
    assert own.beginning(raw) is not None
    with pytest.raises(Malformed) as found:
        decode_call(raw, CALLER, read_message, {}, None, own)
    assert (found.value.message, found.value.code, found.value.param) == (
        plain.value.message,
        plain.value.code,
        plain.value.param,
    )


def test_messages_that_only_look_like_the_messages_are_not_taken_for_them() -> None:
    """Another member may hold an array of that name, and the bytes in it may be those of a known conversation."""
    memory = Beginnings()
    history = talk(12)
    asked(memory, body(history))
    inner = json.dumps({"messages": [*history, said("user", "x")]}, separators=(",", ":"))
    outer = json.dumps([said("user", "what is asked"), said("user", "now")])
    raw = f'{{"metadata":{inner},"model":"m","messages":{outer}}}'.encode()
    assert memory.of(CALLER).beginning(raw) is not None
    found = asked(memory, raw)
    assert found.known is None
    assert same(found, raw)


def test_half_a_character_keeps_its_bytes_before_and_behind_what_is_known() -> None:
    memory = Beginnings()
    history = [said("user", "\ud83d"), *talk(12)[1:]]
    asked(memory, body(history))
    raw = body([*history, said("assistant", "so"), said("user", "\ude00")], user="\ud83d")
    found = asked(memory, raw)
    assert found.known is not None
    assert found.messages[-1].wire == b'{"role":"user","content":"\\ude00"}'
    assert same(found, raw)


def test_the_bound_on_messages_counts_the_known_ones() -> None:
    memory = Beginnings()
    history = talk(12)
    asked(memory, body(history))
    raw = body([*history, said("assistant", "so"), said("user", "more")])
    bounds = Bounds(messages=len(history) + 1)
    with pytest.raises(Malformed) as caught:
        decode_call(raw, CALLER, read_message, {}, bounds, memory.of(CALLER))
    assert caught.value.code == "out_of_range"


def test_a_conversation_that_grows_takes_the_place_of_its_beginning() -> None:
    memory = Beginnings()
    for turns in range(8, 40):
        asked(memory, body(talk(turns)))
    alone = Beginnings()
    asked(alone, body(talk(39)))
    assert memory.held == alone.held


def test_the_budget_is_held_and_the_longest_unused_goes() -> None:
    alone = Beginnings()
    asked(alone, body(talk(12)))
    memory = Beginnings(alone.held * 5)
    others = [body([said("system", f"{number}"), *talk(12, 601 + 5 * number)[1:]]) for number in range(8)]
    for raw in others:
        asked(memory, raw)
        asked(memory, others[0])
        assert 0 < memory.held <= alone.held * 5
    assert memory.of(CALLER).beginning(others[0]) is not None
    assert memory.of(CALLER).beginning(others[1]) is None
    tight = Beginnings(alone.held)
    asked(tight, others[0])
    assert tight.held == 0, "one that would crowd out the others is not kept"


def test_many_that_are_alike_where_they_are_looked_for_are_not_all_kept() -> None:
    memory = Beginnings()
    head = said("user", "x" * (LEAST + 200))
    for number in range(30):
        asked(memory, body([head, said("assistant", f"{number}"), said("user", "y")]))
    one = Beginnings()
    asked(one, body([head, said("assistant", "0"), said("user", "y")]))
    assert memory.held <= 4 * one.held + 100


def test_tools_are_read_once_a_tenant_and_refused_each_time() -> None:
    memory = Beginnings()
    made: list[bytes] = []

    def read(wire: bytes) -> Tools:
        made.append(wire)
        return Tools(wire=wire, tokens=1, digest=b"d")

    for key in ("k", "l"):
        assert memory.of(Caller(tenant="t", key=key)).tools(b"[1]", read).tokens == 1
    assert made == [b"[1]"]
    memory.of(Caller(tenant="u", key="k")).tools(b"[1]", read)
    memory.of(CALLER).tools(b"[2]", read)
    assert made == [b"[1]", b"[1]", b"[2]"]
    assert memory.of(CALLER).tools(b"[2]", read).wire == b"[2]"
    for _ in range(2):
        with pytest.raises(Malformed):
            asked(memory, b'{"model":"m","messages":[{"role":"user","content":"a"}],"tools":[{"a":1,"a":1}]}')


def test_a_collision_never_gives_the_wrong_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xxhash, "xxh3_64_intdigest", lambda data, seed: 7)
    own = Beginnings().of(CALLER)
    for wire in (b"[1]", b"[2]", b"[1]", b"[1]"):
        assert own.tools(wire, lambda raw: Tools(wire=raw, tokens=1, digest=b"d")).wire == wire


def test_tools_are_held_within_a_bound() -> None:
    memory = Beginnings()
    read: list[bytes] = []

    def made(wire: bytes) -> Tools:
        read.append(wire[:1])
        return Tools(wire=wire, tokens=1, digest=b"d")

    for letter in b"abcda":
        memory.of(CALLER).tools(bytes([letter]) * (5 << 20), made)
    assert read == [b"a", b"b", b"c", b"d", b"a"]
