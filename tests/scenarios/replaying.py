"""A recorded conversation played again through the gateway, message by message, and what is checked at each step.

Each recorded assistant message is one request with everything before it; the provider answers with that very message.
The judgement is written for the tests alone and reads nothing but the two transcripts: what the client sent and what
the provider was sent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from benchmarks.retention import DEFINITIONS, WHOLE
from tests.data import Conversation
from tests.fakes import ScriptedUpstream, SeenRequest
from tests.scenarios.gate import Answer, Gate, Wire, raw_messages, shown
from tests.strict import StrictUpstream

FLOOR = 0.9
"""Where system, tools and newest group fill less of the window than this, the client must not see an overflow."""
_MARK = re.compile(r"\n\[\.\.\. (\d+) characters were left out here by the gateway \.\.\.\]\n")
_COUNTED = re.compile(r"\(and (\d+) earlier requests? that no longer fits?\)")


class Tape:
    """A conversation ready to be sent. `part` are the messages at which requests are made (all: None)."""

    def __init__(self, row: Conversation, part: range | None = None) -> None:
        self.id = row.id
        self.messages = row.messages
        self.tools = row.tools or []
        self.wires = [json.dumps(message, ensure_ascii=False).encode() for message in row.messages]
        rest: dict[str, Any] = {"model": "scripted", **({"tools": row.tools} if row.tools else {})}
        self._head = json.dumps(rest, ensure_ascii=False).encode()[:-1] + b', "messages": ['
        self.steps = [
            at
            for at, message in enumerate(row.messages)
            if at and message["role"] == "assistant" and (part is None or at in part)
        ]
        self.texts = [shown(message) for message in row.messages]
        self.requests = list(requests(row.messages))
        self._found: list[tuple[frozenset[str], ...]] | None = None

    def body(self, at: int) -> bytes:
        return self._head + b",".join(self.wires[:at]) + b"]}"

    @property
    def identifiers(self) -> list[tuple[frozenset[str], ...]]:
        """For each message, what it names, by each of the definitions."""
        if self._found is None:
            self._found = [tuple(find(text) for _, find in DEFINITIONS) for text in self.texts]
        return self._found


def requests(messages: Sequence[Wire]) -> Iterable[tuple[int, ...]]:
    """Indices of the user messages that make one request: neighbours, system messages and empty ones aside."""
    running: list[int] = []
    for at, message in enumerate(messages):
        if message["role"] == "user":
            running.append(at)
        elif message["role"] not in ("system", "developer") and running and shown(message).strip():
            yield tuple(running)
            running = []
    if running:
        yield tuple(running)


@dataclass
class Seen:
    """What one pass over the conversations showed."""

    steps: int = 0
    answered: int = 0
    floors: int = 0
    overflows: list[str] = field(default_factory=list)
    """Overflows that the client got though what must stay would have fitted."""
    lost: list[str] = field(default_factory=list)
    """Requests of the user that are neither in the prompt, nor cut and said to be, nor counted."""
    verbatim: int = 0
    cut: int = 0
    counted: int = 0
    wanted: list[int] = field(default_factory=lambda: [0] * len(DEFINITIONS))
    present: list[int] = field(default_factory=lambda: [0] * len(DEFINITIONS))
    shares: list[float] = field(default_factory=list)
    """Of each step that names anything known, the share that is in its prompt (by the first definition)."""
    repaired: int = 0
    bodies: dict[tuple[str, int], bytes] = field(default_factory=dict)
    """For each step, a hash of the body that the provider answered, or of nothing where it refused."""
    extended: int = 0
    comparable: int = 0
    broken: list[str] = field(default_factory=list)
    """Steps whose prompt did not extend the one before it, though no compaction lay between."""

    def recall_of_steps(self) -> float:
        """The mean over the steps: a long listing that is named once weighs no more than a path."""
        return sum(self.shares) / max(1, len(self.shares))

    def recall(self, definition: int = 0) -> float:
        return self.present[definition] / max(1, self.wanted[definition])


class Player:
    """Plays tapes through one gateway. `says` is the provider's side: hand it to `StrictUpstream` as `answer`."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.strict = StrictUpstream(window=window, answer=self._says)
        self._next: Wire = {}

    def _says(self, request: SeenRequest) -> Wire:
        calls = []
        for call in self._next.get("tool_calls") or ():
            arguments = call["function"].get("arguments") or "{}"
            text = arguments if isinstance(arguments, str) else json.dumps(arguments)
            calls.append({**call, "function": {"name": call["function"]["name"], "arguments": text}})
        content = self._next.get("content")
        text = shown({"content": content})
        return {"content": text or (None if calls else "(nothing)"), "tool_calls": calls}

    async def play(self, tapes: Sequence[Tape], weir: Gate, up: ScriptedUpstream, *, judge: bool = True) -> Seen:
        seen = Seen()
        for tape in tapes:
            named: tuple[set[str], ...] = tuple(set() for _ in DEFINITIONS)
            upto = 0
            previous: tuple[str, tuple[bytes, ...]] | None = None
            for at in tape.steps:
                self._next = tape.messages[at]
                answer = await weir.send(tape.body(at))
                seen.steps += 1
                seen.bodies[tape.id, at] = b""
                if answer.status != 200:
                    self._refused(tape, at, answer, seen)
                    up.ledger.clear()
                    continue
                seen.answered += 1
                seen.repaired += int(answer.headers.get("x-weirgate-repaired", "0"))
                body = up.ledger[-1].request.body
                up.ledger.clear()
                seen.bodies[tape.id, at] = blake2b(body, digest_size=16).digest()
                if not judge:
                    continue
                previous = self._extended(tape, at, answer, body, previous, seen)
                prompt = "\n".join(map(shown, json.loads(body)["messages"]))
                for have, found in zip(named, zip(*tape.identifiers[upto:at], strict=True), strict=True):
                    have.update(*found)
                upto = at
                self._recalled(tape, at, prompt, named, seen)
                if answer.compaction != "none":
                    self._accounted(tape, at, prompt, seen)
        return seen

    def _refused(self, tape: Tape, at: int, answer: Answer, seen: Seen) -> None:
        """An overflow is legitimate only where what must stay fills the window by itself."""
        first = at - 1
        while first > 0 and tape.messages[first]["role"] == "tool":
            first -= 1
        lead = [message for message in tape.messages[:at] if message["role"] in ("system", "developer")][:1]
        newest = tape.messages[first:at]
        must = self.strict.measure({"messages": [*lead, *newest], "tools": tape.tools})
        if answer.code == "context_length_exceeded" and must >= FLOOR * self.window:
            seen.floors += 1
        else:
            seen.overflows.append(f"{tape.id}[{at}]: {answer.status} {answer.code}, {must} of {self.window} must stay")

    def _extended(
        self,
        tape: Tape,
        at: int,
        answer: Answer,
        body: bytes,
        previous: tuple[str, tuple[bytes, ...]] | None,
        seen: Seen,
    ) -> tuple[str, tuple[bytes, ...]]:
        """Whether this prompt begins with the whole one before it, if both rest on the same notes."""
        messages = raw_messages(body)
        notes = next((message.decode() for message in messages if b"<conversation-notes id=" in message), "")
        if previous is not None and previous[0] == notes:
            seen.comparable += 1
            if messages[: len(previous[1])] == previous[1]:
                seen.extended += 1
            else:
                seen.broken.append(f"{tape.id}[{at}] {answer.headers.get('x-weirgate-context')}")
        return notes, messages

    def _recalled(self, tape: Tape, at: int, prompt: str, named: tuple[set[str], ...], seen: Seen) -> None:
        """What the recorded reply names and had been named before: is it in the prompt?"""
        tools = json.dumps(tape.tools, ensure_ascii=False) if tape.tools else ""
        text = f"{prompt}\n{tools}"
        for number, (have, (_, find)) in enumerate(zip(named, DEFINITIONS, strict=True)):
            wanted = tape.identifiers[at][number] & have
            if not wanted:
                continue
            whole = find(text) if number == WHOLE else None
            seen.wanted[number] += len(wanted)
            present = sum(1 for name in wanted if (name in whole if whole is not None else name in text))
            seen.present[number] += present
            if number == 0:
                seen.shares.append(present / len(wanted))

    def _accounted(self, tape: Tape, at: int, prompt: str, seen: Seen) -> None:
        """Each request of the user is in the prompt word for word, or cut and said to be, or counted."""
        stated = _COUNTED.search(prompt)
        missing: list[int] = []
        for request in tape.requests:
            parts = [index for index in request if index < at and tape.texts[index].strip()]
            words = [tape.texts[index].strip() for index in parts]
            if not parts:
                continue
            gone = [index for index, text in zip(parts, words, strict=True) if text not in prompt]
            lost = [] if gone and is_cut("\n\n".join(words), prompt) else gone
            lost = [index for index in lost if not all(told(part, prompt) for part in parts_of(tape.messages[index]))]
            seen.verbatim += len(parts) - len(gone)
            seen.cut += len(gone) - len(lost)
            missing += lost
        seen.counted += len(missing)
        if len(missing) > (int(stated[1]) if stated else 0):
            said = stated[1] if stated else "none"
            seen.lost.append(f"{tape.id}[{at}]: {len(missing)} requests are gone, {said} are said to be")


def parts_of(message: Wire) -> list[str]:
    """The texts of a message, each of which may be cut by itself."""
    content = message["content"]
    return [content] if isinstance(content, str) else [part["text"] for part in content if part.get("text")]


def told(text: str, prompt: str) -> bool:
    return text.strip() in prompt or is_cut(text, prompt)


def is_cut(text: str, prompt: str) -> bool:
    """Whether `prompt` holds head and tail of `text` around a mark that says truly how much is left out."""
    for mark in _MARK.finditer(prompt):
        gone = int(mark[1])
        if gone >= len(text):
            continue
        for stated in (text, text.strip()):
            kept = len(stated) - gone
            head = _common(prompt[max(0, mark.start() - kept) : mark.start()], stated, kept)
            tail = kept - head
            if head and prompt[mark.end() : mark.end() + tail] == stated[len(stated) - tail :]:
                return True
    return False


def _common(before: str, text: str, most: int) -> int:
    """How long a beginning of `text` stands right before the mark."""
    for length in range(min(most, len(before)), 0, -1):
        if before.endswith(text[:length]):
            return length
    return 0
