"""A rehearsal leaves no trace: whatever a flow asks for, only what the world knows is passed on."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.core.errors import Internal, StoreUnavailable, UpstreamError
from proxy.core.rehearsal import Rehearsal
from proxy.core.steps import (
    Claim,
    Count,
    Flow,
    Memory,
    Prompt,
    Recall,
    Remember,
    Report,
    RunTools,
    Send,
    Step,
    Summarise,
    Summariser,
)
from tests.core.scripts import first_compaction
from tests.playbook import SCOPE, like, play

REPORT = Report(conversation="c", tokens=1, window=None)
PROMPT = Prompt(messages=(), untouched=True, max_output=None, estimated=0, shape=b"", report=REPORT)
RECALL = Recall(scope=SCOPE, agent="m", label=None, named=False, digests=())
COUNT = Count(messages=(), encoding="o200k_base")
KEPT = Remember(scope=SCOPE, agent="m", conversation="c")


def asking(name: str) -> Summarise[Any]:
    summariser = Summariser(name=name, window=None)
    return Summarise(
        summariser=summariser, messages=(), max_tokens=1, projected=1, report=REPORT, judge=lambda reply: None
    )


def flow(*steps: Step) -> Flow[list[Any]]:
    """Asks for `steps` and tells what came of each."""
    found: list[Any] = []
    for step in steps:
        try:
            found.append((yield step))
        except Exception as error:
            found.append(error)
    return found


def test_what_the_store_knows_and_what_something_weighs_is_asked_of_the_world() -> None:
    played = play(Rehearsal().of(flow(RECALL, COUNT)), (like(Recall), Memory()), (like(Count), (1, 2)))
    assert played.result == [Memory(), (1, 2)]


def test_everything_else_is_answered_without_asking_anybody() -> None:
    rehearsal = Rehearsal()
    (made,) = (step.compaction for step in first_compaction()[Remember] if step.compaction is not None)
    stored = Remember(scope=SCOPE, agent="m", conversation="c", compaction=made)
    steps = (Claim(key=b"k"), asking("first"), asking("second"), stored, KEPT)
    claimed, one, two, *remembered = play(rehearsal.of(flow(*steps))).result
    assert claimed is True and remembered == [None, None]
    assert isinstance(one, UpstreamError) and isinstance(two, UpstreamError)
    assert rehearsal.asked == ("first", "second") and rehearsal.made is made


def test_an_error_of_the_world_reaches_the_place_that_asked() -> None:
    lost = StoreUnavailable("The store is away.")
    assert play(Rehearsal().of(flow(RECALL, COUNT)), (like(Recall), lost), (like(Count), ())).result == [lost, ()]


@pytest.mark.parametrize("step", [Send(prompt=PROMPT), RunTools(calls=())])
def test_a_flow_that_would_send_is_stopped_and_closed(step: Step) -> None:
    closed: list[bool] = []

    def sending() -> Flow[None]:
        try:
            yield step
        finally:
            closed.append(True)

    inner = sending()
    with pytest.raises(Internal):
        play(Rehearsal().of(inner))
    assert closed == [True] and inner.gi_frame is None  # type: ignore[attr-defined]  # a generator's own
