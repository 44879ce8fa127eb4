"""What becomes of conversations that outgrow their window, through each gateway in turn.

    python benchmarks/outgrown.py [--conversations tau,aider] [--contenders direct,weirgate] [--write]

Recorded conversations, with facts and rules planted at every tenth (`planting`), are sent as their client would: the
whole history again at each call, and the recorded answer behind it whatever came back. The provider is strict: it
refuses a prompt over its window and one that is malformed, and answers whoever asks for a summary as a good model
would, with the sentences that hold what was planted. Two arms: every gateway that takes a window is told the right
one; and one four times as large, as a wrong entry in a table says, or none where it has no such setting. `--write`
writes outgrown.md.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import re
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, Literal

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # started as a file: the repository is not on the path

import msgspec

from benchmarks import peers
from benchmarks.build import Unavailable
from benchmarks.contenders import Site
from benchmarks.launch import Launch, Place, Running, answer, launched
from benchmarks.planting import Planted, planted
from benchmarks.processes import cores
from benchmarks.summarisers import narrative
from proxy.core.fence import SECTIONS
from tests.data import Conversation, conversations
from tests.fakes import Script, ScriptedUpstream, SeenRequest
from tests.strict import StrictUpstream

WINDOW: Final = 16_000
ROOM: Final = 2_000
"""Tokens of a summary that the scripted model writes at most."""
STEP: Final = 16
"""A call is made whenever one part in so many of the window was added."""
CHOSEN: Final = ("aider-day", "specstory-2026-01-29", "specstory-2026-06-18", "specstory-2026-07-20-13-11-09-b")
CONTENDERS: Final = ("direct", "weirgate", *peers.NAMES)
PATIENCE: Final = 120.0
_HEAD: Final = 40
"""Characters by which a request of the user is found in a prompt."""
_SENTENCE: Final = re.compile(r"(?<=[.!?。])\s+|\n")
_RESULTS: Final = Path(__file__).resolve().parent / "outgrown.md"

Arm = Literal["the right window", "four times the window, or none"]
ARMS: Final[tuple[Arm, ...]] = ("the right window", "four times the window, or none")


class Score(msgspec.Struct, kw_only=True):
    """Of one contender in one arm."""

    calls: int = 0
    answered: int = 0
    overflows: int = 0
    """That reached the client."""
    other: Counter[int] = msgspec.field(default_factory=Counter)
    """Other refusals that did, by status."""
    upstream: int = 0
    summaries: int = 0
    malformed: int = 0
    read: int = 0
    """Tokens that the provider read."""
    kept: int = 0
    shown: int = 0
    """Characters of a prompt that also begin the one before it, of those that could."""
    facts: Counter[bool] = msgspec.field(default_factory=Counter)
    rules: Counter[bool] = msgspec.field(default_factory=Counter)
    requests: Counter[bool] = msgspec.field(default_factory=Counter)
    """Whether they stand in the last prompt of a conversation; none does where the last call failed."""


class Provider(StrictUpstream):
    """The strict provider. What ends in `newest` is the conversation's call, all else asks for a summary."""

    def __init__(self, window: int) -> None:
        super().__init__(window=window, answer=self._said)
        self.newest = ""
        self.wanted: tuple[str, ...] = ()
        self.prompt = ""
        """Of the conversation's last call that was answered."""
        self.before = ""
        self.score = Score()

    async def __call__(self, request: SeenRequest, reply: Script) -> None:
        if not request.path.endswith("/chat/completions"):
            await reply.json(404, {"error": {"message": "There is nothing here."}})
            return
        self.score.upstream += 1
        bad = len(self.violations)
        await super().__call__(request, reply)
        self.score.malformed += len(self.violations) - bad

    def _said(self, request: SeenRequest) -> str:
        texts = [text_of(item) for item in request.json["messages"]]
        self.score.read += self.prompts[-1]
        if not texts[-1].rstrip().endswith(self.newest):
            self.score.summaries += 1
            return summary("\n".join(texts), self.wanted)
        self.prompt = "\n".join(texts)
        self.score.kept += alike(self.before, self.prompt)
        self.score.shown += min(len(self.before), len(self.prompt))
        self.before = self.prompt
        return "Done."


def text_of(message: dict[str, Any]) -> str:
    """All that a message says and calls."""
    content = message.get("content")
    parts = [content] if isinstance(content, str) else [part.get("text") or "" for part in content or ()]
    calls = [f"{call['function']['name']} {call['function']['arguments']}" for call in message.get("tool_calls") or ()]
    return "\n".join([*parts, *calls])


def alike(one: str, other: str) -> int:
    """Characters that both begin with."""
    least, most = 0, min(len(one), len(other))
    while least < most:
        middle = (least + most + 1) // 2
        least, most = (middle, most) if one.startswith(other[least:middle], least) else (least, middle - 1)
    return least


def summary(text: str, wanted: Sequence[str]) -> str:
    """The sentences with what is `wanted`, newest first: in our sections where they are asked for, else as a list."""
    found: dict[str, str] = {}
    for sentence in _SENTENCE.split(text):
        if any(each in sentence for each in wanted):
            found[f"- {sentence.strip().removeprefix('- ')[:400]}"] = "Facts"
    if all(title in text for title in SECTIONS):
        return narrative(found, ROOM)
    return "So far the user worked through several requests.\n" + narrative(found, ROOM).partition("## Facts\n")[2]


def play(row: Conversation, running: Running, provider: Provider) -> None:
    """One conversation, from its first call to its last."""
    plants = planted(row.id, [item for item in row.messages if item["role"] not in ("system", "developer")])
    provider.wanted = (*(fact.text for fact in plants.facts), *(rule for *_, rule in plants.rules))
    provider.prompt = provider.before = ""
    added, last, reached = 0, False, 0
    for index, item in enumerate(plants.messages):
        if item["role"] == "assistant" and added > WINDOW // STEP and text_of(plants.messages[index - 1]).strip():
            provider.newest = text_of(plants.messages[index - 1]).rstrip()[-_HEAD:]
            last, added, reached = call(running, plants.messages[:index], provider.score), 0, index
        added += len(text_of(item)) // 4
    judge(provider, plants, reached, provider.prompt if last else "")


def call(running: Running, history: list[dict[str, Any]], score: Score) -> bool:
    """Whether it was answered."""
    score.calls += 1
    body = json.dumps({"model": "outgrown", "messages": history}).encode()
    try:
        found = answer(running.port, body, running.headers, PATIENCE)
    except (OSError, http.client.HTTPException):
        score.other[0] += 1
        return False
    if found.status == 200:
        score.answered += 1
        return True
    if b"context" in found.content and b"length" in found.content:
        score.overflows += 1
    else:
        score.other[found.status] += 1
    return False


def judge(provider: Provider, plants: Planted, upto: int, prompt: str) -> None:
    """Take down what the last prompt still holds of the first `upto` messages."""
    score = provider.score
    score.facts.update(fact.text in prompt for fact in plants.facts if fact.index < upto)
    score.rules.update(rule in prompt for index, _, rule in plants.rules if index < upto)
    asked = [text_of(item).strip() for item in plants.messages[:upto] if item["role"] == "user"]
    score.requests.update(" ".join(text.split())[:_HEAD] in " ".join(prompt.split()) for text in asked if text)


def launch(name: str, place: Place, arm: Arm) -> Launch:
    """Raises Unavailable."""
    known = arm == "the right window"
    if name == "weirgate":
        line = (sys.executable, "-m", "proxy", "serve", "--upstream", f"http://127.0.0.1:{place.upstream}/v1")
        line = (*line, "--port", str(place.port), "--store", f"sqlite:///{place.folder}/weirgate.db")
        root = str(Path(__file__).resolve().parent.parent)
        return Launch(
            line=(*line, "--window", str(WINDOW if known else 4 * WINDOW)),
            environment=os.environ | {"PYTHONPATH": root},
        )
    made = peers.launch(name, place)
    if name == "context-guardian":
        window = {"GUARDIAN_NUM_CTX": str(WINDOW if known else 4 * WINDOW)}
        return msgspec.structs.replace(made, environment=dict(made.environment or {}) | window)
    if name == "cliffcompaction":  # its threshold is a number of tokens of the prompt; its own default is 200,000
        threshold = str(int(0.85 * WINDOW) if known else 200_000)
        line = tuple(threshold if word == "10000000" else word for word in made.line)
        return msgspec.structs.replace(made, line=line)
    return made


@contextmanager
def served(provider: Provider) -> Iterator[ScriptedUpstream]:
    """The provider on a thread of its own: who starts a contender waits for its first answer."""
    upstream, ready = ScriptedUpstream(provider), threading.Event()
    ends: list[Callable[[], object]] = []

    async def serve() -> None:
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        ends.append(lambda: loop.call_soon_threadsafe(ended.set))
        async with upstream:
            ready.set()
            await ended.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    ready.wait(PATIENCE)
    try:
        yield upstream
    finally:
        ends[0]()
        thread.join(PATIENCE)


def measure(name: str, arm: Arm, rows: Sequence[Conversation], say: Callable[[str], None]) -> Score:
    """Raises Unavailable where the contender does not come up."""
    provider = Provider(WINDOW)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weirgate-outgrown-")))
        upstream = stack.enter_context(served(provider))
        port = int(upstream.url.rpartition(":")[2].partition("/")[0])
        site = Site(folder=folder, upstream=port, models=("bench", "outgrown"), cores=cores())
        place = site.place(name)
        if name == "direct":
            running = Running(name=name, port=port, pid=0, startup_s=0.0, idle_rss=0)
        else:
            running = launched(name, launch(name, place, arm), place, stack, site.cores)
        provider.score = Score()
        for row in rows:
            say(f"{arm}: {name}, {row.id}")
            play(row, running, provider)
            upstream.ledger.clear()
    return provider.score


COLUMNS: Final = (
    "gateway",
    "answered",
    "overflows at the client",
    "other refusals",
    "malformed prompts",
    "calls of the provider",
    "of them summaries",
    "tokens read per answer",
    "kept prefix",
    "facts told",
    "rules told",
    "requests told",
)


def report(found: dict[tuple[Arm, str], Score | str], rows: Sequence[Conversation]) -> str:
    """In Markdown."""
    named = ", ".join(f"{row.id} ({len(row.messages)} messages)" for row in rows)
    lines = [
        "# Conversations that outgrow their window",
        "",
        "Made by `python benchmarks/outgrown.py --write`; what is measured, and how, stands at the head of that file.",
        "",
        f"- window of the provider: {WINDOW:,} tokens (four characters each); conversations: {named}",
        "- told: of the facts, rules and requests of a conversation those that stand word for word in the prompt of",
        "  its last call; nothing does where that call failed",
        "- kept prefix: of a prompt's characters those that also began the prompt before, which a provider's cache",
        "  bills at a fraction",
    ]
    for arm in dict.fromkeys(arm for arm, _ in found):
        lines += ["", f"## Told {arm}", "", f"| {' | '.join(COLUMNS)} |", "| --- |" + " ---: |" * (len(COLUMNS) - 1)]
        lines += [_line(name, score) for (each, name), score in found.items() if each == arm]
    return "\n".join([*lines, ""])


def _line(name: str, score: Score | str) -> str:
    if isinstance(score, str):
        return f"| {name} | not run: {score} |"
    shares = [_share(each) for each in (score.facts, score.rules, score.requests)]
    cells = (
        f"{score.answered} of {score.calls}",
        f"{score.overflows}",
        f"{score.other.total()}",
        f"{score.malformed}",
        f"{score.upstream}",
        f"{score.summaries}",
        f"{score.read // max(1, score.answered):,}",
        f"{score.kept / max(1, score.shown):.0%}",
        *shares,
    )
    return f"| {name} | " + " | ".join(cells) + " |"


def _share(found: Counter[bool]) -> str:
    return f"{found[True] / max(1, found.total()):.0%}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--conversations", default=",".join(CHOSEN), metavar="A,B", help="whose ids begin with these")
    parser.add_argument(
        "--contenders", default=",".join(CONTENDERS), metavar="A,B", help="among " + ", ".join(CONTENDERS)
    )
    parser.add_argument("--write", action="store_true", help=f"write benchmarks/{_RESULTS.name}")
    asked = parser.parse_args()
    rows = [row for row in conversations() if row.id.startswith(tuple(asked.conversations.split(",")))]
    if not rows:
        print("none of these conversations is recorded")
        return 2
    found: dict[tuple[Arm, str], Score | str] = {}
    for arm in ARMS:
        for name in asked.contenders.split(","):
            try:
                found[arm, name] = measure(name, arm, rows, lambda line: print(line, file=sys.stderr))
            except (Unavailable, OSError) as problem:
                found[arm, name] = str(problem).partition("\n")[0]
    text = report(found, rows)
    print(text)
    if asked.write:
        _RESULTS.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
