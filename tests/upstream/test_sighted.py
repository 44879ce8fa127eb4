"""The memory of what the ledger read out of messages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from proxy.core.chain import message
from proxy.core.conversation import Reasoning, Text, ToolCall
from proxy.core.ledger import sightings
from proxy.upstream.sighted import Sighted


def said(number: int) -> str:
    return f"see /src/part_{number}.py and https://weir.example/{number}, {number + 1000} lines"


@given(st.lists(st.integers(0, 40), max_size=120), st.integers(8, 60))
def test_what_is_remembered_is_what_would_be_read_and_the_budget_holds(numbers: list[int], budget: int) -> None:
    memory = Sighted(budget)
    for number in numbers:
        item = message("user", (Text(text=said(number)),))
        assert memory.scan(item) == sightings(item)
        assert memory.held <= max(budget, len(sightings(item)) + 4)


def test_a_message_is_read_once() -> None:
    memory = Sighted()
    item = message("user", (Text(text=said(1)),))
    assert memory.scan(item) is memory.scan(message("user", (Text(text=said(1)),)))


def test_two_roles_are_two_messages() -> None:
    memory = Sighted()
    mine, yours = (message(role, (Text(text=said(1)),)) for role in ("user", "assistant"))
    assert memory.scan(mine) != memory.scan(yours)


def test_a_message_with_and_without_its_reasoning_are_read_apart() -> None:
    """They have one identity, but a call stands in another block."""
    memory = Sighted()
    call = ToolCall(id="c", name="run", arguments='{"path": "/src/a.py"}')
    thought = message("assistant", (Reasoning(text="hm"), call))
    bare = message("assistant", (call,))
    assert thought.digest == bare.digest
    assert memory.scan(thought) == sightings(thought)
    assert memory.scan(bare) == sightings(bare)
