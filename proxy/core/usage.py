"""The record of one upstream call: what it was for, what it took, what it cost.

A row is opened before the call and closed exactly once. Money is whole nano-dollars, time is seconds.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from proxy.core.policy import Tariff

Purpose = Literal["chat", "retry", "recovery", "compaction", "tool_round", "embeddings"]
Status = Literal["open", "ok", "partial", "cancelled", "failed", "unknown"]


class Usage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Tokens of one upstream call. `cached`, `cache_write` are inside `input`, `reasoning` is inside `output`."""

    input: int = 0
    output: int = 0
    cached: int = 0
    cache_write: int = 0
    reasoning: int = 0
    estimated: bool = False


class UsageRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One upstream call.

    `request` is the client call it served, `parent` the row it repeats or serves (None for the first),
    `opened_at` unix seconds, `first_token` and `duration` seconds since then. `projected` is the size we expected
    the prompt to have, `window` the limit it was held against. `cost` is None where the model has no price.
    `notes_by` is who wrote the notes in the prompt (builtin, or a model's name; None: there are none), `paused` why
    compaction stands still.
    """

    id: str
    request: str
    parent: str | None = None
    purpose: Purpose = "chat"
    tenant: str
    key: str
    end_user: str | None = None
    conversation: str | None = None
    component: str = "main"
    upstream: str
    asked_model: str
    model: str
    stream: bool = False
    status: Status = "open"
    http_status: int | None = None
    error: str | None = None
    finish: str | None = None
    opened_at: float
    first_token: float | None = None
    duration: float | None = None
    input: int = 0
    output: int = 0
    cached: int = 0
    cache_write: int = 0
    reasoning: int = 0
    estimated: bool = False
    cost: int | None = None
    price_source: str | None = None
    price_version: str | None = None
    unpriced: bool = False
    projected: int | None = None
    window: int | None = None
    compaction: str = "none"
    compaction_id: str | None = None
    notes_by: str | None = None
    paused: str | None = None
    repaired: int = 0
    policy: str = ""
    policy_hash: str = ""
    mode: str = "enforce"


def cost(usage: Usage, tariff: Tariff | None) -> int | None:
    """Nano-dollars of `usage` at `tariff`; None without a tariff."""
    if tariff is None:
        return None
    cached = min(usage.cached, usage.input)
    written = min(usage.cache_write, usage.input - cached)
    plain = usage.input - cached - written
    at_cached = tariff.input if tariff.cached is None else tariff.cached
    at_write = tariff.input if tariff.cache_write is None else tariff.cache_write
    return plain * tariff.input + cached * at_cached + written * at_write + usage.output * tariff.output


def closed(
    row: UsageRow,
    status: Status,
    usage: Usage,
    tariff: Tariff | None,
    *,
    duration: float,
    first_token: float | None = None,
    http_status: int | None = None,
    error: str | None = None,
    finish: str | None = None,
) -> UsageRow:
    """`row` with its end: how it went, what was used and what that costs."""
    # Not all at once: with more than fifteen keywords Python makes a dictionary of them, at four times the price.
    ended = msgspec.structs.replace(
        row,
        status=status,
        duration=duration,
        first_token=first_token,
        http_status=http_status,
        error=error,
        finish=finish,
        input=usage.input,
        output=usage.output,
        cached=usage.cached,
        cache_write=usage.cache_write,
        reasoning=usage.reasoning,
        estimated=usage.estimated,
        unpriced=tariff is None,
    )
    if tariff is None:
        return ended
    priced = cost(usage, tariff)
    return msgspec.structs.replace(ended, cost=priced, price_source=tariff.source, price_version=tariff.version)
