"""One call without a conversation (embeddings): forwarded as it is, and accounted for like any other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from proxy.core.errors import InvalidReply, StoreUnavailable, WeirgateError
from proxy.core.usage import Status, Usage, UsageRow, closed
from proxy.dialects.chat.reply import is_error
from proxy.gateway import Gateway
from proxy.refusals import refusal
from proxy.snapshots import Destination
from proxy.upstream import Request

ReadUsage = Callable[[bytes], Usage | None]


async def pass_on(
    gateway: Gateway, request: Request, destination: Destination, row: UsageRow, read: ReadUsage
) -> bytes:
    """The body of the provider's answer, once `row` is durable. Raises a WeirgateError."""
    target = destination.target
    lost = gateway.open_row(row, target)
    if lost is not None:
        gateway.do_without(lost)
    began = gateway.clock()
    status: Status = "failed"
    usage: Usage | None = None
    code: str | None = None
    http: int | None = None
    try:
        response = await target.upstream.send(request)
        http = response.status
        if target.health is not None and target.health.doubted:
            target.health.heard(began, http)
        try:
            body = await response.read()
        finally:
            await response.close()
        if http != 200:
            raise refusal(http, body, own_key=target.own_key, retry_after=response.headers.get("retry-after"))
        if body[:64].lstrip()[:1] != b"{" or is_error(body):
            raise InvalidReply("The upstream answered with something else than a result.", upstream_status=http)
        status, usage = "ok", read(body)
    except WeirgateError as error:
        code = error.code
        raise
    except asyncio.CancelledError:
        status = "cancelled"
        raise
    finally:
        ended = closed(
            row,
            status,
            usage or Usage(estimated=True),
            target.card.tariff,
            duration=gateway.clock() - began,
            error=code,
            http_status=http,
        )
        gateway.metrics.row(ended, destination.pattern)
        if target.health is not None:
            target.health.ended(began, ended)
        closing = gateway.spawn(gateway.closing.close_row(ended))
    try:
        await closing
    except StoreUnavailable as error:
        if lost is None:
            gateway.do_without(error)
    return body
