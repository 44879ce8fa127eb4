"""`/compact` where memory tells less than was said: what it measures, what it plans by, and what comes of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from benchmarks.dry import Store
from proxy.core.agent import MemoryLimits
from proxy.core.command import Result
from proxy.core.conversation import Message
from proxy.core.exchange import exchange
from proxy.core.notes import Compaction
from proxy.core.policy import Policy
from proxy.core.recollection import Recollection
from proxy.core.steps import Prompt, Reply, Send
from tests.core.histories import call, lines, loop, model, result, user
from tests.core.stacks import REFUND, SHELF, a_stack, an_agent
from tests.playbook import a_call, a_snap

COMMAND = user("/compact keep the values")
ONE = MemoryLimits(step=1)


class Conversation:
    """One conversation with an agent that has memory, in a window of 200,000 tokens."""

    def __init__(self, limits: MemoryLimits | None = ONE, **agent: Any) -> None:
        self.store = Store()
        told: dict[str, Any] = {"skills": (), "tools": ("read_tool_result",), **agent}
        self.agent = an_agent(instructions="Help.", memory=limits, **told)
        self.shelf = SHELF
        self.recollection = Recollection()

    def say(self, *messages: Message) -> tuple[Prompt | None, Result | None]:
        """What is sent for this history, and what the gateway itself answers."""
        sent: list[Prompt] = []

        def send(step: Send) -> Reply:
            sent.append(step.prompt)
            return Reply(message=model("Very well."), finish="stop", usage=None)

        snap = a_snap(
            200_000,
            policy=Policy(window=200_000, summary_asked=False),
            stack=a_stack(self.agent, shelf=self.shelf),
            recollection=self.recollection,
            holds=self.store.results.__contains__,
        )
        outcome = self.store.served(exchange(a_call(messages, label="l"), snap), send)
        return (sent[-1] if sent else None), outcome.said

    @property
    def manual(self) -> Compaction:
        (made,) = [made for made in self.store.compactions.values() if made.trigger == "MANUAL"]
        return made


TALK = loop(30, size=900)
"""About ten thousand tokens a turn: 300,000 were said, and memory tells some thousands of them."""


def test_its_numbers_are_those_of_what_is_told() -> None:
    talk = Conversation()
    last, _ = talk.say(*TALK, user("And now?"))
    assert last is not None and last.report.tokens < 20_000 < sum(item.tokens for item in TALK)
    _, said = talk.say(*TALK, user("And now?"), model("Very well."), COMMAND)
    assert said is not None and said.tokens_before is not None and said.tokens_after is not None
    assert said.tokens_before == pytest.approx(last.report.tokens, rel=0.2)
    assert said.tokens_after < said.tokens_before


def test_the_next_prompt_is_about_as_large_as_it_said() -> None:
    talk = Conversation()
    _, said = talk.say(*TALK, COMMAND)
    assert said is not None and said.tokens_after is not None
    next_, _ = talk.say(*TALK, COMMAND, model(said.line), user("And now?"))
    assert next_ is not None and next_.report.compaction_id == said.compaction_id
    assert next_.report.tokens == pytest.approx(said.tokens_after, rel=0.2)


def test_its_notes_hold_what_the_user_asked_for() -> None:
    talk = Conversation()
    talk.say(*TALK, COMMAND)
    notes = talk.manual.notes
    assert notes.pins[0].text == "Look at src/part_0.py and tell me about ticket ABC-100."
    assert len(notes.pins) + notes.dropped == notes.turns > 20
    assert notes.ledger and notes.kept


def test_the_newest_turn_is_over_and_counts_as_memory_tells_it() -> None:
    """It ends with an answer: what it read is told no more, so it is no reason not to compact, nor room to be left."""
    large = (user("Read it."), model("", call("z")), result("z", lines(9_000)), model("Read."))
    talk = Conversation()
    _, said = talk.say(*loop(12, size=20), *large, COMMAND)
    assert said is not None and said.tokens_before is not None
    assert said.tokens_before < 10_000


def test_a_skill_that_was_withdrawn_since_does_not_hold_it() -> None:
    talk = Conversation(skills=("refund",))
    history = (*loop(12), user("/refund for me"), model("Very well."))
    talk.say(*history[:-1])
    talk.shelf = {REFUND.slug: msgspec.structs.replace(REFUND, users=("someone else",))}
    _, said = talk.say(*history, COMMAND)
    assert said is not None and said.status == "compacted"


def test_without_memory_it_measures_the_layers_too() -> None:
    plain, dressed = Conversation(None), Conversation(None)
    dressed.agent = msgspec.structs.replace(dressed.agent, instructions=lines(200))
    sizes = []
    for talk in (plain, dressed):
        _, said = talk.say(*loop(30), COMMAND)
        assert said is not None and said.tokens_before is not None
        sizes.append(said.tokens_before)
    assert sizes[1] - sizes[0] > 1_500
