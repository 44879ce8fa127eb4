"""Overflow recognition on the recorded errors (data/overflow_errors.jsonl)."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from proxy.core.errors import Overflow
from proxy.core.overflow import recognise, recognise_finish
from tests import data
from tests.core.test_overflow import error


def decidable(row: dict[str, Any]) -> bool:
    """Silent forms and finish reasons are decided by usage and reason, not by a text."""
    return not (row["is_overflow"] and (row["where"] == "finish_reason" or row["note"].startswith("kind=silent")))


def judged(row: dict[str, Any]) -> Overflow | None:
    body = row["body"] if isinstance(row["body"], str) else json.dumps(row["body"])
    return recognise(400 if row["http_status"] is None else row["http_status"], body.encode())


@pytest.mark.data
def test_recorded_errors_are_told_apart() -> None:
    rows = [row for row in data.overflow_errors() if decidable(row)]
    overflows = [row for row in rows if row["is_overflow"]]
    others = [row for row in rows if not row["is_overflow"]]
    missed = [row["id"] for row in overflows if judged(row) is None]
    alarms = [row["id"] for row in others if judged(row) is not None]
    print(f"recall {len(overflows) - len(missed)}/{len(overflows)}, false alarms {len(alarms)}/{len(others)}")
    assert len(overflows) > 100 and len(others) > 80
    assert len(missed) <= 0.02 * len(overflows), missed
    assert len(alarms) <= 0.01 * len(others), alarms


@pytest.mark.data
def test_numbers_of_recorded_errors_are_read_as_stated() -> None:
    wrong, stated = [], 0
    for row in data.overflow_errors():
        found = judged(row) if row["is_overflow"] and decidable(row) else None
        if found is None:
            continue
        for name in ("limit", "requested"):
            stated += row[name] is not None
            if getattr(found, name) != row[name]:
                wrong.append((row["id"], name, row[name], getattr(found, name)))
    print(f"numbers {stated - len(wrong)}/{stated}")
    assert stated > 150
    assert len(wrong) <= 0.05 * stated, wrong


@pytest.mark.data
def test_recorded_finish_reasons_are_told_apart() -> None:
    for row in data.overflow_errors():
        if row["where"] == "finish_reason" and "stop_reason" in row["body"]:
            found = recognise_finish(row["body"]["stop_reason"], None, None)
            assert (found is not None) is row["is_overflow"], row["id"]


@pytest.mark.data
@pytest.mark.parametrize("seed", range(3))
def test_recorded_errors_survive_other_wrappings(seed: int) -> None:
    """The same errors as relays pass them on: in a string, in prose, in a frame, with other figures for the status."""
    draw = random.Random(seed)
    rows = [
        row for row in data.overflow_errors() if decidable(row) and row["where"] == "body" and row["http_status"] != 200
    ]
    rows = [row for row in rows if row["http_status"] not in (None, 401, 402, 429, 529)]
    changed = []
    for row in rows:
        body = row["body"] if isinstance(row["body"], str) else json.dumps(row["body"])
        wrapped = draw.choice(
            [
                error("Provider returned error", metadata={"raw": body}),
                error(f"Error from provider: {body}. Received Model Group=a"),
                json.dumps({"detail": body}).encode(),
                b"event: error\ndata: " + error(body) + b"\n\n",
            ]
        )
        if (recognise(draw.choice([400, 500, 502]), wrapped) is not None) is not row["is_overflow"]:
            changed.append(row["id"])
    assert len(changed) <= 0.02 * len(rows), changed
