"""What a compacted prompt still holds: every recorded conversation replayed message by message, without any network.

    python benchmarks/retention.py                          # 4,000, 8,000 and 32,000 tokens, all conversations
    python benchmarks/retention.py --windows 4000 aider pi  # one window, conversations whose id begins so
    python benchmarks/retention.py --misses 40              # the identifiers that were needed and gone

At each recorded assistant message the prompt for the history before it is made as the gateway makes it, and asked: are
the identifiers there that this message uses and that had appeared before? Three definitions of an identifier are tried,
none of them the ledger's own. A step counts for recall where its prompt fits the window; the others are `over`.

The figures are lower than those of `tests/scenarios/test_recorded_conversations.py`, which counts the same things:
there the provider takes four characters for a token, here a token is what our estimate says, and that is near what a
real tokenizer counts in code and listings. The same window holds about a tenth less text here.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # started as a file: the repository is not on the path

from proxy.core import chain, compaction, groups, ledger, measure
from proxy.core.conversation import Message
from proxy.core.notes import Compaction, Scan, Sightings
from proxy.core.past import Chain
from proxy.core.policy import Policy
from proxy.core.steps import Limits
from proxy.core.tail import History
from proxy.dialects.chat.messages import read_message
from tests.data import Conversation, conversations

WINDOWS: Final = (4_000, 8_000, 32_000)
BARS: Final = {4_000: 0.75, 8_000: 0.96, 32_000: 0.995}
SCOPE: Final = b"retention".ljust(32, b".")

# Definition 1: the usual four regexes.
_URL: Final = re.compile(r"https?://[^\s\"'<>)\]]+")
_PATH: Final = re.compile(r"(?:[\w.-]+)?(?:/[\w.-]+)+\.\w+|(?:\.{0,2}/)?(?:[\w.-]+/)+[\w.-]+")
_ID: Final = re.compile(r"\b(?=[\w-]*\d)(?=[\w-]*[A-Za-z])[A-Za-z0-9][\w-]{4,}\b")
_NUMBER: Final = re.compile(r"\b\d{3,}(?:[.,]\d+)*\b|\b\d+\.\d+\b")
_BARE: Final = re.compile(r"[\d.,]+")
# Definition 2: whatever stands between blanks and quotes and has the look of one.
_WORD: Final = re.compile(r"[^\s\"'`<>()\[\]{},;|*]{2,200}")
_LOOKS: Final = re.compile(
    r"https?://.+|(?:\.{1,2}|~)?/?(?:[\w@.+-]+/)+[\w@.+-]+|/[\w.+-]{2,}|[\w-]+\.[A-Za-z]{1,5}"
    r"|(?=[^\d]*\d)(?=.*[A-Za-z])[\w-]{6,}|#\d+|[$€£]?\d{2,}(?:[.:/-]\d+)*%?"
)
# Definition 3: bare numbers of two digits and more, file names, ids of letters and digits; as whole tokens.
_TOKEN: Final = re.compile(r"[A-Za-z0-9_]+(?:[./:-][A-Za-z0-9_]+)*")


def classic(text: str) -> frozenset[str]:
    return frozenset(found.rstrip(".,:;") for kind in (_URL, _PATH, _ID, _NUMBER) for found in kind.findall(text))


def loose(text: str) -> frozenset[str]:
    words = (word.strip(".:!?=&") for word in _WORD.findall(text))
    return frozenset(word for word in words if len(word) > 1 and _LOOKS.fullmatch(word))


def tokens(text: str) -> frozenset[str]:
    found = _TOKEN.findall(text)
    return frozenset(token for token in found if len(token) > 1 and sum(map(str.isdigit, token)) > 1)


def names(text: str) -> frozenset[str]:
    """Definition 1 without bare numbers: in some recordings the model says line numbers, which none does."""
    return frozenset(found for found in classic(text) if not _BARE.fullmatch(found))


DEFINITIONS: Final[tuple[tuple[str, Callable[[str], frozenset[str]]], ...]] = (
    ("classic", classic),
    ("loose", loose),
    ("tokens", tokens),
    ("names", names),
)


WHOLE: Final = 2
"""The definition whose identifiers must stand in the prompt as whole tokens, not inside longer ones."""


def said(message: Message) -> str:
    """All that a model reads of a message; of arguments the values, as no escape is part of an identifier."""
    parts = [message.text]
    for call in message.calls:
        parts += [call.name, *(value for _, value in ledger.leaves(call.arguments))]
    return "\n".join(parts)


class Tape:
    """One conversation, read once for all windows."""

    def __init__(self, row: Conversation) -> None:
        self.id = row.id
        self.tools = json.dumps(row.tools) if row.tools else ""
        self.tool_tokens = tokens(self.tools)
        self.tools_tokens = measure.estimate(self.tools)
        self.messages = tuple(
            read_message(json.dumps(message, ensure_ascii=False).encode(), index)
            for index, message in enumerate(row.messages)
        )
        texts = [said(message) for message in self.messages]
        self.found = tuple(tuple(find(text) for text in texts) for _, find in DEFINITIONS)
        self.replies = tuple(i for i, message in enumerate(self.messages) if i and message.role == "assistant")


class Score:
    """What was counted at one window."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.steps = self.over = self.floors = self.made = self.avoidable = self.unsound = self.repeated = 0
        self.hit = [0] * len(DEFINITIONS)
        self.all = [0] * len(DEFINITIONS)
        self.prefix = [0, 0]
        self.requests: Counter[str] = Counter()
        self.times: list[float] = []
        self.worst: list[tuple[int, int, str, int, int]] = []
        self.missed: Counter[tuple[str, str]] = Counter()
        self.fill: list[float] = []
        self.each: list[float] = []

    def share(self, definition: int) -> float:
        return self.hit[definition] / self.all[definition] if self.all[definition] else 1.0


class Replay:
    """One conversation at one window, step by step. `honest` plans without the cache, to be timed."""

    def __init__(self, tape: Tape, score: Score, policy: Policy, scan: Scan, honest: bool) -> None:
        room = measure.room(policy, Limits(total=score.window), None)
        assert room is not None
        self.tape, self.score, self.policy, self.scan, self.honest, self.room = tape, score, policy, scan, honest, room
        self.found: list[Compaction] = []
        self.last: Compaction | None = None
        self.before: tuple[bytes, ...] | None = None
        self.whole_tokens: dict[bytes, frozenset[str]] = {}

    def tokens_of(self, told: tuple[Message, ...]) -> list[frozenset[str]]:
        """The whole tokens of each message, taken once."""
        for message in told:
            if message.digest not in self.whole_tokens:
                self.whole_tokens[message.digest] = tokens(said(message))
        return [self.whole_tokens[message.digest] for message in told]

    def step(self, repaired: tuple[Message, ...], links: Chain) -> tuple[tuple[Message, ...], int]:
        """The prompt for this history and its size, chosen as `exchange` does."""
        tools = self.tape.tools_tokens
        whole = measure.prompt_tokens(repaired, tools)
        best, size, used = repaired, whole, None
        if whole > self.room.trigger or self.last is not None:
            best, size, used = self._compacted(repaired, links, whole)
        told = tuple(message.digest for message in best)
        if self.before is not None and (used.id if used else "") == (self.last.id if self.last else ""):
            self.score.prefix[1] += 1
            self.score.prefix[0] += told[: len(self.before)] == self.before
        self.before, self.last = told, used
        return best, size

    def _compacted(
        self, repaired: tuple[Message, ...], links: Chain, whole: int
    ) -> tuple[tuple[Message, ...], int, Compaction | None]:
        known = compaction.applicable(tuple(self.found), links)
        smallest: tuple[tuple[Message, ...], int, Compaction | None] = (repaired, whole, None)
        for item in known:
            if self.last is not None and item.covers < self.last.covers:
                continue
            told = compaction.assemble(repaired, links, item)
            size = measure.prompt_tokens(told, self.tape.tools_tokens)
            if size <= self.room.trigger:
                return told, size, item
            if size < smallest[1]:
                smallest = told, size, item
        sizes = tuple(message.tokens for message in repaired)
        fixed = self.tape.tools_tokens + measure.PROMPT_OVERHEAD
        history = History(repaired, links, sizes, fixed, 1.0, scan=ledger.sightings if self.honest else self.scan)
        begun = time.process_time()
        made = compaction.plan(history, self.room, self.policy, smallest[1])
        self.score.times.append(time.process_time() - begun)
        if made is None:
            self.score.floors += 1
            return smallest
        self.score.made += 1
        self.found.append(made)
        told = compaction.assemble(repaired, links, made)
        return told, measure.prompt_tokens(told, self.tape.tools_tokens), made


def replay(tape: Tape, scores: list[Score], policy: Policy, honest: bool = False) -> None:
    """Play `tape` at every window and add to its score."""
    cache: dict[bytes, Sightings] = {}

    def scan(message: Message) -> Sightings:
        key = message.wire or b"".join([message.digest, message.role.encode()])
        if key not in cache:
            cache[key] = ledger.sightings(message)
        return cache[key]

    plays = [Replay(tape, score, policy, scan, honest) for score in scores]
    misses = [[0, 0, 0] for _ in scores]
    seen: list[set[str]] = [set() for _ in DEFINITIONS]
    upto = 0
    for at in tape.replies:
        for have, found in zip(seen, tape.found, strict=True):
            have.update(*found[upto:at])
        upto = at
        needed = [found[at] & have for have, found in zip(seen, tape.found, strict=True)]
        repaired = groups.repair(tape.messages[:at]).messages
        links = chain.follow(chain.begin(SCOPE), repaired)
        for play, miss in zip(plays, misses, strict=True):
            made = play.score.made
            told, size = play.step(repaired, links)
            _judge(play, repaired, told, size, needed, miss)
            miss[2] += play.score.made - made
    for score, miss in zip(scores, misses, strict=True):
        score.worst.append((miss[0], miss[1], tape.id, miss[2], len(tape.messages)))


def _judge(
    play: Replay,
    repaired: tuple[Message, ...],
    told: tuple[Message, ...],
    size: int,
    needed: list[frozenset[str]],
    miss: list[int],
) -> None:
    score = play.score
    score.steps += 1
    score.unsound += groups.repair(told).count > 0
    if size > play.room.most:
        score.over += 1
        newest = groups.groups(repaired)[-1]
        lead = sum(m.tokens for m in repaired if m.role in ("system", "developer"))
        floor = sum(m.tokens for m in repaired[newest.first :]) + lead + play.tape.tools_tokens
        score.avoidable += floor < 0.9 * score.window
        return
    text = "\n".join([*map(said, told), play.tape.tools])
    score.fill.append(size / score.window)
    gone = {kind: 0 for kind in range(len(DEFINITIONS))}
    for number, wanted in enumerate(needed):
        if number == WHOLE:
            lost = list(wanted.difference(*play.tokens_of(told), play.tape.tool_tokens))
        else:
            lost = [name for name in wanted if name not in text]
        score.all[number] += len(wanted)
        score.hit[number] += len(wanted) - len(lost)
        gone[number] = len(lost)
        if number == 0 and wanted:
            score.each.append(1 - len(lost) / len(wanted))
        score.missed.update((DEFINITIONS[number][0], name) for name in lost)
    miss[0] += gone[0]
    miss[1] += len(needed[0])
    if play.last is not None:
        score.requests.update(accounted(repaired, text, play.last))


def accounted(repaired: tuple[Message, ...], text: str, used: Compaction) -> Counter[str]:
    """Each user message: in the prompt word for word, cut and said so, counted, or lost."""
    found: Counter[str] = Counter()
    missing = 0
    for message in repaired:
        words = message.text.strip()
        if message.role != "user" or not words:
            continue
        if words in text:
            found["verbatim"] += 1
        elif words[:60] in text and "characters were left out here by the gateway" in text:
            found["cut"] += 1
        else:
            missing += 1
    found["counted"] = min(missing, used.notes.dropped)
    found["lost"] = missing - found["counted"]
    return found


def agent(turns: int = 60, window: int = 8_192, size: int = 870, rich: bool = False) -> tuple[int, int]:
    """A scripted agent, one tool call a turn of about `size` tokens (identifiers if `rich`): turns, compactions."""
    rows: list[dict[str, Any]] = [{"role": "system", "content": "You are a careful agent."}]
    filler = "The service answered and wrote its log line to the usual place without any remark. "
    for turn in range(turns):
        function = {"name": "read_file", "arguments": json.dumps({"path": f"src/part_{turn}.py"})}
        call = {"id": f"c{turn}", "type": "function", "function": function}
        told = filler * (size // 17)
        if rich:
            told = "".join(f"src/mod_{turn}/f{turn * 97 + n}.py:{n * 31} took {n * 7919}\n" for n in range(size // 19))
        rows += [
            {"role": "user", "content": f"Please look at part {turn} and tell me what it does."},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{turn}", "content": f"# part {turn}\n{told}"},
            {"role": "assistant", "content": f"Part {turn} keeps the log."},
        ]
    score = Score(window)
    replay(Tape(Conversation("agent", rows, None, {})), [score], Policy())
    return turns, score.made


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 1.0


def table(scores: Iterable[Score], misses: int) -> None:
    for score in scores:
        times = sorted(score.times) or [0.0]
        each = [1 - gone / all_ for gone, all_, *_ in score.worst if all_]
        shares = "  ".join(f"{name} {score.share(n):.4f}" for n, (name, _) in enumerate(DEFINITIONS))
        print(
            f"\nwindow {score.window}: recall  {shares}   (bar {BARS.get(score.window, 0)}, n {score.all[0]})\n"
            f"  classic by step {mean(score.each):.4f}, by conversation {mean(each):.4f}"
        )
        print(
            f"  steps {score.steps}, compactions {score.made}, floors {score.floors}, over {score.over} "
            f"(avoidable {score.avoidable}), unsound {score.unsound}, prefix {score.prefix[0]}/{score.prefix[1]}, "
            f"mean fill {mean(score.fill):.3f}"
        )
        print("  requests of compacted prompts: " + ", ".join(f"{k} {v}" for k, v in sorted(score.requests.items())))
        print(f"  planning ms: p50 {times[len(times) // 2] * 1e3:.1f}  p99 {times[len(times) * 99 // 100] * 1e3:.1f}")
        for gone, all_, name, made, length in sorted(score.worst, reverse=True)[:8]:
            if gone:
                print(f"    {gone:5} of {all_:5} missed  {name} ({length} messages, {made} compactions)")
        for (kind, name), count in score.missed.most_common(misses):
            print(f"    {count:4}x {kind:8} {name[:100]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--windows", default=",".join(map(str, WINDOWS)), help="tokens, comma-separated")
    parser.add_argument("--misses", type=int, default=0, help="show so many lost identifiers per window")
    parser.add_argument("--honest", action="store_true", help="plan without the scan cache: true planning times")
    parser.add_argument("ids", nargs="*", help="only conversations whose id begins with one of these")
    asked = parser.parse_args()
    scores = [Score(int(window)) for window in asked.windows.split(",")]
    for row in conversations():
        if not asked.ids or row.id.startswith(tuple(asked.ids)):
            replay(Tape(row), scores, Policy(), asked.honest)
    table(scores, asked.misses)
    for kind, (turns, made) in (("words", agent()), ("identifiers", agent(rich=True))):
        print(f"\nscripted agent, 8,192 tokens, {kind}: {made} compactions in {turns} turns (at most {turns // 3})")


if __name__ == "__main__":
    main()
