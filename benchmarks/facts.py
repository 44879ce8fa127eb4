"""What is left of a conversation after many compactions: planted facts, planted rules, and every request of the user.

    python benchmarks/facts.py                                  # 8,000 tokens; after 1, 3, 10 and 100 compactions
    python benchmarks/facts.py --compactions 1,3,10 aider tau   # conversations whose id begins so
    python benchmarks/facts.py --summarisers hostile --misses 20

Recorded conversations with ten requests and more, facts and rules planted at every tenth (`planting`), are sent
message by message through the core's own exchange (`dry`), and go round again, without what was planted, until they
were compacted often enough. Right behind a compaction the prompt is asked: is the fact told? If not, does a reference
in the notes lead to it in the store, from page to page? System messages and tools are left out: at this window some of
them leave no room for anything else.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # started as a file: the repository is not on the path

from benchmarks.dry import Dry
from benchmarks.planting import KINDS, Planted, planted
from benchmarks.retention import accounted, said
from benchmarks.summarisers import Empty, Hostile, good
from proxy.core import groups
from proxy.core.conversation import Message
from proxy.core.measure import estimate
from proxy.core.narrative import REFERENCE
from proxy.core.notes import Compaction
from proxy.core.render import notes_text
from proxy.core.steps import Prompt, Reply, Summarise
from proxy.dialects.chat.messages import read_message
from tests.data import Conversation, conversations

WINDOW: Final = 8_000
COMPACTIONS: Final = (1, 3, 10, 100)
CHARACTERS: Final = ("good", "empty", "hostile")
BARS: Final = {"rules": 1.0, "facts": 0.95}
_LEAST_REQUESTS: Final = 10
_LEAST_SIZE: Final = 15_000
"""Characters of a conversation that is worth going round in."""
_STEP: Final = 16
"""A call is made whenever one part in so many of the window was added."""
_CALLS: Final = 20_000


class Score:
    """What was found right behind the n-th compactions of all conversations."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.facts: Counter[tuple[str, str]] = Counter()
        self.rules: Counter[tuple[str, bool]] = Counter()
        self.sizes: list[int] = []
        self.prompts: list[float] = []
        self.written = 0
        self.missed: list[str] = []
        self.conversations = 0

    def share(self, *places: str) -> float:
        """Of the planted facts, those in `places` (told, behind)."""
        found = sum(count for (_, place), count in self.facts.items() if place in places)
        return found / (self.facts.total() or 1)

    @property
    def rules_kept(self) -> float:
        return sum(count for (_, there), count in self.rules.items() if there) / (self.rules.total() or 1)


def long_enough(row: Conversation) -> bool:
    requests = sum(item["role"] == "user" for item in row.messages)
    return requests >= _LEAST_REQUESTS and sum(len(str(item.get("content"))) for item in row.messages) >= _LEAST_SIZE


def summariser(character: str, plants: Planted) -> Callable[[Summarise[Any]], Reply]:
    if character == "good":
        return good([fact.text for fact in plants.facts], [rule for *_, rule in plants.rules])
    return Empty() if character == "empty" else Hostile()


def play(row: Conversation, character: str, scores: dict[int, Score], window: int = WINDOW) -> Dry:
    """Play `row` before a summary model of `character` until the last of `scores` is filled in."""
    spoken = [item for item in row.messages if item["role"] not in ("system", "developer")]
    plants = planted(row.id, spoken)
    first, again = _read(plants.messages), _read(spoken)
    dry = Dry(window, summariser(character, plants))
    history: list[Message] = []
    added = made = calls = 0
    last = max(scores)
    upto = 0
    while made < last:
        for item in first if upto < len(first) else again:
            upto += 1
            if item.role == "assistant" and added > window // _STEP:
                calls += 1
                assert calls < _CALLS, f"{row.id} was compacted {made} times in {calls} calls"
                prompt, compaction = dry.call(tuple(history), item)
                added = 0
                if compaction is not None:
                    made += 1
                    if made in scores:
                        _judge(scores[made], row.id, dry, tuple(history), prompt, compaction, plants, upto - 1)
                    if made == last:
                        break
            history.append(item)
            added += item.tokens
    return dry


def _read(messages: list[dict[str, Any]]) -> list[Message]:
    return [read_message(json.dumps(item, ensure_ascii=False).encode(), n) for n, item in enumerate(messages)]


def _judge(
    score: Score,
    name: str,
    dry: Dry,
    history: tuple[Message, ...],
    prompt: Prompt,
    made: Compaction,
    plants: Planted,
    upto: int,
) -> None:
    """Take down what `prompt` still holds of the first `upto` messages of the conversation."""
    text = "\n".join(map(said, prompt.messages))
    notes = notes_text(made)
    score.conversations += 1
    score.sizes.append(estimate(notes))
    score.prompts.append(prompt.estimated)
    score.written += bool(made.notes.narrative)
    score.requests.update(accounted(groups.repair(history).messages, text, made))
    kept = "\n".join(_behind(notes, dry.store.results))
    for fact in plants.facts:
        if fact.index < upto:
            place = "told" if fact.text in text else "behind" if fact.text in kept else "lost"
            score.facts[fact.kind, place] += 1
            score.missed += [f"{name}: {fact.kind} {fact.text}"] if place == "lost" else []
    for index, language, rule in plants.rules:
        if index < upto:
            score.rules[language, rule in text] += 1
            score.missed += [f"{name}: rule {rule}"] if rule not in text else []


def _behind(notes: str, texts: dict[str, str]) -> Iterable[str]:
    """Every text that the references in `notes` lead to, from one to the next."""
    seen: set[str] = set()
    waiting = REFERENCE.findall(notes)
    while waiting:
        reference = waiting.pop()
        if reference not in seen and reference in texts:
            seen.add(reference)
            yield texts[reference]
            waiting += REFERENCE.findall(texts[reference])


def line(character: str, number: int, score: Score) -> str:
    sizes = sorted(score.sizes)
    kinds = "  ".join(
        f"{kind} {sum(score.facts[kind, place] for place in ('told', 'behind'))}"
        f"/{sum(score.facts[kind, place] for place in ('told', 'behind', 'lost'))}"
        for kind in KINDS
    )
    requests = " ".join(f"{name} {score.requests[name]}" for name in ("verbatim", "cut", "counted", "lost"))
    return (
        f"{character:8} {number:4}  facts {score.share('told', 'behind'):.4f} (told {score.share('told'):.3f}; {kinds})"
        f"  rules {score.rules_kept:.4f} of {score.rules.total()}  requests: {requests}"
        f"  notes p50 {sizes[len(sizes) // 2]} max {sizes[-1]}  by a model {score.written}/{score.conversations}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--window", type=int, default=WINDOW, help="tokens")
    parser.add_argument("--compactions", default=",".join(map(str, COMPACTIONS)), help="after how many to look")
    parser.add_argument("--summarisers", default=",".join(CHARACTERS), help="of which characters")
    parser.add_argument("--misses", type=int, default=0, help="show so many of what was lost")
    parser.add_argument("ids", nargs="*", help="only conversations whose id begins with one of these")
    asked = parser.parse_args()
    rows = [
        row for row in conversations() if long_enough(row) and (not asked.ids or row.id.startswith(tuple(asked.ids)))
    ]
    print(f"{len(rows)} conversations, window {asked.window}")
    for character in asked.summarisers.split(","):
        scores = {int(number): Score() for number in asked.compactions.split(",")}
        begun = time.monotonic()
        for row in rows:
            play(row, character, scores, asked.window)
        for number, score in sorted(scores.items()):
            print(line(character, number, score), flush=True)
            for missed in score.missed[: asked.misses]:
                print(f"    {missed}")
        print(f"    {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
