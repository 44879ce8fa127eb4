"""The core without a world around it: a client that sends its growing history, a store made of dictionaries.

Every step of `exchange` is answered here, at once and in one thread; what the model says is what was recorded, what the
summary model says is a function's doing. Nothing of the core is replaced.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # started as a file: the repository is not on the path

from proxy.core import ledger
from proxy.core.conversation import Message
from proxy.core.exchange import exchange
from proxy.core.notes import Compaction
from proxy.core.past import Past
from proxy.core.policy import ModelCard, Policy
from proxy.core.steps import (
    Anchor,
    Call,
    Caller,
    Claim,
    Count,
    Limits,
    Memory,
    Prompt,
    Ratio,
    Recall,
    Remember,
    Reply,
    Send,
    Snapshot,
    Summarise,
    Summariser,
)
from proxy.core.usage import Usage

SCOPE: Final = b"dry".ljust(32, b".")
Answers = Callable[[Summarise[Any]], Reply | Exception]
"""What a summary model says to a request."""


class Dry:
    """One conversation before a window of `window` tokens."""

    def __init__(self, window: int, answers: Answers, policy: Policy | None = None) -> None:
        self.answers = answers
        self.compactions: dict[bytes, dict[str, Compaction]] = {}
        self.anchors: dict[bytes, Anchor | None] = {}
        self.texts: dict[str, str] = {}
        self.asked = 0
        """Requests to the summary model so far."""
        self.past: Past | None = None
        self._scanned: dict[bytes, ledger.Sightings] = {}
        self._snap = Snapshot(
            policy=policy or Policy(),
            card=ModelCard(name="m"),
            limits=Limits(total=window, source="policy"),
            ratio=Ratio(),
            exact_ratio=Ratio(),
            upstream="dry",
            model="m",
            agent="m",
            scope=SCOPE,
            fresh="conv_dry",
            scan=self._scan,
            summarisers=lambda: (Summariser(name="m", window=window, own=True),),
        )

    def call(self, messages: tuple[Message, ...], answer: Message) -> tuple[Prompt, Compaction | None]:
        """The prompt that `messages` become, and the compaction that was made for it; the model answers `answer`."""
        call = Call(
            caller=Caller(tenant="t", key="k"), model="m", messages=messages, fields={}, body=b"", known=self.past
        )
        flow = exchange(call, self._snap)
        told: list[Prompt] = []
        made: list[Compaction] = []
        given: object = None
        while True:
            try:
                step = flow.throw(given) if isinstance(given, Exception) else flow.send(given)
            except StopIteration as end:
                self.past = end.value.past
                return told[-1], made[-1] if made else None
            match step:
                case Recall():
                    given = self._recalled(step)
                case Count():
                    given = tuple(item.tokens - 4 for item in step.messages)
                case Claim():
                    given = True
                case Send():
                    told.append(step.prompt)
                    usage = Usage(input=step.prompt.estimated, output=answer.tokens)
                    given = Reply(message=answer, finish="stop", usage=usage)
                case Summarise():
                    self.asked += 1
                    said = self.answers(step)
                    given = said if isinstance(said, Exception) else step.judge(said)
                case Remember():
                    made.extend([step.compaction] if step.compaction is not None else [])
                    given = self._remembered(step)
                case _:
                    raise AssertionError(f"nobody asks for {type(step).__name__} here")

    def _scan(self, message: Message) -> ledger.Sightings:
        # Not by its digest: the same message with its reasoning has more blocks.
        key = message.wire or message.digest
        if key not in self._scanned:
            self._scanned[key] = ledger.sightings(message)
        return self._scanned[key]

    def _recalled(self, ask: Recall) -> Memory:
        known = [digest for digest in ask.digests if digest in self.anchors]
        found = [each for digest in ask.digests for each in self.compactions.get(digest, {}).values()]
        return Memory(
            conversation="conv_dry" if known else None,
            compactions=tuple(sorted(found, key=lambda each: each.covers)),
            anchor=self.anchors[known[0]] if known else None,
        )

    def _remembered(self, what: Remember) -> None:
        for digest in (what.request, what.reply):
            if digest is not None:
                self.anchors[digest] = what.anchor
        if what.compaction is not None:
            self.compactions.setdefault(what.compaction.digest, {}).setdefault(what.compaction.id, what.compaction)
        for stored in what.results:
            self.texts.setdefault(stored.reference, stored.text)
