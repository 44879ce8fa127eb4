"""A keeper of conversations against a plain model of what it promises, in any order of its verbs."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import settings
from hypothesis import strategies as some
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from proxy.store.owned import Begun, Conversations, Item, Owned
from proxy.store.sqlite import SqliteStore
from tests.store.owning import MINE, answer, ids, owned, user
from tests.store.samples import NOW

SECONDS = 30.0

texts = some.lists(some.sampled_from("abc"), min_size=0, max_size=3)
places = some.integers(min_value=0, max_value=3)


class Keeping(RuleBasedStateMachine):
    """One conversation. The model: a path of (id, role, text, turn), a run with its end, and what was said into it."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.now = NOW
        self.count = 0
        self.path: list[tuple[str, str, str, int]] = []
        self.run: str | None = None
        self.until = 0.0
        self.runs: list[str] = []
        self.stopping = False
        self.left: list[tuple[str, str]] = []
        self.version = 0

    @property
    def kept(self) -> Conversations:
        assert self.store.conversations is not None
        return self.store.conversations

    def do(self, work: Any) -> Any:
        async def awaited() -> Any:
            return await work

        return self.runner.run(awaited())

    @initialize(end_user=some.sampled_from([None, "ann"]))
    def make(self, end_user: str | None) -> None:
        self.store = SqliteStore(":memory:")
        self.runner.run(self.store.open(NOW))
        self.do(self.kept.create(*MINE, owned(end_user=end_user)))

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.runner.run(self.store.close())
        self.runner.close()

    def fresh(self, kind: str) -> str:
        self.count += 1
        return f"{kind}{self.count}"

    def said(self, texts: list[str], turn: int) -> list[Item]:
        return [user(self.fresh("u"), turn, text=text) for text in texts]

    @property
    def runs_now(self) -> bool:
        return self.run is not None and self.until > self.now

    @property
    def turn(self) -> int:
        return self.path[-1][3] if self.path else 0

    def put(self, items: list[Item], texts: list[str], turn: int) -> None:
        number = max(self.turn + turn, 1)
        self.path += [(item.id, "user", text, number) for item, text in zip(items, texts, strict=True)]

    @property
    def waiting(self) -> list[tuple[str, str, str, int]]:
        answered = [place for place, item in enumerate(self.path, 1) if item[1] == "assistant"]
        return self.path[answered[-1] if answered else 0 :]

    # -- the verbs --------------------------------------------------------------------------------------------------

    @rule(texts=texts, turn=some.integers(0, 1))
    def begin(self, texts: list[str], turn: int) -> None:
        items, run = self.said(texts, turn), self.fresh("run")
        answer = self.do(self.kept.begin(*MINE, "conv_1", run, items, end_user=None, now=self.now, seconds=SECONDS))
        if self.runs_now:
            assert isinstance(answer, Owned) and answer.run == self.run
            return
        again = bool(texts) and [text for _, _, text, _ in self.waiting[-len(texts) :]] == texts
        if not again:
            self.put(items, texts, turn)
        self.run, self.until, self.stopping, self.left = run, self.now + SECONDS, False, []
        self.runs.append(run)
        assert isinstance(answer, Begun)
        assert answer.new == len(self.waiting)
        assert ids(answer.path) == [id for id, *_ in self.path]

    @precondition(lambda self: self.runs)
    @rule(place=places, answered=some.booleans(), taken=some.booleans())
    def finish(self, place: int, answered: bool, taken: bool) -> None:
        run = self.runs[-1 - place % len(self.runs)]
        spoken = self.do(self.kept.interjected(*MINE, "conv_1", run)) if taken else ()
        if taken:
            assert ids(spoken) == ([id for id, _ in self.left] if run == self.run else [])
        items = [*spoken, answer(self.fresh("a"))] if answered else list(spoken)
        self.do(self.kept.finish(*MINE, "conv_1", run, items, self.now))
        if run != self.run:
            return
        number = max(self.turn, 1)
        if taken:
            self.path += [(id, "user", text, number) for id, text in self.left]
            self.left = []
        if answered:
            self.path.append((items[-1].id, "assistant", items[-1].id, number))
        if self.left:
            begins = 1 if not self.path or self.path[-1][1] != "user" else 0
            number = max(self.turn + begins, 1)
            self.path += [(id, "user", text, number) for id, text in self.left]
        self.run, self.left = None, []

    @rule(texts=texts, turn=some.integers(0, 1))
    def extend(self, texts: list[str], turn: int) -> None:
        items = self.said(texts, turn)
        answer = self.do(self.kept.extend(*MINE, "conv_1", items, self.now))
        if self.runs_now:
            assert answer.run == self.run
            return
        self.put(items, texts, turn)
        self.run, self.left = None, []
        assert answer.run is None

    @rule(turns=some.integers(1, 3))
    def rewind(self, turns: int) -> None:
        answer = self.do(self.kept.rewind(*MINE, "conv_1", turns, self.now))
        if self.runs_now:
            assert answer == "busy"
            return
        numbers = sorted({turn for *_, turn in self.path})
        kept = numbers[: max(len(numbers) - turns, 0)]
        self.path = [item for item in self.path if item[3] in kept]
        self.run, self.left = None, []

    @rule(texts=texts)
    def interject(self, texts: list[str]) -> None:
        items = self.said(texts, 0)
        assert self.do(self.kept.interject(*MINE, "conv_1", items, self.now)) is self.runs_now
        if self.runs_now:
            self.left += [(item.id, text) for item, text in zip(items, texts, strict=True)]

    @rule()
    def cancel(self) -> None:
        assert self.do(self.kept.cancel(*MINE, "conv_1", self.now)) is self.runs_now
        self.stopping = self.stopping or self.runs_now

    @precondition(lambda self: self.runs)
    @rule(place=places)
    def renew(self, place: int) -> None:
        run = self.runs[-1 - place % len(self.runs)]
        answer = self.do(self.kept.renew(*MINE, "conv_1", run, self.now + SECONDS))
        assert answer is (self.stopping if run == self.run else None)
        if run == self.run:
            self.until = self.now + SECONDS

    @rule(seconds=some.sampled_from([1.0, SECONDS - 1, SECONDS]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    # -- what always holds ------------------------------------------------------------------------------------------

    @invariant()
    def the_path_is_what_was_put(self) -> None:
        if not hasattr(self, "store"):
            return
        path = self.do(self.kept.path(*MINE, "conv_1"))
        assert [(item.id, item.role, item.turn) for item in path] == [
            (id, role, turn) for id, role, _, turn in self.path
        ]
        found = self.do(self.kept.find(*MINE, "conv_1", self.now))
        assert found.head == (self.path[-1][0] if self.path else None)
        assert found.last == (path[-1] if path else None)
        assert found.run == (self.run if self.runs_now else None)
        assert found.version >= self.version
        self.version = found.version


TestKeeping = Keeping.TestCase
TestKeeping.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
