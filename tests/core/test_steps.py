"""The steps are a closed set, each answered where it was asked."""

from __future__ import annotations

from typing import get_args, get_origin

import pytest

from proxy.core import steps
from proxy.core.steps import Claim, Count, Flow, Recall, Step


def asking() -> Flow[list[object]]:
    claimed = yield from Claim(key=b"k")
    try:
        counted = yield from Count(messages=(), encoding="e")
    except ValueError:
        counted = ()
    return [claimed, counted]


def test_a_step_is_yielded_and_its_answer_is_its_value() -> None:
    flow = asking()
    assert next(flow) == Claim(key=b"k")
    assert flow.send(True) == Count(messages=(), encoding="e")
    with pytest.raises(StopIteration) as ended:
        flow.send((1, 2))
    assert ended.value.value == [True, (1, 2)]


def test_an_error_is_thrown_in_at_the_place_that_asked() -> None:
    flow = asking()
    next(flow)
    flow.send(False)
    with pytest.raises(StopIteration) as ended:
        flow.throw(ValueError())
    assert ended.value.value == [False, ()]


def test_the_union_holds_every_kind_of_step() -> None:
    asks = {kind for kind in vars(steps).values() if isinstance(kind, type) and issubclass(kind, steps._Asks)}
    assert {get_origin(kind) or kind for kind in get_args(Step)} == asks - {steps._Asks}
    assert len(get_args(Step)) == 8


def test_steps_and_their_values_cannot_be_changed() -> None:
    step = Recall(scope=b"", agent="a", label=None, named=False, digests=())
    with pytest.raises(AttributeError):
        step.agent = "b"  # type: ignore[misc]
