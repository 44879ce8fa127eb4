"""Spans of upstream calls, sent to an OpenTelemetry collector. The one file that imports opentelemetry, and an extra.

A span is made of a closed usage row, after the call: nothing is added to the way of a request, and what a row does not
hold no span can tell (no content, no key, no tenant, no end user). Names follow the GenAI conventions as of November
2026, which are not stable yet. Ids are digests of ours, so that all calls of one request make one trace, whichever
replica served them.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from proxy import __version__
from proxy.configfile.fields import Secret
from proxy.core.usage import UsageRow

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

_BILLION: Final = 1_000_000_000
_NEEDED: Final = ("opentelemetry.sdk", "opentelemetry.exporter")


def unfit(endpoint: str | None) -> str | None:
    """Why spans cannot be sent to `endpoint`; None where they can, or nobody wants them."""
    if endpoint is None or all(map(find_spec, ("opentelemetry", *_NEEDED))):
        return None
    return "otel.endpoint is set, and weirgate[otel] is not installed"


class Spans:
    """Sends spans from a thread of its own; where the collector is slow or away they are dropped, and calls go on."""

    def __init__(self, endpoint: str, headers: Mapping[str, Secret]) -> None:
        """`endpoint` is the collector's address for traces (OTLP over HTTP)."""
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        told = {name: value.reveal() for name, value in headers.items()}
        self._processor = BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, headers=told))
        self._resource = Resource({"service.name": "weirgate", "service.version": __version__})

    def row(self, row: UsageRow) -> None:
        """Send the span of a closed row, some time."""
        self._processor.on_end(self._span(row))

    def close(self) -> None:
        """Send what waits, within the exporter's own bounds."""
        self._processor.shutdown()  # type: ignore[no-untyped-call]

    def _span(self, row: UsageRow) -> ReadableSpan:
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

        def context(id: str) -> SpanContext:
            flags = TraceFlags(TraceFlags.SAMPLED)
            return SpanContext(_digest(row.request, 16), _digest(id, 8), is_remote=False, trace_flags=flags)

        began = round(row.opened_at * _BILLION)
        failed = row.status in ("failed", "partial")
        return ReadableSpan(
            name=f"{_operation(row)} {row.model}",
            context=context(row.id),
            parent=None if row.parent is None else context(row.parent),
            kind=SpanKind.CLIENT,
            resource=self._resource,
            attributes=attributes(row),
            status=Status(StatusCode.ERROR if failed else StatusCode.UNSET),
            start_time=began,
            end_time=began + round((row.duration or 0.0) * _BILLION),
        )


def attributes(row: UsageRow) -> dict[str, str | int | float | bool | tuple[str, ...]]:
    """What a span says of a call; what the row does not know is left out."""
    told: dict[str, str | int | float | bool | tuple[str, ...] | None] = {
        "gen_ai.operation.name": _operation(row),
        "gen_ai.provider.name": row.upstream,
        "gen_ai.request.model": row.model,
        "gen_ai.request.stream": row.stream,
        "gen_ai.conversation.id": row.conversation,
        "gen_ai.conversation.compacted": row.compaction_id is not None,
        "gen_ai.response.finish_reasons": None if row.finish is None else (row.finish,),
        "gen_ai.response.time_to_first_chunk": row.first_token if row.stream else None,
        "gen_ai.usage.input_tokens": row.input,
        "gen_ai.usage.output_tokens": row.output,
        "gen_ai.usage.cache_read.input_tokens": row.cached,
        "gen_ai.usage.cache_creation.input_tokens": row.cache_write,
        "gen_ai.usage.reasoning.output_tokens": row.reasoning,
        "http.response.status_code": row.http_status,
        "error.type": row.error,
        "weirgate.purpose": row.purpose,
        "weirgate.status": row.status,
        "weirgate.policy": row.policy or None,
        "weirgate.window": row.window,
        "weirgate.compaction": row.compaction,
        "weirgate.usage.estimated": row.estimated,
    }
    return {name: value for name, value in told.items() if value is not None}


def _operation(row: UsageRow) -> str:
    return "embeddings" if row.purpose == "embeddings" else "chat"


def _digest(id: str, size: int) -> int:
    """An id of `size` bytes; never 0, which would be none."""
    return int.from_bytes(blake2b(id.encode(), digest_size=size).digest()) or 1
