"""A gateway with agents, and what is asked of it: four layers on a call, and memory over a long history.

Prompts and skills are made from the bodies' word list, so that they are the same in every run and copied from nowhere.
The plain calls that these are compared with stand in bodies.py.
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from benchmarks.bodies import GROWN, KB, MB, Bodies, Message, agent_history, encoded, grown, prose, salted, small_talk

LAYERED, REMEMBERING, FORGETTING = "layered", "remembering", "forgetting"
STREAMED = "sse-200-0"  # an agent of the model's name: the generator reads there how many chunks must come
SLUG = "mill-repairs"
SKILLS = (SLUG, "flood-watch", "lock-ledger", "bank-survey", "barge-rules", "winter-work")
BASE_SIZE, INSTRUCTIONS_SIZE, SKILL_SIZE, LINE_SIZE = 1200, 2000, 3000, 140
LAYERS_TOKENS = (BASE_SIZE + INSTRUCTIONS_SIZE + SKILL_SIZE) // 4  # as the upstream counts; the catalogue comes on top

_LAYERS = "instructions: {file: prompts/layered.md}, skills: ['*'], tools: [load_skill]"


def agents_config(memory: bool) -> str:
    """The keys that a configuration has more. A base prompt holds for every call of its gateway: the plain calls of a
    comparison go to another. `memory`: agents have that key; it is on by default, and off where it is not measured."""
    off = ", memory: off" if memory else ""
    lines = [
        "base_prompt: {file: prompts/base.md}",
        "skills: {folders: [skills]}",
        "agents:",
        f"  {LAYERED}: {{model: bench, {_LAYERS}{off}}}",
        f"  {STREAMED}: {{model: burst, {_LAYERS}{off}}}",
    ]
    if memory:
        lines += [f"  {REMEMBERING}: {{model: bench}}", f"  {FORGETTING}: {{model: bench{off}}}"]
    return "\n".join(lines) + "\n"


def agents_models() -> str:
    """The model behind STREAMED, whose own name the agent has."""
    return f"models:\n  burst: {{upstream: main, model: {STREAMED}}}\n"


def write_prompts(folder: Path) -> None:
    """What the configuration names: a base prompt, instructions and skills, below `folder`."""
    chance = random.Random("prompts")
    (folder / "prompts").mkdir()
    (folder / "prompts" / "base.md").write_text(prose(chance, BASE_SIZE))
    (folder / "prompts" / "layered.md").write_text(prose(chance, INSTRUCTIONS_SIZE))
    for slug in SKILLS:
        skill = folder / "skills" / "shared" / slug
        skill.mkdir(parents=True)
        line = prose(chance, LINE_SIZE).replace("\n", " ").replace(":", "")
        text = f"---\nname: {slug}\ndescription: Use it. {line}\n---\n{prose(chance, SKILL_SIZE)}\n"
        (skill / "SKILL.md").write_text(text)


def knows_memory(environment: Mapping[str, str], folder: Path) -> bool:
    """Whether agents of this source have the key `memory`."""
    program = "from proxy.agents.keys import AgentSettings as A; print('memory' in A.model_fields)"
    line = (sys.executable, "-c", program)
    done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)
    return done.stdout.strip() == "True"


def selecting(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The same history, whose last message selects a skill."""
    *before, last = messages
    return (*before, msgspec.structs.replace(last, content=f"/{SLUG} {last.content}"))


def with_agent_bodies(bodies: Bodies, folder: Path) -> Bodies:
    """The bodies and, as files in `folder`, those that name an agent."""
    small, middle, large = selecting(small_talk()), selecting(agent_history(150, 300 * KB)), agent_history(400, 2 * MB)
    made: dict[str, tuple[bytes, ...]] = {
        "1 KB layered": (encoded(small, model=LAYERED),),
        "1 KB layered new": (encoded(selecting(salted(small_talk())), model=LAYERED),),
        "300 KB layered": (encoded(middle, model=LAYERED, tools=True),),
        "burst layered": (encoded(small, model=STREAMED, stream=True),),
    }
    for model in (REMEMBERING, FORGETTING):
        made[f"2 MB {model}"] = (encoded(large, model=model, tools=True),)
        made[f"2 MB grown {model}"] = tuple(encoded(one, model=model, tools=True) for one in grown(large, GROWN))
    files = dict(bodies.files)
    for name, contents in made.items():
        files[name] = tuple(folder / f"{name.replace(' ', '-')}-{number}.json" for number in range(len(contents)))
        for path, content in zip(files[name], contents, strict=True):
            path.write_bytes(content)
    return Bodies(files=files, models=bodies.models)


_PROMPT_TOKENS = re.compile(rb'"prompt_tokens":\s*(\d+)')


def prompt_tokens(answer: bytes) -> int:
    """What the upstream counted, JSON or SSE: a quarter of the bytes that it was sent. 0 where it does not say."""
    found = _PROMPT_TOKENS.findall(answer)
    return int(found[-1]) if found else 0
