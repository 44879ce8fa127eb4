"""Usage rows in the forms that leave the house: JSON, CSV, and FOCUS, which cost tools read.

Belongs here: what stands in which column, a row at a time, so that no export sits in memory. Never: asking for rows.

FOCUS 1.2 (focus.finops.org): its 21 mandatory columns and those optional ones that say something here; what it has no
column for goes by names that begin with x_, as it wants. A row is one upstream call: the tenant is the billing account,
the key the sub account, the model the SKU. All four costs are the same number: the tokens at the listed prices.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

import msgspec

from proxy.core.usage import UsageRow

FORMATS: Final = ("json", "csv", "focus")

_FIELDS: Final = tuple(name for name in UsageRow.__struct_fields__ if name != "cost")
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
_CATEGORY: Final = "AI and Machine Learning"


class Export(msgspec.Struct, frozen=True, kw_only=True):
    """A form: its media type, what stands before and behind the rows, and the text of some (`first`: no row is before
    them)."""

    media: bytes
    head: bytes
    rows: Callable[[Sequence[UsageRow], bool], bytes]
    tail: bytes = b""


def export(form: str) -> Export:
    """The form of this name, one of FORMATS."""
    if form == "json":
        head = b'{"object":"list","by":null,"data":['
        return Export(media=b"application/json", head=head, rows=_json, tail=b"]}")
    names, cells = (FOCUS, focus) if form == "focus" else ((*_FIELDS, "cost_usd"), _plain)

    def rows(some: Sequence[UsageRow], first: bool) -> bytes:
        return lines(cells(row) for row in some)

    return Export(media=b"text/csv; charset=utf-8", head=lines([names]), rows=rows)


def lines(rows: Iterable[Iterable[object]]) -> bytes:
    """CSV (RFC 4180, but lines end in LF); None is an empty cell."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([cell(value) for value in row] for row in rows)
    return text.getvalue().encode("utf-8", "replace")


def cell(value: object) -> object:
    """A text that a spreadsheet would run as a formula is kept a text (the habit of OWASP's CSV injection page)."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"'{value}" if isinstance(value, str) and value[:1] in _FORMULA else value


def dollars(nano: int | None) -> str | None:
    """Exactly, never in powers of ten."""
    return None if nano is None else f"{Decimal(nano).scaleb(-9):f}"


def _json(rows: Sequence[UsageRow], first: bool) -> bytes:
    told = b",".join(map(msgspec.json.encode, rows))
    return told if first or not rows else b"," + told


def _plain(row: UsageRow) -> list[object]:
    return [*(getattr(row, name) for name in _FIELDS), dollars(row.cost)]


# -- FOCUS -----------------------------------------------------------------------------------------------------------

_COLUMNS: Final[Mapping[str, Callable[[UsageRow], object]]] = {
    "BilledCost": lambda row: dollars(row.cost or 0),
    "BillingAccountId": lambda row: row.tenant,
    "BillingAccountName": lambda row: row.tenant,
    "BillingAccountType": lambda row: "Tenant",
    "BillingCurrency": lambda row: "USD",
    "BillingPeriodEnd": lambda row: _month(row.opened_at, 1),
    "BillingPeriodStart": lambda row: _month(row.opened_at, 0),
    "ChargeCategory": lambda row: "Usage",
    "ChargeClass": lambda row: None,
    "ChargeDescription": lambda row: f"{row.purpose} call of {row.model} at {row.upstream}",
    "ChargeFrequency": lambda row: "Usage-Based",
    "ChargePeriodEnd": lambda row: _second(math.floor(row.opened_at + (row.duration or 0.0)) + 1),
    "ChargePeriodStart": lambda row: _second(row.opened_at),
    "ConsumedQuantity": lambda row: row.input + row.output,
    "ConsumedUnit": lambda row: "Tokens",
    "ContractedCost": lambda row: dollars(row.cost or 0),
    "EffectiveCost": lambda row: dollars(row.cost or 0),
    "InvoiceIssuerName": lambda row: row.upstream,
    "ListCost": lambda row: dollars(row.cost or 0),
    "PricingCategory": lambda row: "Standard",
    "PricingQuantity": lambda row: row.input + row.output,
    "PricingUnit": lambda row: "Tokens",
    "ProviderName": lambda row: row.upstream,
    "PublisherName": lambda row: row.upstream,
    "ResourceId": lambda row: row.id,
    "ResourceName": lambda row: row.model,
    "ResourceType": lambda row: "Model call",
    "ServiceCategory": lambda row: _CATEGORY,
    "ServiceName": lambda row: row.upstream,
    "ServiceSubcategory": lambda row: "Generative AI",
    "SkuId": lambda row: row.model,
    "SubAccountId": lambda row: row.key,
    "SubAccountName": lambda row: row.key,
    "SubAccountType": lambda row: "Key",
    "Tags": lambda row: _tags(row),
    "x_CacheWriteTokens": lambda row: row.cache_write,
    "x_CachedInputTokens": lambda row: row.cached,
    "x_Estimated": lambda row: row.estimated,
    "x_InputTokens": lambda row: row.input,
    "x_OutputTokens": lambda row: row.output,
    "x_PriceSource": lambda row: row.price_source,
    "x_PriceVersion": lambda row: row.price_version,
    "x_ReasoningTokens": lambda row: row.reasoning,
    "x_Status": lambda row: row.status,
    "x_Unpriced": lambda row: row.unpriced,
}
FOCUS: Final = tuple(_COLUMNS)


def focus(row: UsageRow) -> list[object]:
    """The cells of a row, in the order of FOCUS."""
    return [value(row) for value in _COLUMNS.values()]


def _tags(row: UsageRow) -> str:
    named = {
        "asked_model": row.asked_model,
        "component": row.component,
        "conversation": row.conversation,
        "end_user": row.end_user,
        "policy": row.policy,
        "purpose": row.purpose,
        "request": row.request,
    }
    return msgspec.json.encode({name: value for name, value in named.items() if value}).decode()


def _second(at: float) -> str:
    return datetime.fromtimestamp(math.floor(at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _month(at: float, later: int) -> str:
    """The first moment of its month, or of one that is `later`."""
    day = datetime.fromtimestamp(at, UTC)
    months = day.year * 12 + day.month - 1 + later
    return datetime(months // 12, months % 12 + 1, 1, tzinfo=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
