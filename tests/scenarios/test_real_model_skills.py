"""A real model loads a skill by itself: of ten seeded requests at least eight, directly and through an agent.

The model is the demo's (`demo/model.py`), 135M parameters, taught to call a tool by `demo/tool_calls.jinja`; nothing
forces it to. Directly it is sent what the gateway sends; that part says whether a miss is the model's or ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec
import pytest

from demo import model
from tests.clients import programs
from tests.durability.process import running
from tests.fakes import Script, ScriptedUpstream, SeenRequest
from tests.scenarios.conftest import Figure
from tests.scenarios.gate import Wire, shown, system, user

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

SECONDS = 80.0
"""One request at most, on a busy machine: readers give up after 90."""
EXTRA = {"temperature": 0.2, "logit_bias": [["<", 1.5]], "max_tokens": 80}
"""The nudge makes a call as likely as prose, no more: at 1.0 it calls in 7 of 10, at 2.0 after small talk too."""
AGENT = "support"
ONE_EACH = httpx.Limits(max_keepalive_connections=0)
"""A connection for each request: the model's server closes an idle one whenever it likes."""
INSTRUCTIONS = "You are the support agent. Be brief and friendly."
BASE = "You work for Acme, a shop for garden tools."

SKILLS = {
    "refund-policy": (
        "Use it when a customer wants money back for an order.",
        "Customers get all of their money back within 30 days. Ask for the order number.",
    ),
    "delivery-times": (
        "Use it when a customer asks when a parcel will arrive.",
        "Parcels arrive three working days after the order. They never arrive on Sunday.",
    ),
    "password-reset": (
        "Use it when a customer cannot log in to the account.",
        "Tell the customer to click on Forgot password. The email comes within ten minutes.",
    ),
    "opening-hours": (
        "Use it when a customer asks when the shop is open.",
        "The shop is open from Monday to Saturday, 9 to 18. It is closed on Sunday.",
    ),
}

REQUESTS = (
    ("refund-policy", "I want my money back for the rake I ordered last week."),
    ("delivery-times", "When will my parcel arrive?"),
    ("password-reset", "I cannot log in to my account, the password is wrong."),
    ("opening-hours", "Is the shop open on Sunday?"),
    ("refund-policy", "The spade broke after two days. Can I get a refund?"),
    ("delivery-times", "My order 5530 has not come yet. How long does the delivery take?"),
    ("password-reset", "I forgot my password. What can I do?"),
    ("opening-hours", "What are the opening hours today?"),
    ("refund-policy", "I returned the hose. Do I get all of my money back?"),
    ("delivery-times", "Will the parcel be here before Saturday?"),
)
"""Ten requests, each with the skill that is made for it."""

SMALL_TALK = ("Hi!", "What is two plus two?", "Thank you, that was lovely.", "What is your name?", "Good morning!")
"""No skill is made for these."""


class Tried(NamedTuple):
    """Requests after which a skill was loaded, those where it was the right one, and small talk that loaded one."""

    loaded: int
    right: int
    needless: int


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The model's base URL."""
    folder = tmp_path_factory.mktemp("model")
    try:
        model.install(folder / "install.log")
        with model.served(folder, template=model.TOOL_CALLS) as base_url:
            yield base_url
    except model.CannotRun as reason:
        if programs.in_ci():
            pytest.fail(f"the model does not run here, in CI that is an error: {reason}")
        pytest.skip(f"the model does not run here: {reason}")


def tried(loaded: Sequence[str | None]) -> Tried:
    """`loaded`: the skill loaded after each of REQUESTS, then after each of SMALL_TALK."""
    asked, idle = loaded[: len(REQUESTS)], loaded[len(REQUESTS) :]
    right = sum(found == wanted for found, (wanted, _) in zip(asked, REQUESTS, strict=True))
    return Tried(sum(found is not None for found in asked), right, sum(found is not None for found in idle))


def prove(where: str, found: Tried, figure: Figure) -> None:
    print(f"{where}: {found.loaded}/{len(REQUESTS)} loaded a skill, {found.right} of them the right one")
    figure.all(
        (f"real-model-loads-a-skill[{where}]", found.loaded, ">= 8"),
        (f"real-model-loads-the-right-skill[{where}]", found.right, ">= 8"),
        (f"small-talk-that-loads-a-skill[{where}]", found.needless, "<= 2"),
    )


# -- directly ----------------------------------------------------------------------------------------------------------


def prompt(said: str) -> dict[str, Any]:
    """What the gateway sends for an agent with these skills."""
    catalogue = "\n".join(f"- {slug}: {when}" for slug, (when, _) in SKILLS.items())
    told = (
        f"{BASE}\n\n{INSTRUCTIONS}\n\nSkills that can be loaded with load_skill, each with when to use it. "
        f"Load one before you answer a request that it is made for.\n{catalogue}"
    )
    name = {"type": "string", "enum": list(SKILLS), "description": "The skill to load."}
    parameters = {"type": "object", "properties": {"name": name}, "required": ["name"], "additionalProperties": False}
    function = {"name": "load_skill", "description": "Load the full instructions of a skill.", "parameters": parameters}
    return {"messages": [system(told), user(said)], "tools": [{"type": "function", "function": function}]}


def called(answer: Wire) -> str | None:
    """The skill that an answer of the model calls for."""
    calls = answer["choices"][0]["message"].get("tool_calls") or ()
    return next((str(msgspec.json.decode(one["function"]["arguments"])["name"]) for one in calls), None)


def test_the_model_calls_for_the_skill_when_it_is_told_of_it(server: str, figure: Figure) -> None:
    found = []
    with httpx.Client(base_url=server, timeout=SECONDS, limits=ONE_EACH) as client:
        for seed, said in enumerate((*(said for _, said in REQUESTS), *SMALL_TALK)):
            answer = client.post("/chat/completions", json={**prompt(said), **EXTRA, "seed": seed})
            assert answer.status_code == 200, answer.text
            found.append(called(answer.json()))
    prove("directly", tried(found), figure)


# -- through an agent --------------------------------------------------------------------------------------------------


def written(folder: Path) -> None:
    """A gateway's folder with one agent and its skills, which every organisation shares."""
    config = {
        "base_prompt": BASE,
        "agents": {AGENT: {"model": model.NAME, "instructions": INSTRUCTIONS, "skills": list(SKILLS)}},
        "skills": {"folders": ["skills"]},
    }
    (folder / "weirgate.yaml").write_bytes(msgspec.yaml.encode(config))
    for slug, (when, text) in SKILLS.items():
        place = folder / "skills" / "shared" / slug
        place.mkdir(parents=True)
        (place / "SKILL.md").write_text(f"---\nname: {slug}\ndescription: {when}\n---\n\n{text}\n")


def loaded(seen: Sequence[SeenRequest], said: str) -> str | None:
    """The skill whose text the model was given while it answered `said`."""
    texts = "\n".join(
        shown(message)
        for request in seen
        if any(message["role"] == "user" and shown(message) == said for message in request.messages)
        for message in request.messages
        if message["role"] == "tool"
    )
    return next((slug for slug, (_, text) in SKILLS.items() if text in texts), None)


async def test_an_agent_loads_the_skill_within_the_call(server: str, tmp_path: Path, figure: Figure) -> None:
    programs.need("openai-python")
    written(tmp_path)
    said = [*(said for _, said in REQUESTS), *SMALL_TALK]
    async with httpx.AsyncClient(base_url=server, timeout=SECONDS, limits=ONE_EACH) as client:

        async def passed_on(request: SeenRequest, reply: Script) -> None:
            answer = await client.post("/chat/completions", content=request.body)
            await reply.head(answer.status_code, {"content-type": answer.headers["content-type"]})
            await reply.write(answer.content)
            await reply.end()

        async with (
            ScriptedUpstream(passed_on) as up,
            running(up.url, tmp_path, "--config", "weirgate.yaml", "--window", str(model.WINDOW)) as weir,
        ):
            url = f"http://127.0.0.1:{weir.port}/v1"
            answers = await asyncio.to_thread(
                programs.ask,
                "openai-python",
                [
                    {"base_url": url, "model": AGENT, "messages": [user(each)], "stream": bool(seed % 2),
                     "extra": {**EXTRA, "seed": seed}}
                    for seed, each in enumerate(said)
                ],
                tmp_path,
                seconds=12 * SECONDS,
            )  # fmt: skip
    assert [answer["error"] for answer in answers if answer["error"]] == []
    assert [answer["messages"] for answer in answers] == [1] * len(said)
    assert [answer["calls"] for answer in answers if answer["calls"]] == [], "nobody sees the gateway's own tool"
    seen = [entry.request for entry in up.ledger]
    prove("through an agent", tried([loaded(seen, each) for each in said]), figure)
