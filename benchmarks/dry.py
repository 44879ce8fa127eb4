"""The core without a world around it: a client that sends its growing history, a store made of dictionaries.

Every step of `exchange` is answered here, at once and in one thread; what the models say is whatever the caller says.
Nothing of the core is replaced.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # started as a file: the repository is not on the path

from proxy.core.chain import begin
from proxy.core.conversation import Message
from proxy.core.exchange import exchange
from proxy.core.measure import MESSAGE_OVERHEAD
from proxy.core.notes import Compaction
from proxy.core.past import Past
from proxy.core.policy import ModelCard, Policy
from proxy.core.steps import (
    Anchor,
    Call,
    Caller,
    Claim,
    Count,
    Flow,
    Hidden,
    Limits,
    Memory,
    Outcome,
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
from proxy.upstream.sighted import Sighted

SCOPE: Final = b"dry".ljust(32, b".")
Answers = Callable[[Summarise[Any]], Reply | Exception]
"""What a summary model says to a request."""


class Store:
    """What a gateway remembers of one caller."""

    def __init__(self) -> None:
        self.anchors: dict[bytes, Anchor] = {}
        self.compactions: dict[tuple[bytes, str], Compaction] = {}
        self.results: dict[str, str] = {}
        self.hidden: list[Hidden] = []
        self.scan = Sighted().scan

    def served(self, flow: Flow[Outcome], send: Callable[[Send], Reply], answers: Answers | None = None) -> Outcome:
        """What becomes of a call; `send` is the model, `answers` the summary model."""
        given: Any = None
        while True:
            try:
                step = flow.throw(given) if isinstance(given, Exception) else flow.send(given)
            except StopIteration as end:
                outcome: Outcome = end.value
                return outcome
            match step:
                case Recall():
                    given = self.recall(step)
                case Count():
                    given = tuple(item.tokens - MESSAGE_OVERHEAD for item in step.messages)
                case Claim():
                    given = True
                case Send():
                    given = send(step)
                case Remember():
                    self.remember(step)
                    given = None
                case Summarise() if answers is not None:
                    said = answers(step)
                    given = said if isinstance(said, Exception) else step.judge(said)
                case _:
                    raise AssertionError(f"nobody answers {type(step).__name__} here")

    def recall(self, step: Recall) -> Memory:
        places = set(step.digests)
        found = sorted((each for each in self.compactions.values() if each.digest in places), key=lambda c: c.messages)
        anchor = next((self.anchors[digest] for digest in step.digests if digest in self.anchors), None)
        hidden = tuple(each for each in self.hidden if each.digest in places)
        conversation = "conv_dry" if anchor is not None else None
        return Memory(conversation=conversation, compactions=tuple(found), anchor=anchor, hidden=hidden)

    def remember(self, step: Remember) -> None:
        if step.compaction is not None:
            self.compactions[step.compaction.digest, step.compaction.id] = step.compaction
        if step.anchor is not None:
            for digest in filter(None, (step.request, step.reply)):
                self.anchors[digest] = step.anchor
        if step.hidden is not None:
            self.hidden.append(step.hidden)
        for stored in step.results:
            self.results.setdefault(stored.reference, stored.text)


class Dry:
    """One conversation before a window of `window` tokens."""

    def __init__(self, window: int, answers: Answers, policy: Policy | None = None) -> None:
        self.answers = answers
        self.store = Store()
        self.asked = 0
        """Requests to the summary model so far."""
        self.past: Past | None = None
        self._snap = Snapshot(
            policy=policy or Policy(),
            card=ModelCard(name="m"),
            limits=Limits(total=window, source="policy"),
            ratio=Ratio(),
            exact_ratio=Ratio(),
            upstream="dry",
            agent="m",
            scope=SCOPE,
            start=begin(SCOPE),
            fresh="conv_dry",
            scan=self.store.scan,
            summarisers=lambda: (Summariser(name="m", window=window, own=True),),
        )

    def call(self, messages: tuple[Message, ...], answer: Message) -> tuple[Prompt, Compaction | None]:
        """The prompt that `messages` become, and the compaction that was made for it; the model answers `answer`."""
        call = Call(
            caller=Caller(tenant="t", key="k"), model="m", messages=messages, fields={}, body=b"", known=self.past
        )
        told: list[Prompt] = []
        known = len(self.store.compactions)

        def send(step: Send) -> Reply:
            told.append(step.prompt)
            usage = Usage(input=step.prompt.estimated, output=answer.tokens)
            return Reply(message=answer, finish="stop", usage=usage)

        def summarise(step: Summarise[Any]) -> Reply | Exception:
            self.asked += 1
            return self.answers(step)

        self.past = self.store.served(exchange(call, self._snap), send, summarise).past
        made = tuple(self.store.compactions.values())[known:]
        return told[-1], made[-1] if made else None
