"""What one call counts as: its stages, its compactions and their failures, and the money of its prompts."""

from __future__ import annotations

import msgspec
import pytest

from proxy.core.errors import TimedOut, WindowExceeded
from proxy.core.guards import Guard, Pause
from proxy.core.notes import Compaction, Notes
from proxy.core.policy import Tariff
from proxy.core.steps import Anchor, Claim, Outcome, Prompt, Report
from proxy.core.usage import UsageRow
from proxy.metrics import Metrics
from proxy.tally import Tally

ROW = UsageRow(
    id="u",
    request="r",
    tenant="t",
    key="k",
    upstream="up",
    asked_model="m",
    model="m",
    opened_at=0.0,
    status="ok",
    duration=5.0,
    input=1000,
    cached=400,
)
REPORT = Report(conversation="c", tokens=1000, window=8000)
PROMPT = Prompt(messages=(), untouched=True, max_output=None, estimated=1000, shape=b"s", report=REPORT)
PRICED = Tariff(input=1_000_000, output=0, cached=100_000)
MADE = Compaction(id="c1", digest=b"", messages=4, covers=2, notes=Notes(turns=1), before=900, after=300)
LATER = msgspec.structs.replace(MADE, id="c2")
OUTCOME = Outcome(report=REPORT, reply=None)


class Counted:
    """A tally with its metrics and a clock that the test sets."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.time = 100.0
        self.tally = Tally(self.metrics.of("fast", "up"), lambda: self.time)

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"weirgate_{name}", labels)

    def compactions(self) -> dict[tuple[str, ...], float]:
        return {labels: child.value for labels, child in self.metrics.compactions.children.items()}


@pytest.fixture
def counted() -> Counted:
    return Counted()


def test_the_stages_of_a_call_lie_between_its_beginning_its_upstream_calls_and_its_end(counted: Counted) -> None:
    tally = counted.tally
    tally.answered(ROW, 102.0, PROMPT, None)  # until 107
    tally.answered(ROW, 110.0, PROMPT, None)  # until 115
    counted.time = 119.0
    tally.served(OUTCOME)
    stages = {stage: counted.value("added_seconds_sum", stage=stage) for stage in ("prepare", "between", "finish")}
    assert stages == {"prepare": 2, "between": 3, "finish": 4}
    assert counted.value("added_seconds_count", stage="compact") == 0


def test_a_call_that_compacted_first_was_not_merely_prepared(counted: Counted) -> None:
    counted.tally.claimed(Claim(key=b"k"), True)
    counted.tally.answered(ROW, 103.0, PROMPT, None)
    assert counted.value("added_seconds_sum", stage="compact") == 3
    assert counted.value("added_seconds_count", stage="prepare") == 0


def test_a_call_that_no_upstream_was_asked_for_has_no_end_to_wait_for(counted: Counted) -> None:
    counted.tally.served(OUTCOME)
    assert counted.value("added_seconds_count", stage="finish") == 0


def test_an_overflow_counts_by_how_it_ended(counted: Counted) -> None:
    counted.tally.served(msgspec.structs.replace(OUTCOME, recoveries=2))
    counted.tally.failed(WindowExceeded("Too long."))
    counted.tally.failed(TimedOut("Too slow."))
    assert counted.value("overflows_total", model="fast", outcome="recovered") == 1
    assert counted.value("overflows_total", model="fast", outcome="reached_client") == 1


@pytest.mark.parametrize(("writer", "label"), [("builtin", "builtin"), ("some-model", "model")])
def test_a_stored_compaction_counts_by_its_cause_and_writer_and_with_its_sizes(
    counted: Counted, writer: str, label: str
) -> None:
    counted.tally.claimed(Claim(key=b"k", cause="recovered"), True)
    counted.tally.compacted(msgspec.structs.replace(MADE, writer=writer), durable=True)
    assert counted.tally.planning == ""
    assert counted.compactions() == {("fast", "recovered", label, "stored"): 1}
    assert counted.value("compaction_tokens_sum", model="fast", moment="before") == 900
    assert counted.value("compaction_tokens_sum", model="fast", moment="after") == 300


def test_a_compaction_that_is_not_stored_says_so(counted: Counted) -> None:
    counted.tally.claimed(Claim(key=b"k"), True)
    counted.tally.compacted(MADE, durable=False)
    assert counted.compactions() == {("fast", "auto", "builtin", "unstored"): 1}


@pytest.mark.parametrize(("first", "outcome"), [(True, "none"), (False, "shared")])
def test_a_compaction_that_came_to_nothing_counts_by_whether_somebody_else_made_one(
    counted: Counted, first: bool, outcome: str
) -> None:
    counted.tally.claimed(Claim(key=b"k", cause="manual"), first)
    counted.tally.planned()
    assert counted.compactions() == {("fast", "manual", "none", outcome): 1}


@pytest.mark.parametrize(("found", "outcome"), [((), "none"), ((MADE,), "none"), ((MADE, LATER), "shared")])
def test_notes_that_are_there_once_the_branch_is_ours_were_made_by_somebody_else(
    counted: Counted, found: tuple[Compaction, ...], outcome: str
) -> None:
    counted.tally.known = (MADE,)
    counted.tally.claimed(Claim(key=b"k"), True)
    counted.tally.recalled(found)
    counted.tally.planned()
    assert counted.compactions() == {("fast", "auto", "none", outcome): 1}


def test_a_strike_is_a_compaction_whose_last_narrative_was_not_accepted(counted: Counted) -> None:
    for outcomes, strikes in ((("refused_x", "accepted"), 0), (("refused_x", "refused_x"), 1), ((), 1)):
        counted.tally.claimed(Claim(key=b"k"), True)
        for outcome in outcomes:
            counted.tally.summarised(outcome)
        counted.tally.compacted(MADE, durable=True)
        assert counted.value("compaction_strikes_total", model="fast") == strikes
    assert counted.value("summaries_total", outcome="refused_x") == 3


def test_a_pause_counts_when_it_begins_and_not_again(counted: Counted) -> None:
    paused = Guard(pause=Pause.STILL_ABOVE)
    counted.tally.guarded(paused, 3)
    counted.tally.before = Anchor(upstream="u", model="m", shape=b"", reported=1, estimated=1, guard=paused)
    counted.tally.guarded(paused, 3)
    counted.tally.guarded(Guard(failures=2), 3)
    assert counted.value("compaction_pauses_total", why="still_above") == 1
    counted.tally.guarded(Guard(failures=3), 3)
    assert counted.value("compaction_pauses_total", why="model_failures") == 1


def test_a_repeat_that_the_budget_forbids_is_counted(counted: Counted) -> None:
    assert counted.tally.repeated(True) is True
    assert counted.tally.repeated(False) is False
    assert counted.value("retries_refused_total", upstream="up") == 1


def test_what_was_not_read_again_is_saved_and_new_notes_are_paid_for(counted: Counted) -> None:
    report = msgspec.structs.replace(REPORT, unread=2000, trimmed=500, compaction_id="c1")
    prompt = msgspec.structs.replace(PROMPT, report=report)
    counted.tally.before = Anchor(upstream="up", model="m", shape=b"s", reported=900, estimated=900)
    counted.tally.answered(ROW, 101.0, prompt, PRICED)
    assert counted.value("unread_tokens_total", model="fast", by="compaction") == 2000
    assert counted.value("unread_tokens_total", model="fast", by="memory") == 500
    assert counted.value("saved_dollars_total", model="fast") == pytest.approx(2500 * 0.0001)
    assert counted.value("spent_dollars_total", model="fast", on="cache") == pytest.approx(600 * 0.0009)
    assert counted.value("uncached_tokens_total", model="fast", why="compacted") == 600


def test_without_a_price_tokens_are_counted_and_money_is_not(counted: Counted) -> None:
    prompt = msgspec.structs.replace(PROMPT, report=msgspec.structs.replace(REPORT, unread=2000))
    counted.tally.answered(ROW, 101.0, prompt, None)
    assert counted.value("unread_tokens_total", model="fast", by="compaction") == 2000
    assert counted.value("saved_dollars_total", model="fast") == 0


def test_what_a_cache_did_not_know_is_parted_into_new_and_lost(counted: Counted) -> None:
    counted.tally.before = Anchor(upstream="up", model="m", shape=b"s", reported=900, estimated=900)
    counted.tally.answered(ROW, 101.0, PROMPT, None)
    assert counted.value("uncached_tokens_total", model="fast", why="grown") == 100
    assert counted.value("uncached_tokens_total", model="fast", why="lost") == 500


def test_a_cache_that_is_said_to_know_more_than_was_sent_takes_nothing_from_what_was_counted(counted: Counted) -> None:
    counted.tally.answered(msgspec.structs.replace(ROW, cached=1_200), 101.0, PROMPT, None)
    assert {child.value for child in counted.metrics.uncached.children.values()} == {0}


@pytest.mark.parametrize("silent", [{"estimated": True}, {"mode": "observe"}, {"mode": "off"}, {"input": 0}])
def test_where_nothing_was_reported_or_done_nothing_is_claimed(counted: Counted, silent: dict[str, object]) -> None:
    prompt = msgspec.structs.replace(PROMPT, report=msgspec.structs.replace(REPORT, unread=2000))
    counted.tally.answered(msgspec.structs.replace(ROW, **silent), 101.0, prompt, PRICED)
    assert counted.value("unread_tokens_total", model="fast", by="compaction") == 0
    assert sum(child.value for child in counted.metrics.uncached.children.values()) == 0


def test_repaired_messages_are_added_up(counted: Counted) -> None:
    for repaired in (0, 2, 3):
        counted.tally.served(Outcome(report=msgspec.structs.replace(REPORT, repaired=repaired), reply=None))
    assert counted.value("repaired_messages_total") == 5
