"""An agent's own order to summarise is told from a person who merely speaks of summaries."""

from __future__ import annotations

import pytest

from proxy.core.chain import message
from proxy.core.conversation import Message, Text, ToolResult
from proxy.core.own_compaction import asks_for_summary


def history(*texts: str) -> tuple[Message, ...]:
    roles = ("user", "assistant")
    return tuple(message(roles[place % 2], (Text(text=text),)) for place, text in enumerate(texts))  # type: ignore[arg-type]


ORDERS = [
    "You are performing a CONTEXT CHECKPOINT COMPACTION. Create a handoff summary for another LLM.",
    "Your task is to create a detailed summary of the conversation so far, paying attention to the user's requests.",
    "Create a comprehensive structured summary of our session.",
    "Provide a detailed prompt for continuing our conversation above.",
    "Please give me a concise summary of the above conversation",
    "Summarize the conversation so far.",
    "Summarise our entire conversation history",
    "Compact the conversation.",
    "First think in a scratchpad, then write a <state_snapshot>.",
    "Perform compression of the chat history now",
]


@pytest.mark.parametrize("order", ORDERS)
def test_an_order_that_agents_give_is_recognised(order: str) -> None:
    assert asks_for_summary(history("hi", "hello", order))
    assert asks_for_summary(history("hi", "hello", "x" * 3000 + " " + order.upper()))


@pytest.mark.parametrize(
    "text",
    [
        "Give me a summary of this file.",
        "What did we talk about?",
        "Write a function that compacts the list.",
        "The context window is full of conversation.",
        "x" * 4100 + ORDERS[0],
        "",
    ],
)
def test_a_person_who_asks_for_something_else_is_not_taken_for_one(text: str) -> None:
    assert not asks_for_summary(history("hi", "hello", text))


def test_only_the_newest_message_of_a_conversation_counts() -> None:
    assert not asks_for_summary(())
    assert not asks_for_summary(history(ORDERS[0]))
    assert not asks_for_summary(history("hi", ORDERS[0]))
    assert not asks_for_summary(history("hi", "hello", ORDERS[0], "done"))
    result = message("tool", (ToolResult(call_id="c", text=ORDERS[0]),))
    assert not asks_for_summary((*history("hi", "hello"), result))
