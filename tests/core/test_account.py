"""Whose threshold holds, as a table; and a call whose account wants no compaction, played as a script."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from proxy.core.account import LEAST, MOST, Account, applied
from proxy.core.errors import WindowExceeded
from proxy.core.exchange import exchange
from proxy.core.policy import Mode, Policy
from proxy.core.steps import Claim, Count, Memory, Recall, Remember, Send
from tests.core.histories import user
from tests.core.scripts import LONG, WINDOW, compacted, first_compaction, memory_of, notes, remembered, whole
from tests.playbook import Played, a_call, a_reply, a_snap, estimates, like, play, that, too_long

FILE = Policy(compact_at=0.8, target=0.4, summary_model="operators", name="file")
OFF = Policy(automatic=False)
SHARES = some.floats(LEAST, MOST)


@pytest.mark.parametrize(
    ("policy", "account", "compact_at"),
    [
        (Policy(), None, 0.85),
        (Policy(), Account(), 0.85),
        (FILE, Account(), 0.8),
        (FILE, Account(threshold=0.6), 0.6),
        (FILE, Account(threshold=0.95), 0.95),
        (FILE, Account(thresholds={"m": 0.5}), 0.5),
        (FILE, Account(threshold=0.6, thresholds={"m": 0.5}), 0.5),
        (FILE, Account(threshold=0.6, thresholds={"other": 0.5}), 0.6),
        (FILE, Account(thresholds={"other": 0.5, "M": 0.5, "m*": 0.5}), 0.8),
    ],
)
@pytest.mark.parametrize("channel", [False, True])
def test_the_accounts_threshold_for_the_model_comes_before_its_own_before_the_files_before_the_default(
    policy: Policy, account: Account | None, compact_at: float, channel: bool
) -> None:
    assert applied(policy, account, "m", channel=channel).compact_at == compact_at


@pytest.mark.parametrize(
    ("account", "channel", "automatic"),
    [
        (None, False, True),
        (None, True, True),
        (Account(), False, True),
        (Account(automatic=False), False, False),
        (Account(automatic=False), True, True),
    ],
)
def test_only_outside_of_channels_can_an_account_turn_compaction_off(
    account: Account | None, channel: bool, automatic: bool
) -> None:
    assert applied(Policy(), account, "m", channel=channel).automatic is automatic


def test_the_accounts_summary_model_comes_before_the_operators() -> None:
    assert applied(FILE, Account(summary_model="mine"), "m", channel=False).summary_model == "mine"
    assert applied(FILE, Account(threshold=0.5), "m", channel=False).summary_model == "operators"
    # An operator who wants no model asked is not overruled.
    unasked = msgspec.structs.replace(FILE, summary_asked=False)
    assert not applied(unasked, Account(summary_model="mine"), "m", channel=False).summary_asked


@pytest.mark.parametrize("account", [None, Account(), Account(threshold=0.8, summary_model="operators")])
def test_where_nothing_differs_it_is_the_same_policy(account: Account | None) -> None:
    assert applied(FILE, account, "m", channel=False) is FILE


def test_nothing_but_these_settings_is_touched() -> None:
    policy = Policy(mode=Mode.OBSERVE, window=9000, hash="h", name="n")
    account = Account(automatic=False, threshold=0.4, summary_model="mine")
    found = applied(policy, account, "m", channel=False)
    changed = {name for name in policy.__struct_fields__ if getattr(policy, name) != getattr(found, name)}
    assert changed == {"automatic", "compact_at", "target", "summary_model"}


@given(compact_at=SHARES, gap=some.floats(0.02, 0.9), threshold=SHARES, higher=SHARES)
def test_the_target_stays_below_the_threshold_and_never_rises(
    compact_at: float, gap: float, threshold: float, higher: float
) -> None:
    policy = Policy(compact_at=compact_at, target=compact_at * (1 - gap))
    low, high = sorted((threshold, higher))
    lower = applied(policy, Account(threshold=low), "m", channel=False)
    upper = applied(policy, Account(threshold=high), "m", channel=False)
    assert lower.target <= upper.target <= policy.target
    assert lower.target < low and (low - lower.target) >= gap * low * 0.99


# -- a call with automatic compaction off ------------------------------------------------------------------------------


def test_without_it_the_conversation_goes_out_whole_and_what_the_provider_refuses_fails_with_the_numbers() -> None:
    played = Played()
    with pytest.raises(WindowExceeded) as refused:
        play(
            exchange(a_call(LONG), a_snap(WINDOW, policy=OFF)),
            (like(Recall), Memory()),
            (
                like(Send, purpose="chat", prompt=whole(messages=LONG, untouched=True)),
                too_long(limit=7900, requested=16_100),
            ),
            (like(Remember, compaction=None, learned=that(bool)), None),  # what it taught is kept all the same
            into=played,
        )
    assert "7900" in refused.value.message and "16100" in refused.value.message
    assert len(played[Send]) == 1


def test_between_the_trigger_and_the_window_nothing_is_done() -> None:
    account = Account(automatic=False, threshold=0.3)
    policy = applied(Policy(), account, "m", channel=False)
    played = play(
        exchange(a_call(LONG), a_snap(3 * WINDOW, policy=policy)),
        (like(Recall), Memory()),
        (like(Send, prompt=whole(messages=LONG, untouched=True)), a_reply(input=16_000)),
        (remembered(), None),
    )
    assert played.outcome.report.compaction == "none"


def test_notes_that_are_stored_but_not_in_use_are_for_what_does_not_fit() -> None:
    known = msgspec.structs.replace(memory_of(first_compaction()), anchor=None)
    policy = applied(Policy(), Account(automatic=False, threshold=0.3), "m", channel=False)
    for window, sent in ((3 * WINDOW, whole()), (WINDOW, notes())):
        play(
            exchange(a_call(LONG), a_snap(window, policy=policy)),
            (like(Recall), known),
            (like(Send, prompt=sent), a_reply()),
            (remembered(), None),
        )


def test_notes_that_were_made_before_stay_in_use_and_no_new_ones_are_made() -> None:
    known = memory_of(first_compaction())
    longer = (*LONG, *LONG[1:], user("And then?"))
    played = Played()
    with pytest.raises(WindowExceeded):
        play(
            exchange(a_call(longer), a_snap(WINDOW, policy=OFF)),
            (like(Recall), known),
            (like(Send, prompt=notes()), too_long(limit=WINDOW, requested=20_000)),
            (like(Remember, compaction=None, learned=that(bool)), None),
            into=played,
        )
    next_turn = (*LONG, user("And then?"))
    play(
        exchange(a_call(next_turn), a_snap(WINDOW, policy=OFF)),
        (like(Recall), known),
        (like(Send, prompt=notes()), a_reply(input=5000)),
        (remembered(), None),
    )


def test_a_command_compacts_all_the_same() -> None:
    asked = (*LONG[:-1], user("/compact"))
    played = play(
        exchange(a_call(asked), a_snap(WINDOW, policy=OFF)),
        (like(Recall), Memory()),
        (like(Claim), True),
        (like(Count), estimates),
        (compacted(), None),
        (remembered(), None),
    )
    assert played.outcome.said is not None and played.outcome.said.compaction_id is not None
