"""What slides out of memory: notes that end where it begins, made once, found again, and nothing a user said gone."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest

from benchmarks.dry import Store
from benchmarks.memory_cost import Played, played
from proxy.core import groups
from proxy.core.agent import MemoryLimits
from proxy.core.conversation import Message
from proxy.core.exchange import exchange
from proxy.core.notes import Compaction
from proxy.core.pacing import SLACK
from proxy.core.policy import Policy, Tariff
from proxy.core.steps import Claim, Memory, Recall, Remember, Send
from tests.core.histories import loop, model, system, user
from tests.core.stacks import a_stack, an_agent
from tests.playbook import a_call, a_reply, a_snap, like, play, that

CACHED = Tariff(input=1000, output=0, cached=100, cache_write=1250)
THREE = MemoryLimits(turns=3, step=1)


def talk(turns: int) -> tuple[Message, ...]:
    return tuple(item for turn in range(turns) for item in (user(f"Box {turn} is blue."), model(f"Noted {turn}.")))


def asked(turns: int) -> tuple[Message, ...]:
    return (*talk(turns), user("And now?"))


def calls(turns: int, limits: MemoryLimits = THREE, store: Store | None = None, **more: Any) -> list[Played]:
    steps = [2 * turn + 1 for turn in range(turns + 1)]
    return list(played(asked(turns), limits, steps=steps, store=store, **more))


def covered(store: Store) -> list[int]:
    return sorted(made.covers for made in store.compactions.values())


def test_as_long_as_nothing_slides_out_nothing_is_made() -> None:
    store = Store()
    assert [each.prompt.report.compaction for each in calls(3, store=store)] == ["none"] * 4
    assert store.compactions == {}


def test_each_turn_that_slides_out_is_taken_into_the_notes() -> None:
    store = Store()
    *_, last = calls(6, store=store)
    assert covered(store) == [2, 4, 6]
    assert last.prompt.report.writer == "builtin"
    _, notes, *rest = last.prompt.messages
    assert all(f"Box {turn} is blue." in notes.text for turn in range(3))
    assert rest == list(asked(6)[6:])


def test_the_same_history_finds_them_again() -> None:
    store = Store()
    calls(6, store=store)
    before = dict(store.compactions)
    (again,) = played(asked(6), THREE, store=store, steps=[13])
    assert store.compactions == before
    assert again.prompt.report.compaction == "auto"


def test_a_client_that_begins_with_a_long_history_needs_one() -> None:
    store = Store()
    (only,) = played(asked(40), THREE, store=store, steps=[81])
    assert covered(store) == [74]
    assert len(groups.turns(only.prompt.messages[2:])) == 4


def test_a_rewind_is_told_what_belongs_to_it() -> None:
    store = Store()
    calls(8, store=store)
    (back,) = played(asked(2), THREE, store=store, steps=[5])
    assert back.prompt.report.compaction == "none"
    assert back.prompt.messages[1:] == asked(2)
    other = (*talk(7), user("Something else?"), model("Yes."), user("And now?"))
    (fork,) = played(other, THREE, store=store, steps=[17])
    assert fork.prompt.report.compaction == "auto"
    assert fork.prompt.messages[2:] == other[10:]


@pytest.mark.parametrize("step", [2, 4, 5])
def test_in_steps_notes_are_made_as_seldom(step: int) -> None:
    store = Store()
    made = calls(30, MemoryLimits(turns=3, step=step), store)
    assert len(store.compactions) == (30 - 3) // step
    for each in made:
        turns = len(groups.turns(each.prompt.messages[1 + (each.prompt.report.compaction_id is not None) :]))
        assert turns <= 3 + step


def test_where_a_cache_has_a_price_they_are_made_when_it_pays_or_must_be() -> None:
    store = Store()
    calls(3 + SLACK - 1, MemoryLimits(turns=3), store, tariff=CACHED)
    assert store.compactions == {}
    calls(3 + SLACK, MemoryLimits(turns=3), store, tariff=CACHED)
    assert covered(store) == [2 * SLACK]


def test_once_made_notes_stay_until_the_boundaries_behind_them_move() -> None:
    """The account of what pays is kept from the notes in use on: another begins with each."""
    store = Store()
    messages = (*loop(60, size=25), user("And now?"))
    steps = [place for place, item in enumerate(messages) if item.role == "user"][1:]
    used: list[tuple[int, int]] = []
    limits = MemoryLimits(turns=3)
    for each in played(messages, limits, CACHED, store=store, steps=[*steps, len(messages)]):
        made = next((one for one in store.compactions.values() if one.id == each.prompt.report.compaction_id), None)
        used.append((made.covers if made is not None else 0, len(store.compactions)))
    assert used[-1][0] > 0
    for (covers, count), (later, more) in pairwise(used):
        assert (more > count) == (later > covers)
        assert later >= covers


def test_a_long_history_that_is_new_here_is_folded_to_where_its_memory_begins() -> None:
    store = Store()
    messages = (*loop(60, size=25), user("And now?"))
    limits = MemoryLimits(turns=3)
    (only,) = played(messages, limits, CACHED, store=store, steps=[len(messages)])
    before = dict(store.compactions)
    assert len(before) == 1
    (again,) = played((*messages, model("Well."), user("More.")), limits, CACHED, store=store, steps=[len(messages)])
    assert store.compactions == before
    assert again.prompt.messages == only.prompt.messages


def test_where_turns_are_dropped_nothing_is_made() -> None:
    store = Store()
    *_, last = calls(6, MemoryLimits(turns=3, step=1, leaving="drop"), store)
    assert store.compactions == {}
    assert last.prompt.messages[1:] == asked(6)[6:]


def test_nor_behind_notes_that_were_made_for_the_window() -> None:
    store = Store()
    calls(4, store=store)
    first = dict(store.compactions)
    drops = MemoryLimits(turns=3, step=1, leaving="drop")
    (last,) = played(asked(12), drops, store=store, steps=[25])
    assert store.compactions == first
    assert last.prompt.messages[-7:] == asked(12)[-7:]
    assert last.prompt.messages[-8].role != "assistant"


def test_system_messages_before_the_first_turn_that_stays_stay_too() -> None:
    messages = (system("Lead."), *talk(2), system("Now shout."), *asked(3))
    store = Store()
    (only,) = played(messages, THREE, store=store, steps=[len(messages)])
    assert [item.text for item in only.prompt.messages if item.role == "system"][1:] == ["Now shout."]
    assert covered(store) == [4]


def test_and_the_notes_do_not_take_the_turn_before_them_for_open() -> None:
    messages = (*talk(2), system("Now shout."), *asked(3))
    store = Store()
    steps = [place for place, item in enumerate(messages) if item.role == "user"][1:]
    for each in played(messages, THREE, store=store, steps=[*(place + 1 for place in steps)]):
        assert not groups.repair(each.prompt.messages).count
    for made in store.compactions.values():
        assert not made.notes.part
    (only,) = played(messages, THREE, store=store, steps=[len(messages)])
    assert [item.text for item in only.prompt.messages][2:] == ["Now shout.", *(item.text for item in asked(3))]


def test_what_notes_refer_to_is_stored_with_them() -> None:
    store = Store()
    messages = (*loop(6, size=60), user("And now?"))
    (only,) = played(messages, THREE, store=store, steps=[len(messages)])
    (made,) = store.compactions.values()
    assert made.notes.kept
    assert set(made.notes.kept) <= only.results


def test_with_a_window_that_fills_they_are_compacted_like_any_conversation() -> None:
    store = Store()
    messages = (*loop(30, size=120), user("And now?"))
    steps = [place for place, item in enumerate(messages) if item.role == "user"][1:]
    for each in played(
        messages, MemoryLimits(turns=5, step=1), store=store, window=8_000, steps=[*steps, len(messages)]
    ):
        assert each.prompt.report.tokens <= 8_000
        turns = len(groups.turns(each.prompt.messages[1 + (each.prompt.report.compaction_id is not None) :]))
        assert turns <= 6


# -- the order of it --------------------------------------------------------------------------------------------------


def snap(limits: MemoryLimits = THREE, **more: Any) -> Any:
    return a_snap(stack=a_stack(an_agent(skills=(), instructions="A.", memory=limits)), **more)


def folds(**more: Any) -> Any:
    return like(Remember, compaction=that(lambda made: type(made) is Compaction and made.writer == "builtin"), **more)


def test_they_are_made_under_a_lease_before_anything_is_sent() -> None:
    played_ = play(
        exchange(a_call(asked(4)), snap()),
        (like(Recall), Memory()),
        (like(Claim), True),
        (folds(request=None), None),
        (like(Send), a_reply()),
        (like(Remember, compaction=None), None),
    )
    assert played_.outcome.report.compaction == "auto"


def test_whoever_comes_second_looks_again() -> None:
    first = play(
        exchange(a_call(asked(4)), snap()),
        (like(Recall), Memory()),
        (like(Claim), True),
        (folds(), None),
        (like(Send), a_reply()),
        (like(Remember), None),
    )
    made = first[Remember][0].compaction
    assert made is not None
    second = play(
        exchange(a_call(asked(4)), snap()),
        (like(Recall), Memory()),
        (like(Claim), False),
        (like(Recall), Memory(compactions=(made,))),
        (like(Send), a_reply()),
        (like(Remember, compaction=None), None),
    )
    assert second.outcome.report.compaction_id == made.id
    alone = play(
        exchange(a_call(asked(4)), snap()),
        (like(Recall), Memory()),
        (like(Claim), False),
        (like(Recall), Memory()),
        (folds(), None),
        (like(Send), a_reply()),
        (like(Remember), None),
    )
    assert alone.outcome.report.compaction_id == made.id


def test_an_account_that_wants_no_automatic_compaction_has_them_all_the_same() -> None:
    played_ = play(
        exchange(a_call(asked(4)), snap(policy=Policy(automatic=False))),
        (like(Recall), Memory()),
        (like(Claim), True),
        (folds(), None),
        (like(Send), a_reply()),
        (like(Remember), None),
    )
    assert played_.outcome.report.compaction == "auto"


def test_a_narrative_that_is_known_goes_on_and_stands_for_what_it_stood_for() -> None:
    store = Store()
    calls(4, store=store)
    (first,) = store.compactions.values()
    told = msgspec.structs.replace(
        first, notes=msgspec.structs.replace(first.notes, narrative="## Decisions\n- Blue it is."), writer="big-1"
    )
    store.compactions = {(told.digest, told.id): told}
    (only,) = played(asked(6), THREE, store=store, steps=[13])
    newest = max(store.compactions.values(), key=lambda made: made.covers)
    assert "Blue it is." in only.prompt.messages[1].text
    assert (newest.covers, newest.told_to, newest.writer) == (6, 2, "big-1")
    (next_,) = played(asked(7), THREE, store=store, steps=[15])
    last = max(store.compactions.values(), key=lambda made: made.covers)
    assert (last.covers, last.told_to) == (8, 2)
    assert "Blue it is." in next_.prompt.messages[1].text


def test_notes_that_reach_further_than_the_memory_begins_are_no_source_of_these() -> None:
    store = Store()
    calls(12, MemoryLimits(turns=1, step=1), store)
    far = max(store.compactions.values(), key=lambda made: made.covers)
    told = msgspec.structs.replace(far, notes=msgspec.structs.replace(far.notes, narrative="## Decisions\n- Far."))
    store.compactions = {(told.digest, told.id): told}
    (only,) = played(asked(12), THREE, store=store, steps=[25])
    assert only.prompt.report.compaction_id == told.id  # it stands for what slid out, and for more
