"""`weirgate usage`: what was spent, from the running server or, where none runs, from its database.

Belongs here: asking, adding up and laying out. Never: a price or a token count of its own. Costs are kept in whole
nano-dollars and shown in dollars; a sum is made of the whole numbers.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import msgspec

from proxy.commands.outcome import DONE, WRONG, NotDone, say
from proxy.commands.table import Column, number, show, write_csv
from proxy.commands.where import Where, configuration, find, opened, running
from proxy.core.errors import ClientError
from proxy.core.usage import UsageRow
from proxy.server.exports import dollars as exact
from proxy.server.exports import export
from proxy.store import UsageQuery, UsageSum
from proxy.store.reports import FILTERS, grouped

_UNITS: Final[Mapping[str, int]] = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_AGO: Final = re.compile(r"(\d{1,6})([smhdw])")
_MOST: Final = 100_000


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line asks for. `since`, `until` and `where` (NAME=VALUE) as typed; `limit` None is the
    default of the format."""

    by: str | None = None
    since: str | None = None
    until: str | None = None
    limit: int | None = None
    format: str = "table"
    where: tuple[str, ...] = ()


def run(asked: Asked, url: str | None, config: Path | None, environ: Mapping[str, str]) -> int:
    """Print what was asked for. Raises NotDone, ConfigError, WeirgateError."""
    now = time.time()
    if asked.by is not None:
        try:
            grouped(asked.by)
        except ClientError as error:
            raise NotDone(error.message, WRONG) from None
        if asked.format == "focus":
            raise NotDone("FOCUS tells single calls: leave out --by", WRONG)
    people = asked.format == "table"
    query = UsageQuery(
        by=asked.by,
        since=moment(asked.since, now),
        until=moment(asked.until, now),
        limit=asked.limit or (50 if people and asked.by is None else _MOST),
    )
    query = msgspec.structs.replace(query, **_wanted(asked.where))
    place = find(configuration(config), url, environ)
    rows = _asked(place, query, named=url is not None)
    if query.by is None:
        _show_rows(msgspec.convert(rows, list[UsageRow]), query, asked.format)
    else:
        _show_sums(msgspec.convert(rows, list[UsageSum]), query.by, asked.format)
    return DONE


def _wanted(where: tuple[str, ...]) -> dict[str, str]:
    """The values that rows must have. Raises NotDone."""
    wanted = {}
    for text in where:
        name, _, value = text.partition("=")
        if name not in ("tenant", *FILTERS) or not value:
            raise NotDone(f"'{text[:60]}' asks for nothing: NAME=VALUE, with tenant, {', '.join(FILTERS)}", WRONG)
        wanted[name] = value
    return wanted


def _asked(place: Where, query: UsageQuery, *, named: bool) -> list[Any]:
    server = running(place, named=named)
    if server is not None:
        say(f"from the server at {server.root}")
        said = {name: getattr(query, name) for name in ("by", "since", "until", "limit", "tenant", *FILTERS)}
        answer = server.get("usage", **said)
        return list(answer.get("data", ()))
    found = asyncio.run(_read(place, query))
    say(f"no server answers at {place.server}; from {place.database}")
    return found


async def _read(place: Where, query: UsageQuery) -> list[Any]:
    async with opened(place) as store:
        return list(msgspec.to_builtins(await store.usage(query)))


def moment(text: str | None, now: float) -> float | None:
    """Unix seconds of `1h`, `7d`, `2026-11-01`, `2026-11-01T12:30` (UTC unless it says otherwise) or a number.

    Raises NotDone.
    """
    if text is None:
        return None
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return max(0.0, now - int(ago[1]) * _UNITS[ago[2]])
    try:
        seconds = float(text) if text.replace(".", "", 1).isdigit() else _dated(text)
    except (ValueError, OverflowError):
        seconds = -1.0
    if not 0 <= seconds < 1e12:
        raise NotDone(f"'{text[:40]}' is no time: write 1h, 7d, 2026-11-01, 2026-11-01T12:30 or unix seconds", WRONG)
    return seconds


def _dated(text: str) -> float:
    found = datetime.fromisoformat(text)
    return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()


# -- money -----------------------------------------------------------------------------------------------------------


def dollars(nano: int, digits: int) -> str:
    return f"${Decimal(nano).scaleb(-9):,.{digits}f}"


def digits_for(largest: int) -> int:
    """Digits behind the point: cents would hide what a small model costs."""
    return 2 if largest >= 100 * 10**9 else 4 if largest >= 10**9 else 6


# -- sums ------------------------------------------------------------------------------------------------------------

_COUNTS: Final = ("estimated", "unpriced", "failed", "compactions", "recovered")


def _show_sums(rows: Sequence[UsageSum], by: str, form: str) -> None:
    total = _total(rows)
    if form == "json":
        _json(by, [_told(row) for row in rows], _told(total))
    elif form == "csv":
        left_out = ("key", "cost", "group", "first", "last", *by.split(","))
        names = [name for name in UsageSum.__struct_fields__ if name not in left_out]
        write_csv(
            [*by.split(","), *names, "cost_usd"],
            [[*(row.group or (row.key,)), *_values(row, names), exact(row.cost)] for row in rows],
        )
    else:
        _sum_table(rows, by, total)


def _total(rows: Sequence[UsageSum]) -> UsageSum:
    figures = [name for name in UsageSum.__struct_fields__ if name not in ("key", "tenant", "group", "first", "last")]
    sums: dict[str, Any] = {name: sum(getattr(row, name) for row in rows) for name in figures}
    return UsageSum(key="total", **sums)


def _sum_table(rows: Sequence[UsageSum], by: str, total: UsageSum) -> None:
    if not rows:
        say("no calls in this time")
        return
    tenants = "tenant" not in by.split(",") and any(row.tenant is not None for row in rows)
    digits = digits_for(total.cost)
    columns = [Column(name=by, right=False)]
    columns += [Column(name="tenant", right=False)] if tenants else []
    columns += [Column(name=name) for name in ("calls", "input", "cached", "output", "reasoning", "cost", *_COUNTS)]

    def cells(row: UsageSum) -> list[str]:
        counts = [number(getattr(row, name)) for name in ("calls", "input", "cached", "output", "reasoning")]
        named = [row.key or "(none)", *([row.tenant or ""] if tenants else [])]
        return [*named, *counts, dollars(row.cost, digits), *(number(getattr(row, name)) for name in _COUNTS)]

    show(columns, map(cells, rows), cells(total))
    if total.unpriced:
        say(f"{number(total.unpriced)} of {number(total.calls)} calls have no known price; they cost more than this")


# -- single rows -----------------------------------------------------------------------------------------------------


def _show_rows(rows: Sequence[UsageRow], query: UsageQuery, form: str) -> None:
    total = {name: sum(getattr(row, name) for row in rows) for name in ("input", "output", "cached", "reasoning")}
    total |= {"calls": len(rows), "cost": sum(row.cost or 0 for row in rows)}
    if form == "json":
        _json(None, [_told(row) for row in rows], {**total, "cost_usd": exact(total["cost"])})
    elif form != "table":
        made = export(form)
        sys.stdout.write(made.head.decode())
        sys.stdout.writelines(made.rows((row,), True).decode() for row in rows)
    else:
        _row_table(rows, total)
    if len(rows) == query.limit:
        # Of an export above all: a bill with the oldest calls missing looks like a whole one.
        more = "--limit shows more" if query.limit < _MOST else "--until shows older ones"
        say(f"the newest {number(query.limit)} calls; {more}, --by model adds them up")


def _row_table(rows: Sequence[UsageRow], total: Mapping[str, int]) -> None:
    if not rows:
        say("no calls in this time")
        return
    digits = digits_for(total["cost"])
    columns = [Column(name=name, right=False) for name in ("time (UTC)", "model", "purpose", "status")]
    columns += [Column(name=name) for name in ("input", "cached", "output", "cost", "window", "compaction")]
    last = ["total", f"{number(total['calls'])} calls", "", ""]
    last += [number(total[name]) for name in ("input", "cached", "output")]
    show(columns, (_cells(row, digits) for row in rows), [*last, dollars(total["cost"], digits), "", ""])
    if any(row.estimated for row in rows):
        say("~ our estimate: the provider reported no usage")


def _cells(row: UsageRow, digits: int) -> list[str]:
    mark = "~" if row.estimated else ""
    fill = f"{row.projected / row.window:.0%}" if row.projected and row.window else ""
    return [
        datetime.fromtimestamp(row.opened_at, UTC).strftime("%Y-%m-%d %H:%M:%S"),
        row.model,
        row.purpose,
        row.status if row.error is None else f"{row.status}: {row.error}",
        mark + number(row.input),
        number(row.cached),
        mark + number(row.output),
        "unpriced" if row.cost is None else dollars(row.cost, digits),
        fill,
        _compaction(row),
    ]


def _compaction(row: UsageRow) -> str:
    """What was done, who wrote the notes, and why no more is done."""
    said = (
        [] if row.compaction == "none" else [f"{row.compaction} by {row.notes_by}" if row.notes_by else row.compaction]
    )
    return "; ".join([*said, f"paused: {row.paused}"] if row.paused else said)


def _values(row: UsageSum, names: Sequence[str]) -> list[object]:
    return [getattr(row, name) for name in names]


def _told(row: UsageRow | UsageSum) -> dict[str, object]:
    told: dict[str, object] = msgspec.to_builtins(row)
    return {**told, "cost_usd": exact(row.cost)}


def _json(by: str | None, data: Sequence[Mapping[str, object]], total: Mapping[str, object]) -> None:
    whole = msgspec.json.encode({"object": "list", "by": by, "data": data, "total": total})
    sys.stdout.write(msgspec.json.format(whole, indent=2).decode() + "\n")
