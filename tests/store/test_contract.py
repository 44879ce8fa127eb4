"""What every store promises, whatever the database: the suite that a new fulfilment must pass unchanged."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from proxy.core.account import Account
from proxy.core.errors import ClientError, StoreUnavailable
from proxy.core.steps import Limits, Memory, Ratio, Stored
from proxy.store import Calibration, KeyRow, Store, UsageQuery
from tests.store.samples import NOW, SCOPE, anchor, ask, compaction, digest, hidden, row, taught

DAY = 86_400.0


# -- recall and remember ---------------------------------------------------------------------------------------------


async def test_an_unknown_history_has_no_memory(store: Store) -> None:
    assert await store.recall("t", ask("u1"), NOW) == Memory()


async def test_an_answered_history_is_recognised_when_it_goes_on(store: Store) -> None:
    await store.remember("t", taught(request="u1", reply="a1", anchor=anchor()), NOW)
    memory = await store.recall("t", ask("u2", "a1", "u1"), NOW)
    assert memory.conversation == "conv_1"
    assert memory.anchor == anchor()


async def test_a_request_that_is_sent_again_finds_what_was_measured_on_it(store: Store) -> None:
    await store.remember("t", taught(request="u1", reply="a1", anchor=anchor(100)), NOW)
    await store.remember("t", taught(request="u2", reply="a2", anchor=anchor(200)), NOW)
    assert (await store.recall("t", ask("u2", "a1", "u1"), NOW)).anchor == anchor(200)
    assert (await store.recall("t", ask("u1"), NOW)).anchor == anchor(100)


async def test_a_history_asked_before_it_was_remembered_is_found_afterwards(store: Store) -> None:
    assert await store.recall("t", ask("u2", "a1", "u1"), NOW) == Memory()
    await store.remember("t", taught(request="u1", reply="a1", compaction=compaction("u1", 1)), NOW)
    memory = await store.recall("t", ask("u2", "a1", "u1"), NOW)
    assert (memory.conversation, len(memory.compactions)) == ("conv_1", 1)


async def test_every_compaction_is_found_however_many_a_caller_has(store: Store) -> None:
    places = [f"u{number}" for number in range(140)]
    for id in ("a", "b"):  # two at each place
        taught_now = [taught(compaction=compaction(place, 1, f"cmp_{place}_{id}")) for place in places]
        await asyncio.gather(*(store.remember("t", what, NOW) for what in taught_now))
    assert await store.purge("t", 0) == 0  # nothing goes; what was read lately is read again
    for place in places:
        found = (await store.recall("t", ask(place), NOW)).compactions
        assert [each.id for each in found] == [f"cmp_{place}_a", f"cmp_{place}_b"]


async def test_the_longest_known_prefix_decides(store: Store) -> None:
    await store.remember("t", taught(reply="a1", anchor=anchor(100)), NOW)
    await store.remember("t", taught(reply="a2", conversation="conv_2", anchor=anchor(200)), NOW)
    memory = await store.recall("t", ask("u3", "a2", "u2", "a1", "u1"), NOW)
    assert (memory.conversation, memory.anchor) == ("conv_2", anchor(200))
    back = await store.recall("t", ask("u2x", "a1", "u1"), NOW)
    assert (back.conversation, back.anchor) == ("conv_1", anchor(100))


async def test_an_answer_without_reported_usage_leaves_the_anchor_of_the_one_before(store: Store) -> None:
    await store.remember("t", taught(reply="a1", anchor=anchor(100)), NOW)
    await store.remember("t", taught(reply="a2"), NOW)
    assert (await store.recall("t", ask("u3", "a2", "u2", "a1", "u1"), NOW)).anchor == anchor(100)


async def test_the_newest_anchor_of_a_prefix_replaces_the_one_before(store: Store) -> None:
    await store.remember("t", taught(reply="a1", anchor=anchor(100)), NOW)
    await store.remember("t", taught(reply="a1", anchor=anchor(150, model="other")), NOW)
    await store.remember("t", taught(reply="a1"), NOW)
    assert (await store.recall("t", ask("a1"), NOW)).anchor == anchor(150, model="other")


async def test_all_compactions_on_the_path_come_back_the_shortest_first(store: Store) -> None:
    long, short, off = compaction("u9", 9, "cmp_9"), compaction("u5", 5, "cmp_5"), compaction("x", 7, "cmp_x")
    again = compaction("u5", 5, "cmp_5b")
    for what in (long, off, again, short):
        await store.remember("t", taught(compaction=what), NOW)
    memory = await store.recall("t", ask("u11", "u9", "u7", "u5", "u3"), NOW)
    assert memory.compactions == (short, again, long)


async def test_compactions_are_found_at_the_far_end_of_a_long_history(store: Store) -> None:
    names = tuple(f"m{number}" for number in range(5_000, 0, -1))
    many = [compaction(f"other{number}", number, f"cmp_{number}") for number in range(1, 301)]
    for what in (*many, compaction("m2", 2, "first"), compaction("m4000", 4000, "last")):
        await store.remember("t", taught(compaction=what), NOW)
    await store.remember("t", taught(reply="m3", anchor=anchor()), NOW)
    memory = await store.recall("t", ask(*names), NOW)
    assert [found.id for found in memory.compactions] == ["first", "last"]
    assert memory.anchor == anchor()


async def test_a_compaction_serves_every_agent_of_the_caller_and_no_other_caller(store: Store) -> None:
    await store.remember("t", taught(reply="a1", compaction=compaction("u1", 1)), NOW)
    assert (await store.recall("t", ask("u1", agent="other"), NOW)).compactions
    assert await store.recall("t", ask("a1", "u1", scope=b"other"), NOW) == Memory()
    assert await store.recall("other", ask("a1", "u1"), NOW) == Memory()


async def test_a_label_takes_its_own_conversation_first(store: Store) -> None:
    await store.remember("t", taught(reply="a1", label="chat-1", conversation="conv_1"), NOW)
    await store.remember("t", taught(reply="b1", label="chat-2", conversation="conv_2"), NOW)
    memory = await store.recall("t", ask("u2", "a1", label="chat-2"), NOW)
    assert memory.conversation == "conv_2"
    assert (await store.recall("t", ask("new", label="chat-1"), NOW)).conversation == "conv_1"


async def test_a_new_label_takes_over_an_unlabelled_conversation_but_not_another_labels(store: Store) -> None:
    await store.remember("t", taught(reply="a1", conversation="conv_1"), NOW)
    assert (await store.recall("t", ask("u2", "a1", label="chat-1"), NOW)).conversation == "conv_1"
    await store.remember("t", taught(reply="a2", label="chat-1", conversation="conv_1"), NOW)
    assert (await store.recall("t", ask("elsewhere", label="chat-1"), NOW)).conversation == "conv_1"
    fork = await store.recall("t", ask("u3", "a2", "u2", "a1", label="chat-2"), NOW)
    assert fork.conversation is None


async def test_a_label_groups_a_call_whose_answer_has_no_identity(store: Store) -> None:
    await store.remember("t", taught(label="chat"), NOW)
    assert (await store.recall("t", ask("u2", label="chat"), NOW)).conversation == "conv_1"


async def test_the_first_conversation_of_a_label_stays_the_labels(store: Store) -> None:
    await store.remember("t", taught(reply="a1", label="chat", conversation="conv_1"), NOW)
    await store.remember("t", taught(reply="b1", label="chat", conversation="conv_2"), NOW + 1)
    assert (await store.recall("t", ask("x", label="chat"), NOW)).conversation == "conv_1"


async def test_what_is_remembered_twice_is_stored_once(store: Store) -> None:
    what = taught(
        request="u1",
        reply="a1",
        label="chat",
        anchor=anchor(),
        compaction=compaction("u1", 1),
        hidden=hidden("u1", b"[1]", "chat"),
        results=(Stored(reference="ref_1", text="whole"),),
    )
    await store.remember("t", what, NOW)
    before = await store.recall("t", ask("a1", "u1", label="chat", named=True), NOW)
    await store.remember("t", what, NOW)
    assert await store.recall("t", ask("a1", "u1", label="chat", named=True), NOW) == before
    assert (len(before.compactions), len(before.hidden)) == (1, 1)
    # One each of: conversation, reply, request, compaction, hidden, result.
    assert await store.purge("t", NOW + DAY) == 6


async def test_a_recall_sees_what_was_queued_before_it(store: Store) -> None:
    await store.remember("t", taught(reply="a1", anchor=anchor(1)), NOW)
    await store.recall("t", ask("a1"), NOW)
    later = [store.remember("t", taught(reply="a1", anchor=anchor(n)), NOW) for n in (2, 3, 4)]
    await asyncio.sleep(0)  # each has queued its write and none is done
    assert (await store.recall("t", ask("a1"), NOW)).anchor == anchor(4)
    await asyncio.gather(*later)


async def test_text_that_is_hard_to_store_comes_back_as_it_was(store: Store) -> None:
    text = "NUL \0, astral \U0001f600, combining e\u0301, lone \ud800 surrogate, 'quote' \u2028"
    what = compaction("u1", 1, text=text)
    await store.remember(
        "t",
        taught(reply="a1", label=text, compaction=what, results=(Stored(reference="r", text=text * 1000),)),
        NOW,
    )
    assert (await store.recall("t", ask("u1", label=text), NOW)).compactions == (what,)
    assert (await store.recall("t", ask("x", label=text), NOW)).conversation == "conv_1"
    assert await store.result("t", SCOPE, "r") == text * 1000


# -- hidden state ----------------------------------------------------------------------------------------------------


async def test_hidden_state_is_given_only_to_a_caller_who_states_who_he_is(store: Store) -> None:
    await store.remember("t", taught(reply="a1", hidden=hidden("u1", b"[1]")), NOW)
    assert (await store.recall("t", ask("u2", "a1", "u1"), NOW)).hidden == ()
    assert (await store.recall("t", ask("u2", "a1", "u1", named=True), NOW)).hidden == (hidden("u1", b"[1]"),)
    assert (await store.recall("t", ask("u2", "a1", "u1", named=True, agent="other"), NOW)).hidden == ()


async def test_hidden_state_is_found_by_the_request_where_the_client_altered_the_answer(store: Store) -> None:
    await store.remember("t", taught(reply="a1", hidden=hidden("u1", b"[1]")), NOW)
    assert (await store.recall("t", ask("u2", "altered", "u1", named=True), NOW)).hidden == (hidden("u1", b"[1]"),)


async def test_of_two_answers_to_one_prefix_the_one_that_is_sent_back_counts(store: Store) -> None:
    await store.remember("t", taught(reply="a1", hidden=hidden("u1", b"[1]")), NOW)
    await store.remember("t", taught(reply="a1x", hidden=hidden("u1", b"[2]")), NOW)
    assert (await store.recall("t", ask("u2", "a1x", "u1", named=True), NOW)).hidden == (hidden("u1", b"[2]"),)
    assert (await store.recall("t", ask("u2", "altered", "u1", named=True), NOW)).hidden == ()


async def test_only_a_label_decides_between_two_hidden_states_of_the_same_answer(store: Store) -> None:
    for label in ("one", "two"):
        mine = hidden("u1", label.encode(), label)
        await store.remember("t", taught(reply="a1", label=label, conversation=label, hidden=mine), NOW)
    for label in ("one", "two"):
        memory = await store.recall("t", ask("u2", "a1", "u1", label=label, named=True), NOW)
        assert memory.hidden == (hidden("u1", label.encode(), label),)
    assert (await store.recall("t", ask("u2", "a1", "u1", named=True), NOW)).hidden == ()
    assert (await store.recall("t", ask("u2", "a1", "u1", label="three", named=True), NOW)).hidden == ()


async def test_hidden_states_come_back_the_oldest_first(store: Store) -> None:
    await store.remember("t", taught(reply="a2", hidden=hidden("u2", b"[2]")), NOW)
    await store.remember("t", taught(reply="a1", hidden=hidden("u1", b"[1]")), NOW)
    memory = await store.recall("t", ask("u3", "a2", "u2", "a1", "u1", named=True), NOW)
    assert [found.payload for found in memory.hidden] == [b"[1]", b"[2]"]


# -- results, leases, keys, calibration, secrets ---------------------------------------------------------------------


async def test_a_result_is_its_callers_alone(store: Store) -> None:
    await store.remember("t", taught(results=(Stored(reference="r", text="whole"),)), NOW)
    assert await store.result("t", SCOPE, "r") == "whole"
    assert await store.result("t", b"other", "r") is None
    assert await store.result("other", SCOPE, "r") is None
    assert await store.result("t", SCOPE, "missing") is None


async def test_a_lease_has_one_owner_until_it_is_released_or_expires(store: Store) -> None:
    assert await store.claim("t", b"branch", "one", NOW, 10)
    assert not await store.claim("t", b"branch", "two", NOW + 9, 10)
    assert not await store.claim("t", b"branch", "one", NOW + 9, 10)
    assert await store.claim("other", b"branch", "two", NOW, 10)
    assert await store.claim("t", b"branch", "two", NOW + 10, 10)
    await store.release("t", b"branch", "one")
    assert not await store.claim("t", b"branch", "three", NOW + 11, 10)
    await store.release("t", b"branch", "two")
    assert await store.claim("t", b"branch", "three", NOW + 11, 10)


async def test_of_many_who_claim_at_once_one_gets_the_lease(store: Store) -> None:
    answers = await asyncio.gather(*(store.claim("t", b"k", f"owner{n}", NOW, 10) for n in range(50)))
    assert sum(answers) == 1


async def test_a_key_is_added_once_and_revoked_once(store: Store) -> None:
    key = KeyRow(id="team", tenant="t", digest=b"\x00\xff", created_at=NOW, models=("fast", "slow*"))
    await store.add_key("t", key)
    with pytest.raises(ClientError) as refused:
        await store.add_key("t", msgspec.structs.replace(key, digest=b"other"))
    assert refused.value.code == "key_exists"
    assert await store.keys() == (key,)
    assert not await store.revoke_key("other", "team", NOW)
    assert await store.revoke_key("t", "team", NOW + 1)
    assert not await store.revoke_key("t", "team", NOW + 2)
    assert await store.keys() == (msgspec.structs.replace(key, revoked_at=NOW + 1),)


async def test_the_last_calibration_of_a_model_counts(store: Store) -> None:
    first = Calibration(upstream="u", model="m", limits=Limits(total=8192, source="learned"), expires_at=NOW)
    second = msgspec.structs.replace(first, exact=Ratio(value=1.07, samples=3))
    other = Calibration(upstream="v", model="m")
    for what in (first, other, second):
        await store.calibrate(what)
    assert sorted(await store.calibrations(), key=lambda found: found.upstream) == [second, other]


async def test_a_secret_is_made_once_per_purpose(store: Store) -> None:
    scope, other = await store.secret("scope"), await store.secret("keys")
    assert (len(scope), len(other)) == (32, 32)
    assert scope != other
    assert await store.secret("scope") == scope


# -- usage rows ------------------------------------------------------------------------------------------------------


async def test_a_row_is_opened_then_closed_once(store: Store) -> None:
    store.open_row(row())
    await store.opened()
    assert [found.status for found in await store.usage(UsageQuery())] == ["open"]
    closed = row(status="ok", input=10, cost=5, stream=True, estimated=True, duration=1.5, finish="stop")
    await store.close_row(closed)
    await store.close_row(row(status="failed"))
    assert await store.usage(UsageQuery()) == (closed,)


async def test_a_row_opened_and_closed_at_once_is_one_row(store: Store) -> None:
    store.open_row(row())
    await store.close_row(row(status="ok"))
    assert await store.usage(UsageQuery()) == (row(status="ok"),)


async def test_a_row_can_be_closed_that_was_never_opened(store: Store) -> None:
    await store.close_row(row(status="ok"))
    store.open_row(row())
    await store.opened()
    assert await store.usage(UsageQuery()) == (row(status="ok"),)


async def test_equal_row_ids_of_two_tenants_are_two_rows(store: Store) -> None:
    await store.close_row(row(status="ok", tenant="t"))
    await store.close_row(row(status="failed", tenant="other"))
    found = await store.usage(UsageQuery(tenant="other"))
    assert found == (row(status="failed", tenant="other"),)
    assert len(await store.usage(UsageQuery())) == 2


async def test_a_row_is_never_lost_to_what_a_provider_reported(store: Store) -> None:
    odd = row(status="ok", input=10**30, cost=-(10**30), finish="lone \ud800", model="with\0nul", upstream="\udfff")
    await store.close_row(odd)
    found = (await store.usage(UsageQuery()))[0]
    assert (found.id, found.status, found.input) == ("row_1", "ok", 1 << 50)
    assert await store.usage(UsageQuery(by="model"))


async def test_a_report_by_something_else_is_the_clients_mistake(store: Store) -> None:
    with pytest.raises(ClientError):
        await store.usage(UsageQuery(by="colour"))


# -- retention -------------------------------------------------------------------------------------------------------


async def test_settings_are_one_accounts_alone_and_are_replaced_whole(store: Store) -> None:
    first = Account(automatic=False, threshold=0.5, thresholds={"m": 0.4, "größer": 0.95}, summary_model="small")
    second = Account(threshold=0.6)
    assert await store.account("t", "k", "ann") is None
    await store.set_account("t", "k", "ann", first, NOW)
    assert await store.account("t", "k", "ann") == first
    for tenant, key, user in (("t", "k", None), ("t", "k", "bob"), ("t", "k2", "ann"), ("t2", "k", "ann")):
        assert await store.account(tenant, key, user) is None
    await store.set_account("t", "k", None, second, NOW)
    await store.set_account("t", "k", "ann", second, NOW + 1)
    assert await store.account("t", "k", "ann") == second == await store.account("t", "k", None)


async def test_settings_that_change_nothing_are_as_if_they_had_never_been_made(store: Store) -> None:
    await store.set_account("t", "k", "ann", Account(threshold=0.6), NOW)
    await store.set_account("t", "k", "ann", Account(), NOW + 1)
    assert await store.account("t", "k", "ann") is None


async def test_the_first_settings_of_a_tenant_are_seen_by_whoever_asks_behind_them(store: Store) -> None:
    asked = [store.account("t", "k", "ann") for _ in range(3)]
    account = Account(threshold=0.6)
    before, behind = asyncio.gather(*asked), asyncio.create_task(store.set_account("t", "k", "ann", account, NOW))
    await asyncio.sleep(0)
    assert await store.account("t", "k", "ann") == account
    await asyncio.gather(before, behind)
    assert await store.account("t", "k", "ann") == account


async def test_settings_outlive_every_conversation(store: Store) -> None:
    account = Account(threshold=0.6)
    await store.set_account("t", "k", None, account, NOW)
    await store.remember("t", taught(reply="a1"), NOW)
    assert await store.purge("t", NOW + 1000 * DAY) == 2  # the reply and its conversation
    assert await store.account("t", "k", None) == account


async def test_purge_takes_what_was_not_used_since_and_nothing_else(store: Store) -> None:
    old, new = NOW, NOW + 10 * DAY
    for name, when in (("old", old), ("new", new)):
        results = (Stored(reference=f"r-{name}", text=name),)
        notes = compaction(f"u-{name}", 1, f"cmp-{name}")
        secret = hidden(f"u-{name}", name.encode())
        what = taught(
            reply=f"a-{name}", conversation=name, compaction=notes, hidden=secret, results=results, anchor=anchor()
        )
        await store.remember("t", what, when)
        await store.remember("other", what, old)
        await store.close_row(row(f"row-{name}", status="ok", opened_at=when))
    store.open_row(row("still open", opened_at=old))
    await store.opened()
    # conversation, reply, compaction, hidden, result, usage row
    assert await store.purge("t", NOW + 5 * DAY) == 6
    assert await store.recall("t", ask("u", "a-old", "u-old", named=True), new) == Memory()
    assert await store.result("t", SCOPE, "r-old") is None
    kept = await store.recall("t", ask("u", "a-new", "u-new", named=True), new)
    assert (kept.conversation, len(kept.compactions), len(kept.hidden)) == ("new", 1, 1)
    assert await store.result("t", SCOPE, "r-new") == "new"
    assert {found.id for found in await store.usage(UsageQuery(tenant="t"))} == {"row-new", "still open"}
    assert (await store.recall("other", ask("a-old", "u-old"), old)).conversation == "old"
    assert await store.purge("t", NOW + 5 * DAY) == 0


async def test_retention_runs_from_the_last_use_of_the_branch(store: Store) -> None:
    results = (Stored(reference="r", text="whole"),)
    await store.remember("t", taught(reply="a1", compaction=compaction("u1", 1), results=results), NOW)
    await store.recall("t", ask("u2", "a1", "u1"), NOW + 9 * DAY)
    assert await store.purge("t", NOW + 5 * DAY) == 0
    assert len((await store.recall("t", ask("u2", "a1", "u1"), NOW + 9 * DAY)).compactions) == 1
    assert await store.result("t", SCOPE, "r") == "whole"


async def test_a_purge_of_many_rows_takes_them_all(store: Store) -> None:
    await asyncio.gather(*(store.close_row(row(f"row{n}", status="ok")) for n in range(5_001)))
    assert await store.purge("t", NOW + 1) == 5_001
    assert await store.usage(UsageQuery()) == ()


# -- life ------------------------------------------------------------------------------------------------------------


async def test_a_ready_store_says_so_and_a_closed_one_refuses(store: Store) -> None:
    await store.ready()
    store.open_row(row())
    await store.close()
    with pytest.raises(StoreUnavailable):
        await store.ready()
    with pytest.raises(StoreUnavailable):
        store.open_row(row("other"))
    assert digest("x")  # a second close is harmless
    await store.close()
