"""Whole conversations of a scripted model with tools of ours, played turn by turn: the prefix law, byte for byte.

The client sends back what it was shown, now and then with other ids. What each prompt holds must begin with the whole
prompt before it, over rounds, over client tools, over turns.
"""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.core.conversation import Message, ToolCall
from proxy.core.exchange import exchange
from proxy.core.steps import Call, Hidden, Memory, Outcome, Ran, Recall, Remember, Reply, RunTools, Send
from proxy.dialects.chat.messages import write_message
from tests.core.histories import call, flaws, result, user
from tests.core.stacks import REFUND, TONE, a_stack, an_agent, loads, saying
from tests.playbook import a_call, a_snap


class World:
    """Answers a flow as the driver and the store would: hidden state by the request, the one whose reply came back."""

    def __init__(self, place: Any) -> None:
        self.stack = a_stack(an_agent(instructions="A.", place=place), base="B.", stated="low")
        self.kept: list[tuple[Hidden, bytes | None]] = []
        self.prompts: list[tuple[bytes, ...]] = []
        self.anchor: Any = None

    def serve(self, messages: tuple[Message, ...], replies: list[Reply]) -> Message | None:
        asked: Call = a_call(messages, label="talk")
        flow = exchange(asked, a_snap(stack=self.stack))
        answer: Any = None
        try:
            while True:
                answer = self.answer(flow.send(answer), replies)
        except StopIteration as end:
            assert isinstance(end.value, Outcome)
            assert replies == []
            return end.value.reply.message if end.value.reply is not None else None

    def answer(self, step: Any, replies: list[Reply]) -> Any:
        match step:
            case Recall():
                here = [(hidden, reply) for hidden, reply in self.kept if hidden.digest in step.digests]
                back = [hidden for hidden, reply in here if reply in step.digests]
                return Memory(conversation="c", hidden=tuple(back), anchor=self.anchor)
            case Send():
                assert flaws(step.prompt.messages) == []
                self.prompts.append(tuple(map(write_message, step.prompt.messages)))
                estimated = 3 + 40 + sum(item.tokens for item in step.prompt.messages)
                assert step.prompt.estimated == estimated
                return replies.pop(0)
            case RunTools():
                return tuple(
                    Ran(text=skill.text, skill=skill.id) if skill.id not in step.loaded else Ran(text="Loaded already.")
                    for skill in (TONE if "tone" in each.arguments else REFUND for each in step.calls)
                )
            case Remember():
                self.anchor = step.anchor
                if step.hidden is not None:
                    self.kept.append((step.hidden, step.reply))
                return None
            case _:
                raise AssertionError(step)


def with_other_ids(item: Message, mark: str) -> Message:
    blocks = tuple(
        msgspec.structs.replace(block, id=f"{block.id}{mark}") if isinstance(block, ToolCall) else block
        for block in item.blocks
    )
    return msgspec.structs.replace(
        item, blocks=blocks, calls=tuple(block for block in blocks if isinstance(block, ToolCall))
    )


LOADS = st.lists(st.sampled_from(["tone", "refund"]), min_size=1, max_size=2)
TEXTS = st.sampled_from(["", "Hm.", "Let me look."])


@st.composite
def steps(draw: st.DrawFn) -> tuple[list[tuple[str, list[str]]], tuple[str, list[str], int]]:
    """The rounds of one call, our tools alone; and its end: a text, loads beside, calls of the client's."""
    rounds = draw(st.lists(st.tuples(TEXTS, LOADS), max_size=2))
    theirs = draw(st.integers(0, 2))
    beside = draw(st.sampled_from([[], ["tone"], ["refund"]])) if theirs else []
    return rounds, (draw(TEXTS) or ("" if theirs else "Done."), beside, theirs)


@settings(max_examples=60)
@given(st.lists(steps(), min_size=1, max_size=6), st.sampled_from(["system", "message"]), st.data())
def test_each_prompt_begins_with_the_whole_one_before_it(script: list[Any], place: Any, data: st.DataObject) -> None:
    world = World(place)
    history: tuple[Message, ...] = (user("Begin."),)
    number = 0
    for rounds, (text, beside, theirs) in script:
        replies = []
        for said, slugs in rounds:
            number += 1
            replies.append(saying(*filter(None, [said]), *(loads(f"w{number}{n}", s) for n, s in enumerate(slugs))))
        number += 1
        calls = [call(f"g{number}{n}", "grep", at=number) for n in range(theirs)]
        own = [loads(f"w{number}{n}", slug) for n, slug in enumerate(beside)]
        replies.append(saying(*filter(None, [text]), *own, *calls))
        shown = world.serve(history, replies)
        assert shown is not None
        assert [each.id for each in shown.calls] == [each.id for each in calls]
        history = (*history, shown, *(result(each.id, f"found {each.id}") for each in shown.calls))
        if not theirs:
            # A selection re-writes the system message where it goes there, so only the other place may select.
            slug = data.draw(st.sampled_from(["", "/tone ", "/refund /tone "])) if place == "message" else ""
            history = (*history, user(f"{slug}Go on, {number}."))
    for before, after in zip(world.prompts, world.prompts[1:], strict=False):
        assert after[: len(before)] == before


@settings(max_examples=30)
@given(steps(), st.integers(1, 2))
def test_a_client_with_ids_of_its_own_breaks_nothing(first: Any, theirs: int) -> None:
    _, (text, beside, _) = first
    world = World("system")
    calls = [call(f"g{n}", "grep", at=n) for n in range(theirs)]
    own = [loads(f"w{n}", slug) for n, slug in enumerate(beside or ["tone"])]
    history: tuple[Message, ...] = (user("Begin."),)
    shown = world.serve(history, [saying(*filter(None, [text]), *own, *calls)])
    assert shown is not None
    back = with_other_ids(shown, "_x")
    world.serve((*history, back, *(result(each.id, "found") for each in back.calls)), [saying("Done.")])
    assert [each.id for each in back.calls] == [f"g{n}_x" for n in range(theirs)]
