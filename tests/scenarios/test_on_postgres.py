"""Some scenarios once more, each of another part of the store, on PostgreSQL in every run.

All of them: `make test-postgres`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import engine
from tests.postgres import Cluster
from tests.scenarios.test_kept_compaction import (
    test_what_was_compacted_is_told_after_a_restart_and_gone_with_a_rewind,
)
from tests.scenarios.test_kept_turns import (
    test_a_call_that_is_sent_again_under_its_key_is_answered_once,
    test_a_second_message_while_a_turn_runs_is_told_that_it_is_busy,
    test_a_turn_that_is_stopped_leaves_what_it_wrote,
    test_what_is_said_while_the_model_works_is_told_before_its_next_call,
)
from tests.scenarios.test_memory_and_results import (
    test_a_reference_leads_to_the_whole_after_a_restart,
    test_turns_that_slide_out_leave_notes_with_what_the_user_said,
)
from tests.scenarios.test_pauses import test_a_question_is_still_open_after_a_restart
from tests.scenarios.test_recognition import (
    test_a_restart_finds_compactions_windows_and_sizes_again,
    test_forks_share_what_they_share_and_nothing_else,
    test_twenty_calls_of_one_branch_at_once_make_one_compaction,
    test_two_end_users_behind_one_key_never_meet,
)

__all__ = [
    "test_a_call_that_is_sent_again_under_its_key_is_answered_once",
    "test_a_question_is_still_open_after_a_restart",
    "test_a_reference_leads_to_the_whole_after_a_restart",
    "test_a_restart_finds_compactions_windows_and_sizes_again",
    "test_a_second_message_while_a_turn_runs_is_told_that_it_is_busy",
    "test_a_turn_that_is_stopped_leaves_what_it_wrote",
    "test_forks_share_what_they_share_and_nothing_else",
    "test_turns_that_slide_out_leave_notes_with_what_the_user_said",
    "test_twenty_calls_of_one_branch_at_once_make_one_compaction",
    "test_two_end_users_behind_one_key_never_meet",
    "test_what_is_said_while_the_model_works_is_told_before_its_next_call",
    "test_what_was_compacted_is_told_after_a_restart_and_gone_with_a_rewind",
]


@pytest.fixture(scope="module", autouse=True)
def on_postgres(cluster: Cluster) -> Iterator[None]:
    if engine.wanted():
        yield  # all of them are
        return
    with engine.served(cluster):
        yield
