"""Tenants never meet, whatever their names are: delimiters, prefixes of each other, other scripts, nothing at all."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from proxy.core.account import Account
from proxy.core.stack import Trace
from proxy.core.steps import Memory, Stored
from proxy.store import UsageQuery
from proxy.store.sqlite import SqliteStore
from tests.store.samples import NOW, anchor, ask, compaction, hidden, row, taught

# Short names over few characters: most pairs would collide if any two of their parts were ever joined.
names = some.text(alphabet="ab&=:/|%\x1f'\"é ", max_size=4)
scopes = some.binary(max_size=3)
owners = some.tuples(names, scopes)


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(mine=owners, theirs=owners, label=names, agent=names)
async def test_what_one_caller_stores_no_other_reads(
    mine: tuple[str, bytes], theirs: tuple[str, bytes], label: str, agent: str
) -> None:
    (tenant, scope), (other, elsewhere) = mine, theirs
    store = SqliteStore(":memory:")
    await store.open(NOW)
    what = taught(
        scope=scope,
        agent=agent,
        label=label,
        reply="a1",
        anchor=anchor(),
        compaction=compaction("u1", 1),
        hidden=hidden("u1", b"[1]", label),
        results=(Stored(reference=label, text="mine"),),
        traces=(Trace(kind="SKILL_SELECT", id="shared/tone"), Trace(kind="SKILL_LOAD", id="a/a")),
    )
    await store.remember(tenant, what, NOW)
    await store.close_row(row(tenant=tenant, status="ok"))
    account = Account(threshold=0.6)
    await store.set_account(tenant, label, agent, account, NOW)
    assert await store.claim(tenant, scope, "me", NOW, 10)
    asked = ask("a1", "u1", scope=elsewhere, label=label, named=True, agent=agent)
    if mine != theirs:
        assert await store.recall(other, asked, NOW) == Memory()
        assert await store.result(other, elsewhere, label) is None
        assert await store.traces(other, elsewhere, what.conversation) == ()
        assert await store.claim(other, elsewhere, "you", NOW, 10)
    if tenant != other:
        assert await store.usage(UsageQuery(tenant=other)) == ()
        assert await store.account(other, label, agent) is None
        assert await store.purge(other, NOW + 1) == 0
    found = await store.recall(tenant, ask("a1", "u1", scope=scope, label=label, named=True, agent=agent), NOW)
    assert (found.conversation, len(found.compactions), len(found.hidden)) == ("conv_1", 1, 1)
    assert await store.result(tenant, scope, label) == "mine"
    # One answer, one time: what was selected came before what was loaded.
    assert [trace.skill for trace in await store.traces(tenant, scope, what.conversation)] == ["shared/tone", "a/a"]
    assert await store.account(tenant, label, agent) == account
    assert label == agent or await store.account(tenant, agent, label) is None
    await store.close()
