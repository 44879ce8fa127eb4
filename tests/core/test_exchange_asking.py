"""Whatever a model asks, loads and calls, and whatever its user says: the laws of a prompt hold at every step.

A small world plays the exchange with a store in memory: what it is told to remember is what it recalls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.core.agent import MemoryLimits
from proxy.core.chain import message
from proxy.core.conversation import Message, Text, ToolCall
from proxy.core.exchange import exchange
from proxy.core.groups import turns
from proxy.core.steps import Anchor, Claim, Count, Hidden, Memory, Outcome, Ran, Recall, Remember, Reply, RunTools, Send
from proxy.core.usage import Usage
from proxy.tools import questions
from tests.core.histories import flaws, lines, model, result, system, user
from tests.core.stacks import an_agent, asked, snap
from tests.playbook import changed, estimates

TOOLS = ("load_skill", "ask_user", "request_approval")
THEIRS = "grep"


class World:
    """One conversation: its client's messages, the model's replies to come, and the store between them."""

    def __init__(self, window: int | None = None, memory: MemoryLimits | None = None) -> None:
        self.messages: list[Message] = []
        self.prompts: list[tuple[Message, ...]] = []
        self.stayed: list[bool] = []
        """Whether nothing was compacted in the prompt."""
        self._snap = snap(window, an_agent(instructions="A.", tools=TOOLS, memory=memory))
        self._now = 1_000.0
        self._hidden: dict[bytes, Hidden] = {}
        self._anchors: dict[bytes, Anchor] = {}
        self._compactions: list[Any] = []

    def ask(self, replies: Sequence[Reply], *, later: float = 1.0) -> Outcome:
        """Send the history; the model says `replies`, the last of them for ever."""
        self._now += later
        flow = exchange(asked(tuple(self.messages)), changed(self._snap, now=self._now))
        waiting = list(replies)
        given: Any = None
        while True:
            try:
                step = flow.send(given)
            except StopIteration as end:
                outcome: Outcome = end.value
                if outcome.reply is not None and outcome.reply.message is not None:
                    self.messages.append(outcome.reply.message)
                return outcome
            match step:
                case Recall():
                    given = self._recalled(step)
                case Count():
                    given = estimates(step)
                case Claim():
                    given = True
                case Send():
                    self.prompts.append(step.prompt.messages)
                    self.stayed.append(step.prompt.report.compaction == "none")
                    reply = waiting.pop(0) if len(waiting) > 1 else waiting[0]
                    given = changed(reply, usage=Usage(input=step.prompt.estimated, output=5))
                case RunTools():
                    given = _ran(step)
                case Remember():
                    given = self._remember(step)
                case _:
                    raise AssertionError(step)

    def _recalled(self, step: Recall) -> Memory:
        places = step.digests
        anchor = next((self._anchors[digest] for digest in places if digest in self._anchors), None)
        hidden = tuple(self._hidden[digest] for digest in places if digest in self._hidden)
        return Memory(conversation="conv_new", compactions=tuple(self._compactions), anchor=anchor, hidden=hidden)

    def _remember(self, step: Remember) -> None:
        if step.hidden is not None:
            self._hidden[step.hidden.digest] = step.hidden
        for digest in (step.request, step.reply):
            if digest is not None and step.anchor is not None:
                self._anchors[digest] = step.anchor
        if step.compaction is not None:
            self._compactions.append(step.compaction)


def _ran(step: RunTools) -> tuple[Ran, ...]:
    found: list[Ran] = []
    for call in step.calls:
        first = all(ran.pause is None for ran in found)
        asks = call.name != "load_skill"
        found.append(
            questions.answer(call.id, call.name, call.arguments, alone=step.alone, first=first)
            if asks
            else Ran(text="[tone] Be kind.")
        )
    return tuple(found)


def calls(name: str, arguments: str) -> st.SearchStrategy[ToolCall]:
    """Ids are used again, as some servers do."""
    return st.builds(lambda id: ToolCall(id=id, name=name, arguments=arguments), st.sampled_from(["", "c0", "c1"]))


_OURS = st.one_of(
    calls("ask_user", '{"question": "Which?", "options": ["a", "b"]}'),
    calls("ask_user", '{"question": ""}'),
    calls("request_approval", '{"action": "Go", "reason": "Late"}'),
    calls("load_skill", '{"name": "tone"}'),
)


@st.composite
def said(draw: st.DrawFn) -> Reply:
    """A reply with calls of ours, of the client's, or of nobody's; the client's have ids of their own."""
    listed: list[ToolCall] = draw(st.lists(_OURS, max_size=3))
    for number in range(draw(st.integers(0, 1))):
        listed.insert(draw(st.integers(0, len(listed))), ToolCall(id=f"g{number}", name=THEIRS, arguments="{}"))
    words = draw(st.sampled_from(["", "Hm.", "Let me see."]))
    blocks = (*((Text(text=words),) if words or not listed else ()), *listed)
    item = message("assistant", blocks if words or listed else (Text(text="Well."),))
    return Reply(message=item, finish="tool_calls" if listed else "stop", usage=None)


_STEPS = st.lists(
    st.tuples(st.lists(said(), min_size=1, max_size=3), st.sampled_from(["yes", "/tone b", "no"]), st.booleans()),
    min_size=1,
    max_size=5,
)
_END = Reply(message=model("Done."), finish="stop", usage=None)


def played(world: World, steps: Any, check: Callable[[World, Outcome], None], size: int = 0) -> list[str]:
    """Play `steps`; returns all that the user said."""
    words = [f"Begin. {lines(size)}"]
    world.messages.append(user(words[0]))
    for number, (replies, answer, beside) in enumerate(steps):
        outcome = world.ask([*replies, _END])
        check(world, outcome)
        last = world.messages[-1]
        if last.calls:
            world.messages += [result(call.id, f"found {number}") for call in last.calls]
            continue
        if beside:
            world.messages.append(system("It is noon."))
        words.append(f"{answer} {number} {lines(size)}")
        world.messages.append(user(words[-1]))
    check(world, world.ask([_END]))
    return words


@settings(max_examples=150, deadline=None)
@given(_STEPS)
def test_without_a_compaction_each_prompt_begins_with_the_one_before(steps: Any) -> None:
    world = World()

    def check(world: World, outcome: Outcome) -> None:
        assert outcome.reply is not None
        assert outcome.reply.message is not None
        assert (outcome.pause is not None) <= (outcome.reply.finish == "stop")

    words = played(world, steps, check)
    for before, after in zip(world.prompts, world.prompts[1:], strict=False):
        assert _read(after)[: len(before)] == _read(before)
    for prompt in world.prompts:
        assert flaws(prompt) == []
    heard = [item.text for item in world.prompts[-1] if item.by_user]
    assert heard == words


def _read(prompt: Sequence[Message]) -> list[tuple[object, ...]]:
    """What a model reads; the leading message is left aside, whose skills are those of the newest turn."""
    return [(item.role, item.blocks if place else ()) for place, item in enumerate(prompt)]


@settings(max_examples=60, deadline=None)
@given(_STEPS, st.sampled_from([1_200, 2_500]))
def test_with_memory_and_compactions_no_prompt_is_malformed_and_no_words_are_silently_gone(
    steps: Any, window: int
) -> None:
    world = World(window, MemoryLimits(step=1, turns=2, calls=2))
    words = played(world, steps, lambda world, outcome: None, size=8)
    for prompt in world.prompts:
        assert flaws(prompt) == []
    told = "\n".join(item.text for item in world.prompts[-1])
    # Word for word, in notes, or at least counted there, where the window is that small.
    assert " ".join(words[-1].split()[:2]) in told or "no longer fit" in told
    if world.messages[-2].role == "user" or world.messages[-2].role == "system":
        assert " ".join(words[-1].split()[:2]) in told


@settings(max_examples=60, deadline=None)
@given(_STEPS)
def test_memory_tells_every_answer_of_the_turns_that_it_tells(steps: Any) -> None:
    world = World(None, MemoryLimits(step=1, turns=50, calls=1))
    words = played(world, steps, lambda world, outcome: None)
    told = "\n".join(item.text for item in world.prompts[-1])
    assert all(word in told for word in words)
    assert flaws(world.prompts[-1]) == []
    assert len(turns(world.prompts[-1])) <= len(words)


def test_the_world_asks_and_is_answered() -> None:
    """The test of the test: a question, its answer, and another turn."""
    world = World()
    world.messages.append(user("Begin."))
    asks = ToolCall(id="q", name="ask_user", arguments='{"question": "Which?"}')
    outcome = world.ask([Reply(message=model("", asks), finish="tool_calls", usage=None)])
    assert outcome.pause is not None
    world.messages.append(user("/tone b"))
    world.ask([_END])
    assert [item.role for item in world.prompts[-1]] == ["system", "user", "assistant", "tool"]
    assert msgspec.structs.replace(world.prompts[-1][-1], digest=b"", answer=False) == msgspec.structs.replace(
        result("q", "/tone b"), digest=b""
    )
