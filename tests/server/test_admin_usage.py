"""Usage told to the operator: filters, several columns, and exports of any length in the memory of a page."""

from __future__ import annotations

import csv
import io
import json
import tracemalloc
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import httpx
import pytest

from proxy.core.errors import StoreUnavailable
from proxy.core.usage import UsageRow
from proxy.server.exports import FOCUS, export, focus
from tests.fakes import Script, SeenRequest
from tests.server.wired import ADMIN, Exchange, Wired, bearer, wired
from tests.store.samples import row

USAGE = "/v1/weirgate/usage"
SECRET = "client-secret-of-this-test"
GIVEN: dict[str, Any] = {"keys": [{"id": "k", "tenant": "a", "secret": SECRET}], "admin": {"secret": ADMIN}}
MANDATORY = """BilledCost BillingAccountId BillingAccountName BillingCurrency BillingPeriodEnd BillingPeriodStart
ChargeCategory ChargeClass ChargeDescription ChargePeriodEnd ChargePeriodStart ContractedCost EffectiveCost
InvoiceIssuerName ListCost PricingQuantity PricingUnit ProviderName PublisherName ServiceCategory ServiceName""".split()
"""The columns that FOCUS 1.2 wants in every data set."""


async def nothing(request: SeenRequest, reply: Script) -> None:
    await reply.close()


def some() -> list[UsageRow]:
    return [
        row(
            f"row{number}",
            tenant="ab"[number % 2],
            key=f"k{number % 3}",
            model=f"m{number % 2}",
            end_user=None if number % 4 else "anna",
            conversation=f"conv_{number % 5}",
            purpose="compaction" if number % 7 == 0 else "chat",
            status="failed" if number % 6 == 5 else "ok",
            opened_at=1_800_000_000.0 + number // 2,  # two at the same moment
            duration=2.5,
            input=number,
            output=1,
            cost=number * 10**9 + 1,
            compaction="auto" if number % 7 == 0 else "none",
            compaction_id="cmp_1" if number % 7 == 0 else None,
        )
        for number in range(60)
    ]


async def filled(weir: Wired, rows: list[UsageRow]) -> None:
    for each in rows:
        weir.app.store.open_row(each)
        await weir.app.store.close_row(each)


async def get(weir: Wired, query: str = "", secret: str = ADMIN, path: str = USAGE) -> httpx.Response:
    return await weir.client.get(f"{path}?{query}", headers=bearer(secret))


@pytest.mark.parametrize(
    "asked",
    [
        {"tenant": "a"},
        {"key": "k1"},
        {"model": "m1", "status": "failed"},
        {"end_user": "anna"},
        {"conversation": "conv_2", "purpose": "chat", "tenant": "b"},
        {"key": "nobody"},
    ],
)
async def test_only_rows_with_what_is_asked_for_are_told(asked: dict[str, str]) -> None:
    wanted = [each for each in some() if all(getattr(each, name) == value for name, value in asked.items())]
    async with wired(nothing, **GIVEN) as weir:
        await filled(weir, some())
        query = "&".join(f"{name}={value}" for name, value in asked.items())
        told = (await get(weir, query)).json()["data"]
        sums = (await get(weir, query + "&by=model")).json()["data"]
    assert sorted(line["id"] for line in told) == sorted(each.id for each in wanted)
    assert sum(line["calls"] for line in sums) == len(wanted)


async def test_a_client_sees_its_own_tenant_whatever_it_asks_for() -> None:
    async with wired(nothing, **GIVEN) as weir:
        await filled(weir, some())
        for query in ("", "tenant=b", "tenant=b&by=key"):
            lines = (await get(weir, query, SECRET)).json()["data"]
            assert {line["tenant"] for line in lines} == {"a"}


async def test_sums_go_by_several_columns_at_once() -> None:
    async with wired(nothing, **GIVEN) as weir:
        await filled(weir, some())
        lines = (await get(weir, "by=model,status,key")).json()["data"]
        days = (await get(weir, "by=day,tenant")).json()["data"]
    found = {(*line["group"], line["tenant"]): line["calls"] for line in lines}
    wanted: dict[tuple[str, ...], int] = {}
    for each in some():
        name = (each.model, each.status, each.key, each.tenant)
        wanted[name] = wanted.get(name, 0) + 1
    assert found == wanted
    assert [line["group"] for line in days] == [["2027-01-15", "a"], ["2027-01-15", "b"]]


@pytest.mark.parametrize("query", ["by=model,model", "by=model,", "by=model;day", "format=xml", "by=model&format=csv"])
async def test_what_cannot_be_told_is_refused(query: str) -> None:
    async with wired(nothing, **GIVEN) as weir:
        got = await get(weir, query)
    assert (got.status_code, got.json()["error"]["code"]) == (400, "out_of_range")


@pytest.mark.parametrize("limit", [1, 7, 59, 60, 1000])
async def test_pages_join_without_a_gap_or_a_double(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.server.admin_usage._PAGE", 7)
    newest = [each.id for each in sorted(some(), key=lambda each: (each.opened_at, each.id), reverse=True)]
    async with wired(nothing, **GIVEN) as weir:
        await filled(weir, some())
        told = (await get(weir, f"limit={limit}")).json()["data"]
        lines = (await get(weir, f"limit={limit}&format=csv")).text.splitlines()
    assert [line["id"] for line in told] == newest[:limit]
    assert [line.split(",")[0] for line in lines] == ["id", *newest[:limit]]


async def test_focus_has_its_columns_and_its_costs_are_those_of_the_rows() -> None:
    async with wired(nothing, **GIVEN) as weir:
        await filled(weir, some())
        got = await get(weir, "format=focus")
    assert got.headers["content-type"].startswith("text/csv")
    lines = list(csv.DictReader(io.StringIO(got.text)))
    assert len(lines) == 60 and set(MANDATORY) <= set(lines[0])
    assert all(name in MANDATORY or name[0].isupper() or name.startswith("x_") for name in lines[0])
    by_id = {each.id: each for each in some()}
    for line in lines:
        of = by_id[line["ResourceId"]]
        assert of.cost is not None
        assert round(float(line["BilledCost"]) * 1e9) == of.cost and "e" not in line["BilledCost"]
        assert line["BilledCost"] == line["EffectiveCost"] == line["ListCost"] == line["ContractedCost"]
        assert (line["BillingAccountId"], line["SubAccountId"]) == (of.tenant, of.key)
        assert json.loads(line["Tags"])["conversation"] == of.conversation
        start, end = (datetime.fromisoformat(line[f"ChargePeriod{which}"]) for which in ("Start", "End"))
        assert start.timestamp() <= of.opened_at < of.opened_at + 2.5 < end.timestamp()
        assert (line["BillingPeriodStart"], line["BillingPeriodEnd"]) == (
            "2027-01-01T00:00:00Z",
            "2027-02-01T00:00:00Z",
        )


def test_a_row_without_a_price_costs_nothing_and_says_so() -> None:
    told = dict(zip(FOCUS, focus(row(cost=None, unpriced=True, opened_at=1_798_761_599.0)), strict=True))
    assert (float(str(told["BilledCost"])), told["x_Unpriced"]) == (0, True)
    assert (told["BillingPeriodStart"], told["BillingPeriodEnd"]) == ("2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z")


def test_a_name_that_a_spreadsheet_would_run_is_kept_a_text() -> None:
    text = export("csv").rows([row(conversation="=1+1", end_user="@a")], True).decode()
    assert "'=1+1" in text and "'@a" in text


async def test_an_export_takes_the_memory_of_a_page_however_long_it_is() -> None:
    async with wired(nothing, **GIVEN) as weir:
        page = [row(f"row{number}") for number in range(1000)]
        asked = 0

        async def many(query: Any) -> list[UsageRow]:
            nonlocal asked
            asked += query.limit
            return page[: query.limit]

        async def never() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def exported(length: int) -> tuple[int, int]:
            """Bytes that were sent, and the most that was held meanwhile."""
            told = 0

            async def send(message: Any) -> None:
                nonlocal told
                told += len(message.get("body", b""))

            headers = [(b"host", b"127.0.0.1"), (b"authorization", f"Bearer {ADMIN}".encode())]
            query = f"limit={length}&format=csv".encode()
            tracemalloc.start()
            try:
                scope = {"type": "http", "method": "GET", "headers": headers, "query_string": query}
                await weir.app._exact[USAGE](scope, never, send)
                return told, tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()

        weir.app.store.usage = many  # type: ignore[method-assign]
        short, little = await exported(2_000)
        long, much = await exported(50_000)
    assert asked == 52_000 and long > 20 * short
    assert much < 2 * little


async def test_an_export_that_breaks_off_never_looks_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.server.admin_usage._PAGE", 10)

    async def breaking(query: Any) -> AsyncIterator[UsageRow]:
        raise StoreUnavailable("gone")

    async with wired(nothing, **GIVEN) as weir:
        await filled(weir, some())
        whole = weir.app.store.usage

        async def once(query: Any) -> Any:
            weir.app.store.usage = breaking  # type: ignore[method-assign, assignment]
            return [row(f"row{number}") for number in range(query.limit)]

        weir.app.store.usage = once  # type: ignore[method-assign]
        asked = Exchange(weir.app, path=USAGE, method="GET", headers=bearer(ADMIN)).start()
        await asked.head()
        await asked.done()
        pieces = [asked.sent.get_nowait() for _ in range(asked.sent.qsize())]
        assert all(piece["more_body"] for piece in pieces)
        assert (await get(weir)).status_code == 503
        weir.app.store.usage = whole  # type: ignore[method-assign]


# -- conversations ---------------------------------------------------------------------------------------------------


async def test_conversations_are_listed_by_their_last_use_and_never_with_what_was_said() -> None:
    async with wired(nothing, **GIVEN) as weir:
        await filled(weir, some())
        listed = (await get(weir, "tenant=a", path="/v1/weirgate/conversations")).json()["data"]
        one = (await get(weir, "tenant=a", path="/v1/weirgate/conversations/conv_2")).json()
        mine = (await get(weir, "", SECRET, path="/v1/weirgate/conversations")).json()["data"]
        missing = await get(weir, "tenant=b", path="/v1/weirgate/conversations/none")
    rows = [each for each in some() if each.tenant == "a" and each.conversation == "conv_2"]
    assert [line["last_used"] for line in listed] == sorted((line["last_used"] for line in listed), reverse=True)
    assert listed == mine
    assert one["id"] == "conv_2" and one["calls"] == len(rows)
    assert (one["first_used"], one["last_used"]) == (rows[0].opened_at, rows[-1].opened_at)
    assert one["input"] == sum(each.input for each in rows)
    assert one["compactions"] == len({each.compaction_id for each in rows if each.compaction_id})
    assert one["keys"] == sorted({each.key for each in rows})
    assert missing.status_code == 404
