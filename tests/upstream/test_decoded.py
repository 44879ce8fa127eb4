"""Messages that were decoded before come back, within a budget, never another tenant's and never a wrong one."""

from __future__ import annotations

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.conversation import Message
from proxy.core.errors import Malformed
from proxy.dialects.chat.messages import read_message
from proxy.upstream.decoded import Decoded


def wire(text: str) -> bytes:
    return b'{"role":"user","content":"%b"}' % text.encode()


class Counted:
    """A decoder that counts its work."""

    def __init__(self) -> None:
        self.calls: list[tuple[bytes, int]] = []

    def __call__(self, wire: bytes, index: int) -> Message:
        self.calls.append((wire, index))
        return read_message(wire, index)


def test_the_same_bytes_are_decoded_once() -> None:
    known, decode = Decoded(), Counted()
    read = known.reader("t", decode)
    first = read(wire("a"), 3)
    assert read(bytes(bytearray(wire("a"))), 7) is first
    assert known.reader("t", decode)(wire("a"), 0) is first
    assert decode.calls == [(wire("a"), 3)]


def test_other_bytes_are_another_message() -> None:
    known = Decoded()
    read = known.reader("t", read_message)
    assert read(wire("a"), 0).text == "a"
    assert read(wire("b"), 0).text == "b"
    assert read(wire("a ") + b" ", 0).wire == wire("a ") + b" "


def test_tenants_do_not_warm_each_others_calls() -> None:
    known, decode = Decoded(), Counted()
    mine = known.reader("t", decode)(wire("a"), 0)
    theirs = known.reader("u", decode)(wire("a"), 0)
    assert mine is not theirs
    assert len(decode.calls) == 2


def test_what_cannot_be_decoded_is_not_kept() -> None:
    known, decode = Decoded(), Counted()
    read = known.reader("t", decode)
    for _ in range(2):
        with pytest.raises(Malformed):
            read(b'{"role":"nobody"}', 0)
    assert (known.held, len(decode.calls)) == (0, 2)


def test_the_longest_unused_goes_first() -> None:
    one = 2 * len(wire("a")) + 400
    known, decode = Decoded(4 * one), Counted()
    read = known.reader("t", decode)
    for text in "abcd":
        read(wire(text), 0)
    read(wire("a"), 0)
    read(wire("e"), 0)  # b goes, a was used
    assert known.held == 4 * one
    before = len(decode.calls)
    read(wire("a"), 0)
    assert len(decode.calls) == before
    read(wire("b"), 0)
    assert len(decode.calls) == before + 1


def test_a_message_that_would_crowd_out_all_others_is_not_kept() -> None:
    known, decode = Decoded(10_000), Counted()
    read = known.reader("t", decode)
    read(wire("a"), 0)
    held = known.held
    read(wire("x" * 2_000), 0)
    assert known.held == held
    read(wire("a"), 0)
    assert len(decode.calls) == 2


def test_a_collision_costs_a_decode_and_never_gives_a_wrong_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xxhash, "xxh3_64_intdigest", lambda data, seed: 7)
    known, decode = Decoded(), Counted()
    read = known.reader("t", decode)
    held = []
    for text in ("a", "bb", "a", "a", "ccc"):
        assert read(wire(text), 0).text == text
        held.append(known.held)
    assert [seen for seen, _ in decode.calls] == [wire(text) for text in ("a", "bb", "a", "ccc")]
    assert held == [2 * len(wire(text)) + 400 for text in ("a", "bb", "a", "a", "ccc")]


@given(
    reads=st.lists(st.tuples(st.sampled_from("tu"), st.integers(0, 12), st.integers(0, 300)), max_size=60),
    budget=st.integers(0, 8_000),
)
def test_the_budget_is_held_and_every_answer_is_right(reads: list[tuple[str, int, int]], budget: int) -> None:
    known = Decoded(budget)
    for tenant, number, length in reads:
        text = str(number) * (1 + length % 97)
        found = known.reader(tenant, read_message)(wire(text), 0)
        assert found.text == text
        assert 0 <= known.held <= budget
