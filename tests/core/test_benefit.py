"""What was not read, what was read anew, and what both are worth: arithmetic, with its bounds."""

from __future__ import annotations

import msgspec
import pytest

from proxy.core import benefit
from proxy.core.policy import Tariff
from proxy.core.steps import Anchor, Prompt, Report
from proxy.core.usage import UsageRow

ROW = UsageRow(
    id="u", request="r", tenant="t", key="k", upstream="up", asked_model="m", model="m", opened_at=0.0, input=1000
)
REPORT = Report(conversation="c", tokens=1000, window=4000)
PROMPT = Prompt(messages=(), untouched=True, max_output=None, estimated=1000, shape=b"s", report=REPORT)
BEFORE = Anchor(upstream="up", model="m", shape=b"s", reported=700, estimated=700)
PRICED = Tariff(input=10, output=20, cached=1, cache_write=12)


def row(**more: int) -> UsageRow:
    return msgspec.structs.replace(ROW, **more)


@pytest.mark.parametrize(
    ("unread", "trimmed", "window", "counted"),
    [
        (0, 0, 4000, (0, 0)),
        (500, 300, 4000, (500, 300)),
        (9000, 300, 4000, (2700, 300)),  # the provider could not have read more than its window
        (9000, 5000, 4000, (0, 3000)),
        (9000, 300, None, (9000, 300)),
        (-40, -3, 4000, (0, 0)),  # notes that are longer than what they stand for
        (500, 300, 900, (0, 0)),  # a prompt that was over the window already
    ],
)
def test_what_was_not_read_is_what_the_window_could_have_taken(
    unread: int, trimmed: int, window: int | None, counted: tuple[int, int]
) -> None:
    report = msgspec.structs.replace(REPORT, unread=unread, trimmed=trimmed, window=window)
    assert benefit.unread(report) == counted


def test_tokens_that_were_not_sent_are_worth_a_cached_one_or_what_it_costs_without_a_cache() -> None:
    assert benefit.saved(100, PRICED) == 100
    assert benefit.saved(100, Tariff(input=10, output=20)) == 1000
    assert benefit.saved(100, Tariff(input=10, output=20, cached=11)) == 1000


def test_a_prompt_behind_new_notes_costs_what_the_cache_did_not_know_of_it() -> None:
    assert benefit.rewritten(row(cached=400), PRICED) == 600 * 9
    assert benefit.rewritten(row(cached=400, cache_write=500), PRICED) == 100 * 9 + 500 * 11
    assert benefit.rewritten(row(cached=1000, cache_write=500), PRICED) == 0
    assert benefit.rewritten(row(cached=400, cache_write=500), Tariff(input=10, output=2, cached=4)) == 600 * 6
    assert benefit.rewritten(row(), Tariff(input=10, output=20)) == 0
    assert benefit.rewritten(row(), Tariff(input=10, output=20, cached=11)) == 0


def test_why_the_cache_missed_is_told_by_what_the_last_call_left() -> None:
    said = row(cached=100)
    assert benefit.missed(said, PROMPT, None) == ("first", 900)
    assert benefit.missed(said, PROMPT, msgspec.structs.replace(BEFORE, measured=False)) == ("first", 900)
    assert benefit.missed(said, PROMPT, msgspec.structs.replace(BEFORE, compaction="older")) == ("compacted", 900)
    assert benefit.missed(said, PROMPT, msgspec.structs.replace(BEFORE, shape=b"other")) == ("changed", 900)


@pytest.mark.parametrize("before", [None, BEFORE, msgspec.structs.replace(BEFORE, shape=b"other")])
def test_of_a_prompt_that_was_read_from_the_cache_more_than_whole_nothing_was_missed(before: Anchor | None) -> None:
    assert benefit.missed(row(cached=1_200), PROMPT, before)[1] == 0


@pytest.mark.parametrize(
    ("cached", "reported", "grown"), [(700, 700, 300), (100, 700, 300), (900, 700, 100), (0, 1200, 0)]
)
def test_what_was_said_since_is_new_and_the_rest_was_lost(cached: int, reported: int, grown: int) -> None:
    before = msgspec.structs.replace(BEFORE, reported=reported)
    assert benefit.missed(row(cached=cached), PROMPT, before) == ("grown", grown)
