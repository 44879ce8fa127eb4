"""What a model does that calls the gateway's tools: cases, the provider that plays them, and an agent's configuration.

A case is played by what the prompt holds, not by what came before: the first user message names case, manner and mode,
and as many replies were given as assistant messages are told. So any number of conversations may run at once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from proxy.core.rounds import MOST
from tests.clients.framing import LOOSE, MANNERS, Told, Wire, body, frames
from tests.fakes import Script, SeenRequest, tool_call
from tests.strict import quarter, violation

TEXTS = {"tone": "Write short and warm sentences.", "refund-policy": "Refunds within 30 days."}
WEATHER: Wire = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
SUN = "sun"
AGAIN = "And once more?"
"""What opens a second turn; the model answers it with `ONCE_MORE`."""
ONCE_MORE = "Once more."


@dataclass(frozen=True)
class Load:
    """A call of the gateway's own tool, and words that its result must hold."""

    arguments: str
    tells: str
    id: str = "w1"
    name: str = "load_skill"

    @property
    def wire(self) -> Wire:
        return tool_call(self.id, self.name, self.arguments)


@dataclass(frozen=True)
class Ask:
    """A call of the client's own tool."""

    city: str
    id: str = "g1"

    @property
    def wire(self) -> Wire:
        return tool_call(self.id, "weather", {"city": self.city})


@dataclass(frozen=True)
class Say:
    """One reply of the model. `finish` follows from the calls where it is not stated."""

    text: str | None = None
    calls: tuple[Load | Ask, ...] = ()
    finish: str = ""
    reasoning: str = ""

    @property
    def told(self) -> Told:
        calls = tuple(call.wire for call in self.calls)
        written = quarter((self.text or "") + self.reasoning + "".join(call["function"]["arguments"] for call in calls))
        usage: Wire = {
            "completion_tokens": written + 1,
            "completion_tokens_details": {"reasoning_tokens": quarter(self.reasoning)},
        }
        finish = self.finish or ("tool_calls" if calls else "stop")
        return Told(text=self.text, calls=calls, finish=finish, usage=usage, reasoning=self.reasoning)


@dataclass(frozen=True)
class Shown:
    """One answer as the client must read it, made of `rounds` replies of the model."""

    text: str
    rounds: int
    calls: tuple[Ask, ...] = ()
    finish: str = "stop"
    reasoning: str = ""


@dataclass(frozen=True)
class Case:
    """What the model says, the last of it for ever, and the answers that the client reads; it answers its calls and
    asks again as long as there is another."""

    says: tuple[Say, ...]
    shown: tuple[Shown, ...]


def load(slug: str = "tone", id: str = "w1", *, again: bool = False) -> Load:
    return Load(json.dumps({"name": slug}), "loaded already" if again else TEXTS.get(slug, "Nothing was loaded"), id)


def question(id: str = "q1", tells: str = "", *, name: str = "ask_user") -> Load:
    """What the user is asked: with `tells`, the sentence that it is answered with, since it is not asked now."""
    asked = {"question": "Which Ann?", "options": ["Ann Berg", "Ann Cole"]}
    wanted = {"action": "Send it", "reason": "It is late"}
    return Load(json.dumps(asked if name == "ask_user" else wanted), tells, id, name)


def read(reference: str, id: str = "r1") -> Load:
    return Load(json.dumps({"reference": reference}), "Nothing was read", id, "read_tool_result")


WHICH = "Which Ann?\n\n1. Ann Berg\n2. Ann Cole"
MAY = "Approval needed: Send it\nReason: It is late\n\nReply yes to allow it; or say no, or what to do instead."
APPROVE = question(name="request_approval")
PARIS, ROME = Ask("Paris"), Ask("Rome", "g2")
DEAR, SUNNY = Say("Dear Ann."), Say("Sunny.")
_NOTHING = Load("[]", "was not asked", "q1", "ask_user")
_HM = "\n\n".join(["Hm."] * (MOST + 1))

CASES: Mapping[str, Case] = {
    "nothing of ours": Case(
        (Say("See.", (PARIS,)), SUNNY), (Shown("See.", 1, (PARIS,), "tool_calls"), Shown("Sunny.", 1))
    ),
    "alone": Case((Say(None, (load(),)), DEAR), (Shown("Dear Ann.", 2),)),
    "text before": Case((Say("Let me look.", (load(),)), DEAR), (Shown("Let me look.\n\nDear Ann.", 2),)),
    "thoughts before": Case(
        (Say(None, (load(),), reasoning="Which tone?"), Say("Dear Ann.", reasoning="Warm.")),
        (Shown("Dear Ann.", 2, reasoning="Which tone?Warm."),),
    ),
    "mixed with thoughts": Case(
        (Say("See.", (load(), PARIS), reasoning="Where?"), SUNNY),
        (Shown("See.", 1, (PARIS,), "tool_calls", "Where?"), Shown("Sunny.", 1)),
    ),
    "mixed": Case(
        (Say("See.", (load(), PARIS)), SUNNY), (Shown("See.", 1, (PARIS,), "tool_calls"), Shown("Sunny.", 1))
    ),
    "mixed, theirs first": Case(
        (Say(None, (PARIS, load())), SUNNY), (Shown("", 1, (PARIS,), "tool_calls"), Shown("Sunny.", 1))
    ),
    "mixed, ours between": Case(
        (Say(None, (PARIS, load(), ROME)), SUNNY), (Shown("", 1, (PARIS, ROME), "tool_calls"), Shown("Sunny.", 1))
    ),
    "mixed, theirs between": Case(
        (Say("See.", (load(), PARIS, load("refund-policy", "w2"))), SUNNY),
        (Shown("See.", 1, (PARIS,), "tool_calls"), Shown("Sunny.", 1)),
    ),
    "mixed in a later round": Case(
        (Say("Hm.", (load(),)), Say("See.", (PARIS, load("refund-policy", "w2"))), SUNNY),
        (Shown("Hm.\n\nSee.", 2, (PARIS,), "tool_calls"), Shown("Sunny.", 1)),
    ),
    "mixed twice": Case(
        (Say(None, (load(), PARIS)), Say(None, (ROME, load("refund-policy", "w2"))), SUNNY),
        (Shown("", 1, (PARIS,), "tool_calls"), Shown("", 1, (ROME,), "tool_calls"), Shown("Sunny.", 1)),
    ),
    "theirs, then ours": Case(
        (Say("See.", (PARIS,)), Say("Hm.", (load(),)), SUNNY),
        (Shown("See.", 1, (PARIS,), "tool_calls"), Shown("Hm.\n\nSunny.", 2)),
    ),
    "ours, then theirs": Case(
        (Say(None, (load(),)), Say("See.", (PARIS, ROME)), Say(None, (load("refund-policy", "w2"),)), SUNNY),
        (Shown("See.", 2, (PARIS, ROME), "tool_calls"), Shown("Sunny.", 2)),
    ),
    "two rounds": Case(
        (Say("One.", (load(),)), Say("Two.", (load("refund-policy", "w2"),)), DEAR),
        (Shown("One.\n\nTwo.\n\nDear Ann.", 3),),
    ),
    "two at once": Case((Say(None, (load(), load("refund-policy", "w2"))), DEAR), (Shown("Dear Ann.", 2),)),
    "the same twice": Case((Say(None, (load(), load(id="w2", again=True))), DEAR), (Shown("Dear Ann.", 2),)),
    "the same again": Case(
        (Say(None, (load(),)), Say(None, (load(id="w2", again=True),)), DEAR), (Shown("Dear Ann.", 3),)
    ),
    "an id used again": Case(
        (Say(None, (load(id="c0"),)), Say(None, (Ask("Paris", "c0"),)), SUNNY),
        (Shown("", 2, (Ask("Paris", "c0"),), "tool_calls"), Shown("Sunny.", 1)),
    ),
    "bad slug": Case((Say(None, (load("nobody"),)), DEAR), (Shown("Dear Ann.", 2),)),
    "broken JSON": Case((Say("Hm.", (Load('{"name": "to', "must be a JSON"),)), DEAR), (Shown("Hm.\n\nDear Ann.", 2),)),
    "no object": Case((Say(None, (Load("[]", "must be a JSON"),)), DEAR), (Shown("Dear Ann.", 2),)),
    "no arguments": Case((Say(None, (Load("", "must be a JSON"),)), DEAR), (Shown("Dear Ann.", 2),)),
    "for ever": Case((Say("Hm.", (load(),)), Say("Hm.", (load(again=True),))), (Shown(_HM, MOST + 1),)),
    "for ever, in silence": Case((Say(None, (load(),)), Say(None, (load(again=True),))), (Shown("", MOST + 1),)),
    "cut in our call": Case(
        (Say("Hm.", (Load('{"na', ""),), finish="length"),), (Shown("Hm.", 1, finish="length"),)
    ),
    "cut in a later round": Case(
        (Say(None, (load(),)), Say("Dear A", finish="length")), (Shown("Dear A", 2, finish="length"),)
    ),
    "cut in our later call": Case(
        (Say("Hm.", (load(),)), Say("So.", (Load('{"na', ""),), finish="length")),
        (Shown("Hm.\n\nSo.", 2, finish="length"),),
    ),
    "a question": Case((Say("Hm.", (question(),)),), (Shown(f"Hm.\n\n{WHICH}", 1),)),
    "a question alone": Case((Say(None, (question(),)),), (Shown(WHICH, 1),)),
    "a question and thoughts": Case(
        (Say("Hm.", (question(),), reasoning="Who?"),), (Shown(f"Hm.\n\n{WHICH}", 1, reasoning="Who?"),)
    ),
    "an approval": Case((Say("Hm.", (APPROVE,)),), (Shown(f"Hm.\n\n{MAY}", 1),)),
    "two questions at once": Case((Say(None, (question(), question("q2"))),), (Shown(WHICH, 1),)),
    "a skill, then a question": Case(
        (Say("One.", (load(),)), Say("Two.", (question(),))), (Shown(f"One.\n\nTwo.\n\n{WHICH}", 2),)
    ),
    "a skill with a question": Case((Say("Hm.", (load(), question())),), (Shown(f"Hm.\n\n{WHICH}", 1),)),
    "a question beside theirs": Case(
        (Say("See.", (question(tells="run first"), PARIS)), SUNNY),
        (Shown("See.", 1, (PARIS,), "tool_calls"), Shown("Sunny.", 1)),
    ),
    "theirs, then a question": Case(
        (Say("See.", (PARIS,)), Say(None, (question(),))), (Shown("See.", 1, (PARIS,), "tool_calls"), Shown(WHICH, 1))
    ),
    "no question": Case((Say("Hm.", (_NOTHING,)), DEAR), (Shown("Hm.\n\nDear Ann.", 2),)),
    "no question, for ever": Case((Say("Hm.", (_NOTHING,)),), (Shown(_HM, MOST + 1),)),
    "cut in a question": Case(
        (Say("Hm.", (Load('{"ques', "", "q1", "ask_user"),), finish="length"),), (Shown("Hm.", 1, finish="length"),)
    ),
    "bad reference": Case((Say("Hm.", (read("res_nobody"),)), DEAR), (Shown("Hm.\n\nDear Ann.", 2),)),
    "bad reference, twice": Case((Say(None, (read("x"), read("y", "r2"))), DEAR), (Shown("Dear Ann.", 2),)),
    "bad reference, for ever": Case((Say("Hm.", (read("res_nobody"),)),), (Shown(_HM, MOST + 1),)),
    "bad reference beside theirs": Case(
        (Say("See.", (read("res_nobody"), PARIS)), SUNNY),
        (Shown("See.", 1, (PARIS,), "tool_calls"), Shown("Sunny.", 1)),
    ),
    "finish says stop": Case((Say("Hm.", (load(),), finish="stop"), DEAR), (Shown("Hm.\n\nDear Ann.", 2),)),
}  # fmt: skip


@dataclass(frozen=True)
class Key:
    """One conversation of a test; its text is what the user says and who he is."""

    case: str
    manner: str
    mode: str
    agent: str = "support"

    def __str__(self) -> str:
        return f"{self.case}/{self.manner}/{self.mode}/{self.agent}"

    @property
    def stream(self) -> bool:
        return self.mode != "json"

    @property
    def usage(self) -> bool:
        """Whether usage is asked for. A JSON body states it always."""
        return self.mode != "sse"

    @classmethod
    def of(cls, request: SeenRequest) -> Key:
        first = next(message for message in request.messages if message["role"] == "user")
        content = first["content"]
        text = content if isinstance(content, str) else content[0]["text"]
        return cls(*text.split("/"))


class Model:
    """The handler: plays `CASES`, and finds fault with prompts that a strict provider would refuse."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self._answers = 0

    async def __call__(self, request: SeenRequest, reply: Script) -> None:
        key = Key.of(request)
        if (fault := violation(request.json)) is not None:
            self.violations.append(f"{key}: {fault}")
        await self.say(said(key, request), request, reply)

    async def say(self, what: Say, request: SeenRequest, reply: Script) -> None:
        """Say it in the manner of the conversation."""
        self._answers += 1
        key, read = Key.of(request), measured(request)
        counted = {"prompt_tokens": read, "prompt_tokens_details": {"cached_tokens": read // 2}, **what.told.usage}
        counted["total_tokens"] = read + counted["completion_tokens"]
        told = replace(what.told, usage=counted)
        about = {"id": f"chatcmpl-{self._answers}", "created": self._answers, "model": "scripted"}
        if not request.stream:
            await reply.json(200, body(told, about))
            return
        asked = bool((request.json.get("stream_options") or {}).get("include_usage"))
        manner = key.manner if key.manner in MANNERS | LOOSE else "openai"
        await reply.sse(frames(told, about, manner, usage=asked))


def said(key: Key, request: SeenRequest) -> Say:
    """What the model says to this prompt."""
    if request.messages[-1].get("content") == AGAIN:
        return Say(ONCE_MORE)
    says = CASES[key.case].says
    return says[min(sum(message["role"] == "assistant" for message in request.messages), len(says) - 1)]


def measured(request: SeenRequest) -> int:
    """A prompt in tokens, those of its key left out: equal in every manner and mode."""
    messages = json.dumps([_plain(message) for message in request.messages]).replace(str(Key.of(request)), "")
    return quarter(messages) + quarter(json.dumps(request.json.get("tools"), sort_keys=True))


def _plain(message: Wire) -> tuple[str, str, list[Wire]]:
    """What is in a message, however its client writes it."""
    content = message.get("content") or ""
    text = content if isinstance(content, str) else "".join(part["text"] for part in content)
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return message["role"], text, [{**call, "arguments": json.loads(call["arguments"])} for call in calls]


def installed(folder: Path, *, normalise: bool = False) -> None:
    """An agent `support` with two skills, and `steady`, the same without memory of closed turns, in weir.yaml."""
    for slug, text in TEXTS.items():
        place = folder / "skills" / "shared" / slug
        place.mkdir(parents=True)
        (place / "SKILL.md").write_text(f"---\nname: {slug}\ndescription: About {slug}.\n---\n{text}\n")
    tools = ["load_skill", "read_tool_result", "ask_user", "request_approval"]
    agent: dict[str, Any] = {"model": "fast", "instructions": "Help.", "skills": list(TEXTS), "tools": tools}
    settings = {
        "models": {"fast": {"upstream": "main", "model": "scripted"}},
        "agents": {"support": agent, "steady": {**agent, "memory": "off"}},
        "skills": {"folders": ["skills"]},
        "base_prompt": "You work for a shop.",
        "upstreams": {"main": {"normalise": normalise}},
    }
    (folder / "weir.yaml").write_text(json.dumps(settings))
