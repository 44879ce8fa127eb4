"""A coding agent's session that outgrows its model's window many times over: every turn is answered.

One tool call a turn, the whole history sent again with each call, about 870 tokens a turn, a provider of 8,192 tokens
that refuses orphan tool results (research/peers.md 4: without a gateway such a session dies in turn 10).
"""

from __future__ import annotations

import json
import random

import pytest

from proxy.core.usage import UsageRow
from tests.fakes import ScriptedUpstream, SeenRequest, tool_call
from tests.scenarios.conftest import Figure
from tests.scenarios.gate import Answer, Gate, Wire, assistant, gate, shown, system, tool, user
from tests.strict import StrictUpstream, quarter

WINDOW = 8_192
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "read_file",
            "description": "Read a file of the work tree.",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
        },
    }
]
WORDS = "harbour ledger tide module value error build client window token river gate sluice bank level".split()


def model(request: SeenRequest) -> Wire:
    """Calls its tool when the user spoke last, else reports what it did."""
    last = request.messages[-1]
    turn = sum(message["role"] == "user" for message in request.messages)
    if last["role"] != "user":
        return assistant(f"Step done, the file reads well. {turn} requests are in sight. " * 3)
    path = {"path": f"src/part_{len(request.body) % 1000}.py"}
    return assistant(None, tool_call(f"call_{len(request.body)}_{turn}", "read_file", path))


class Agent:
    """The client's side: its history, and what came back."""

    def __init__(self, weir: Gate, stream: bool) -> None:
        self.weir = weir
        self.stream = stream
        self.history: list[Wire] = [system("You are a careful coding agent.")]
        self.answers: list[Answer] = []
        self.answered = 0
        self.draw = random.Random(4)

    def text(self, words: int) -> str:
        return " ".join(f"{self.draw.choice(WORDS)}{self.draw.randrange(1000)}" for _ in range(words))

    async def call(self) -> Wire | None:
        answer = await self.weir.ask(self.history, tools=TOOLS, max_tokens=256, stream=self.stream)
        self.answers.append(answer)
        if answer.status != 200 or (self.stream and not answer.done):
            return None
        self.history.append(answer.message)
        return answer.message

    async def turn(self, number: int) -> None:
        self.history.append(user(f"Turn {number}: please look at part {number}, {self.text(20)}"))
        said = await self.call()
        if said is None:
            return
        self.history += [tool(call["id"], self.text(330)) for call in said["tool_calls"]]
        self.answered += await self.call() is not None


class Session:
    """How a session went: the client's side, the provider's, and the store."""

    def __init__(self, agent: Agent, provider: StrictUpstream, stored: dict[str, int], rows: list[UsageRow]) -> None:
        self.agent = agent
        self.provider = provider
        self.stored = stored
        self.rows = rows


async def session(turns: int, stream: bool, stated: int | None) -> Session:
    """`turns` turns through the gateway that was told a window of `stated` tokens."""
    provider = StrictUpstream(window=WINDOW, answer=model)
    async with ScriptedUpstream(provider) as up, gate(up.url, window=stated) as weir:
        agent = Agent(weir, stream)
        for number in range(turns):
            await agent.turn(number)
        return Session(agent, provider, await weir.stored(), await weir.rows())


async def prove_a_known_window(turns: int, stream: bool, figure: Figure) -> None:
    played = await session(turns, stream, WINDOW)
    kind = f"session of {turns} turns, {'SSE' if stream else 'JSON'}"
    spent = sum(quarter(shown(message)) + 4 for message in played.agent.history) / turns
    assert 800 < spent < 950, "the session is not the one that the figures are about"
    figure.all(
        (f"{kind}: turns answered", played.agent.answered, f"== {turns}"),
        (f"{kind}: malformed prompts", len(played.provider.violations), "== 0"),
        (f"{kind}: refused by the provider", played.provider.overflows, "== 0"),
        (f"{kind}: compactions a turn", played.stored["compaction"] / turns, f"<= {1 / 3}"),
    )
    assert played.stored["compaction"] >= 1
    assert len(played.rows) == len(played.agent.answers) == played.provider.served


async def prove_a_wrong_window(turns: int, stream: bool, stated: int | None, figure: Figure) -> None:
    played = await session(turns, stream, stated)
    refused, made = played.provider.overflows, played.stored["compaction"]
    kind = f"session of {turns} turns, window {stated or 'unknown'}, {'SSE' if stream else 'JSON'}"
    figure.all(
        (f"{kind}: turns answered", played.agent.answered, f"== {turns}"),
        (f"{kind}: malformed prompts", len(played.provider.violations), "== 0"),
        (f"{kind}: refusals a compaction", refused / made, "<= 1"),
        (f"{kind}: compactions a turn", made / turns, f"<= {1 / 3}"),
    )
    assert refused, "nothing was refused: the window was not wrong"
    assert sum(row.purpose == "recovery" for row in played.rows) == refused


formats = pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
wrong = pytest.mark.parametrize("stated", [4 * WINDOW, None], ids=["four times too high", "unknown"])


@formats
async def test_a_session_of_fourteen_turns_is_answered(stream: bool, figure: Figure) -> None:
    await prove_a_known_window(14, stream, figure)


@pytest.mark.timeout(240)
async def test_a_session_of_two_hundred_turns_is_answered(figure: Figure) -> None:
    await prove_a_known_window(200, True, figure)


@formats
@wrong
async def test_a_window_that_is_wrong_or_unknown_costs_one_refusal_a_compaction_at_most(
    stated: int | None, stream: bool, figure: Figure
) -> None:
    await prove_a_wrong_window(30, stream, stated, figure)


@pytest.mark.slow
@pytest.mark.timeout(600)
@formats
async def test_two_hundred_turns_are_answered_in_either_format(stream: bool, figure: Figure) -> None:
    await prove_a_known_window(200, stream, figure)


@pytest.mark.slow
@pytest.mark.timeout(600)
@formats
@wrong
async def test_two_hundred_turns_with_a_wrong_window_are_answered(
    stated: int | None, stream: bool, figure: Figure
) -> None:
    await prove_a_wrong_window(200, stream, stated, figure)


async def test_without_the_gateway_the_same_session_breaks() -> None:
    """What the other tests prove is the gateway's doing."""
    provider = StrictUpstream(window=WINDOW, answer=model)
    async with ScriptedUpstream(provider) as up, gate(up.url) as weir:
        agent = Agent(weir, False)
        for number in range(14):
            agent.history.append(user(f"Turn {number}: {agent.text(20)}"))
            answer = await weir.ask(agent.history, tools=TOOLS, headers={"x-weirgate-mode": "off"})
            if answer.status != 200:
                assert answer.code == "context_length_exceeded"
                break
            said = answer.message
            agent.history += [said, tool(json.loads(json.dumps(said))["tool_calls"][0]["id"], agent.text(330))]
        assert 7 < number < 13
