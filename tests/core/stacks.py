"""What the tests of layers share: a library, stacks, a dressing that writes what a reader can compare, and scripts."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import msgspec

from proxy.core import chain
from proxy.core.agent import Agent, Skill, Spec
from proxy.core.chain import message
from proxy.core.conversation import Message, Text, ToolCall
from proxy.core.exchange import exchange
from proxy.core.groups import newest
from proxy.core.hidden import Behind, packed, placed, unpacked
from proxy.core.layers import LOAD_SKILL, Layers, layered
from proxy.core.recognition import recognise
from proxy.core.stack import UNCHANGED, Catalogue, Members, Offer, Stack, Trace
from proxy.core.steps import (
    Call,
    Hidden,
    Memory,
    Ran,
    Recall,
    Remember,
    Reply,
    RunTools,
    Send,
    Snapshot,
)
from proxy.core.usage import Usage
from tests.core.histories import START, call, user
from tests.core.scripts import remembered
from tests.playbook import Played, a_call, a_snap, like, play, that

TONE = Skill(id="shared/tone", slug="tone", when="Before a letter.", text="[tone] Be kind.")
REFUND = Skill(id="acme/refund", slug="refund", when="For money back.", text="[refund] Pay.")
ANNAS = Skill(id="acme/annas", slug="annas", when="For Anna.", text="[annas] Hi Anna.", users=("anna",))
DRAFT = Skill(id="acme/draft", slug="draft", when="Not yet.", text="[draft] None.", published=False)
UNLISTED = Skill(id="acme/quiet", slug="quiet", when="By name alone.", text="[quiet] Hush.", offered=False)
SHELF = {skill.slug: skill for skill in (TONE, REFUND, ANNAS, DRAFT, UNLISTED)}


def spec(catalogue: Catalogue) -> Spec:
    slugs = [entry.slug for entry in catalogue]
    return Spec(name=LOAD_SKILL, description="Load one.", parameters=msgspec.json.encode({"enum": slugs}))


class Dressed:
    """Makes a block of each text. `offers` is False where the request bars tools."""

    def __init__(self, *, offers: bool = True) -> None:
        self.offers = offers

    def leading(
        self, of: tuple[Hashable, ...], clients: tuple[Message, ...], texts: Callable[[], tuple[str, str]]
    ) -> Message:
        before, after = texts()
        role = clients[0].role if clients else "system"
        texts = [before, *(item.text for item in clients), after]
        return chain.message(role, tuple(Text(text=text) for text in texts if text))

    def written(self, item: Message) -> Message:
        return item

    def beside(self, text: str, item: Message) -> Message:
        return chain.message(item.role, (Text(text=text), *item.blocks))

    def plain(self, item: Message) -> Message:
        return item

    def offer(self, catalogue: Catalogue, tools: tuple[str, ...] = ()) -> Offer | None:
        if not self.offers or not (catalogue or tools):
            return None
        wire = spec(catalogue).parameters + "".join(tools).encode()
        names = frozenset((LOAD_SKILL,) if catalogue else ()) | frozenset(tools)
        return Offer(names=names, members={"tools": wire}, tokens=40, digest=wire)

    def effort(self, level: Any, own: Members) -> Members:
        return UNCHANGED if level is None else {"reasoning_effort": level.encode()}


def an_agent(**more: Any) -> Agent:
    return Agent(**({"name": "support", "model": "fast", "skills": ("*",)} | more))


def a_stack(agent: Agent | None = None, **more: Any) -> Stack:
    known: dict[str, Any] = {"base": "", "agent": agent, "dressing": Dressed(), "shelf": SHELF}
    return Stack(**(known | more))


def loads(id: str = "w1", name: str = "tone") -> ToolCall:
    return ToolCall(id=id, name=LOAD_SKILL, arguments=f'{{"name":"{name}"}}')


def behind(messages: tuple[Message, ...], *states: tuple[int, Behind]) -> Memory:
    """The memory of a history, each state behind the message of its index."""
    after = recognise(START, messages).chain.after
    found = [Hidden(digest=after[index], label="l", payload=packed(state) or b"{}") for index, state in states]
    return Memory(hidden=tuple(found))


# -- scripts of an exchange --------------------------------------------------------------------------------------------

GREP = call("g1", "grep", what="x")
HELLO = (user("Hello"),)
LOADED = Ran(text=TONE.text, skill=TONE.id)
NOTHING = Ran(text='Nothing was loaded: there is no skill "nobody".')


def asked(messages: tuple[Message, ...] = HELLO, **more: Any) -> Call:
    return a_call(messages, **({"label": "talk"} | more))


def snap(window: int | None = None, agent: Any = None, **more: Any) -> Snapshot:
    """Of a call to an agent with skills; `more` are parts of the stack."""
    return a_snap(window, stack=a_stack(agent or an_agent(instructions="A."), **more))


def saying(*blocks: str | ToolCall, input: int | None = None, finish: str | None = None) -> Reply:
    item = message("assistant", tuple(Text(text=each) if isinstance(each, str) else each for each in blocks))
    usage = None if input is None else Usage(input=input, output=2)
    return Reply(message=item, finish=finish or ("tool_calls" if item.calls else "stop"), usage=usage)


def ran(*results: Ran) -> Any:
    return (like(RunTools, calls=that(lambda calls: len(calls) == len(results))), results)


def prompts(played: Played) -> list[tuple[Message, ...]]:
    return [step.prompt.messages for step in played[Send]]


def left(played: Played) -> Behind | None:
    found = played[Remember][-1].hidden
    return None if found is None else unpacked(found.payload)


def after(*played: Played, **more: Any) -> Memory:
    """What the store knows once these calls of one conversation are over."""
    found = [step.hidden for each in played for step in each[Remember] if step.hidden is not None]
    *_, last = played[-1][Remember]
    made = tuple(step.compaction for each in played for step in each[Remember] if step.compaction is not None)
    return Memory(conversation="conv_new", compactions=made, anchor=last.anchor, hidden=tuple(found), **more)


def alone(messages: tuple[Message, ...] = HELLO, memory: Memory | None = None, **more: Any) -> Played:
    """The model loads a skill, and answers."""
    return play(
        exchange(asked(messages), snap(**more)),
        (like(Recall), memory or Memory()),
        (like(Send, purpose="chat"), saying("Let me look.", loads(), input=100)),
        ran(LOADED),
        (like(Send, purpose="tool_round"), saying("Done.", input=160)),
        (remembered(), None),
    )


# -- layers of a history ---------------------------------------------------------------------------------------------


def made(stack: Stack, messages: tuple[Message, ...], memory: Memory | None = None) -> Layers:
    past = recognise(START, messages)
    return layered(stack, past, placed(past, (memory or Memory()).hidden, newest(messages)))


def told(layers: Layers, messages: tuple[Message, ...]) -> tuple[Message, ...]:
    return layers.told(messages, range(len(messages)), None)


def lead(layers: Layers) -> list[str]:
    """The texts of the leading message: ours before, the client's, ours behind."""
    assert layers.leading is not None
    return [block.text for block in layers.leading.blocks]  # type: ignore[union-attr]


def slugs(catalogue: Catalogue) -> list[str]:
    return [entry.slug for entry in catalogue]


def select(*skills: Skill) -> tuple[Trace, ...]:
    return tuple(Trace(kind="SKILL_SELECT", id=skill.id) for skill in skills)
