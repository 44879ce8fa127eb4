"""GET /v1/weirgate/usage: what was spent, in rows or in sums, as JSON, CSV or FOCUS.

With a client key it shows that key's tenant alone; with the admin secret all, or one tenant's. Rows are read and sent a
page at a time: an export of any length takes the memory of a page, and calls are served in between.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Final
from urllib.parse import parse_qs

import msgspec

from proxy.core.errors import Malformed
from proxy.core.usage import UsageRow
from proxy.dialects.strict import unknown_parameter
from proxy.server.endpoints import Scope, send_json
from proxy.server.exports import FORMATS, Export, export
from proxy.server.operated import Operated
from proxy.server.stream import Answering, Receive
from proxy.store import UsageQuery
from proxy.store.reports import FILTERS, grouped

_ASKABLE: Final = ("by", "since", "until", "limit", "tenant", *FILTERS, "format")
_ROWS: Final = 1000
_MOST_ROWS: Final = 10_000_000
_PAGE: Final = 1000


class Usage(Operated):
    """Rows, newest first, or sums by columns. Times are unix seconds."""

    route = "/v1/weirgate/usage"

    async def work(self, scope: Scope, receive: Receive, answering: Answering) -> int:
        asked = asked_of(scope["query_string"])
        query = query_of(asked, self.tenant(scope["headers"]))
        form = asked.get("format", "json")
        if form not in FORMATS:
            raise Malformed(f"format is one of {', '.join(FORMATS)}.", code="out_of_range", param="format")
        if query.by is None:
            await answering.pour(export(form).media, self._pieces(query, export(form)))
            return 200
        if form != "json":
            raise Malformed("Sums are told as JSON only.", code="out_of_range", param="format")
        found = await self.admin.store.usage(query)
        await send_json(answering, {"object": "list", "by": query.by, "data": list(found)})
        return 200

    async def _pieces(self, query: UsageQuery, form: Export) -> AsyncIterator[bytes]:
        left, first = query.limit, True
        before: tuple[float, str] | None = None
        piece = form.head
        while left > 0:
            page = msgspec.structs.replace(query, limit=min(left, _PAGE), before=before)
            rows = [row for row in await self.admin.store.usage(page) if isinstance(row, UsageRow)]
            yield piece + form.rows(rows, first)
            piece = b""
            if len(rows) < page.limit:
                break
            left, first, before = left - len(rows), False, (rows[-1].opened_at, rows[-1].id)
        yield piece + form.tail


def asked_of(text: bytes, askable: tuple[str, ...] = _ASKABLE) -> dict[str, str]:
    """What a query names, each once. Raises Malformed for what cannot be asked for."""
    asked = {name: values[-1] for name, values in parse_qs(text.decode("latin-1"), keep_blank_values=True).items()}
    unknown = next((name for name in asked if name not in askable), None)
    if unknown is not None:
        # Ignored, a misspelt "since" would be answered with the sums of all time.
        raise unknown_parameter(unknown, f"Only {', '.join(askable)} can be asked for.")
    return asked


def query_of(asked: Mapping[str, str], tenant: str | None) -> UsageQuery:
    """What is asked for, of the rows of `tenant` (None: of all). Raises Malformed."""
    by = asked.get("by")
    if by is not None:
        grouped(by)
    limit = _number(asked, "limit")
    if limit is not None and (limit != int(limit) or not 1 <= limit <= _MOST_ROWS):
        raise Malformed(f"limit is a whole number from 1 to {_MOST_ROWS}.", code="out_of_range", param="limit")
    since, until = _number(asked, "since"), _number(asked, "until")
    # A client sees its own tenant, whatever it asks for.
    whose = asked.get("tenant") if tenant is None else tenant
    query = UsageQuery(tenant=whose, since=since, until=until, by=by, limit=int(limit or _ROWS))
    return msgspec.structs.replace(query, **{name: asked[name] for name in FILTERS if name in asked})


def _number(asked: Mapping[str, str], name: str) -> float | None:
    value = asked.get(name)
    if value is None:
        return None
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e12:
        raise Malformed(f"{name} is a number, not negative.", code="out_of_range", param=name)
    return number
