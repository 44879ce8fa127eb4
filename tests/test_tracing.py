"""Spans as a collector receives them: what they say, what they never say, and how calls of a request hang together."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from proxy import __version__
from proxy.configfile.fields import Secret
from proxy.core.usage import UsageRow
from proxy.tracing import Spans, attributes, unfit
from tests.fakes import Script, ScriptedUpstream, SeenRequest, chat_reply, usage
from tests.scenarios.gate import gate, user

ROW = UsageRow(
    id="use_1",
    request="req_canary",
    tenant="tenant_canary",
    key="key_canary",
    end_user="user_canary",
    conversation="conv_1",
    upstream="main",
    asked_model="asked_canary",
    model="some-model",
    stream=True,
    status="ok",
    http_status=200,
    finish="stop",
    opened_at=1_700_000_000.5,
    first_token=0.25,
    duration=2.0,
    input=900,
    output=50,
    cached=300,
)


class Collector:
    """Keeps what is sent to it."""

    def __init__(self) -> None:
        self.requests: list[SeenRequest] = []

    async def __call__(self, request: SeenRequest, reply: Script) -> None:
        self.requests.append(request)
        await reply.json(200, b"", {"content-type": "application/x-protobuf"})

    @property
    def spans(self) -> list[Any]:
        found = [ExportTraceServiceRequest.FromString(request.body) for request in self.requests]
        return [
            span for each in found for of in each.resource_spans for scope in of.scope_spans for span in scope.spans
        ]


def told(span: Any) -> dict[str, Any]:
    """The attributes of a span."""

    def value(of: Any) -> Any:
        kind = of.WhichOneof("value")
        return [value(each) for each in of.array_value.values] if kind == "array_value" else getattr(of, kind)

    return {each.key: value(each.value) for each in span.attributes}


async def sent(*rows: UsageRow, **headers: str) -> Collector:
    collector = Collector()
    async with ScriptedUpstream(collector) as up:
        spans = Spans(f"{up.url}/traces", {name: Secret(value) for name, value in headers.items()})
        for row in rows:
            spans.row(row)
        await asyncio.to_thread(spans.close)
    return collector


async def test_a_call_becomes_a_span_with_the_conventions_names() -> None:
    collector = await sent(ROW, Authorization="Bearer collector")
    (span,) = collector.spans
    assert (span.name, span.kind, span.status.code) == ("chat some-model", 3, 0)  # client; unset
    assert span.start_time_unix_nano == 1_700_000_000_500_000_000
    assert span.end_time_unix_nano - span.start_time_unix_nano == 2_000_000_000
    said = told(span)
    assert said["gen_ai.operation.name"] == "chat" and said["gen_ai.provider.name"] == "main"
    assert said["gen_ai.usage.input_tokens"] == 900 and said["gen_ai.usage.cache_read.input_tokens"] == 300
    assert said["gen_ai.response.finish_reasons"] == ["stop"]
    assert said["gen_ai.response.time_to_first_chunk"] == 0.25
    assert said["gen_ai.conversation.compacted"] is False
    assert collector.requests[0].headers["authorization"] == "Bearer collector"
    resource = ExportTraceServiceRequest.FromString(collector.requests[0].body).resource_spans[0].resource
    assert told(resource)["service.version"] == __version__


async def test_a_span_names_no_caller_and_nothing_that_was_asked() -> None:
    collector = await sent(ROW)
    assert b"canary" not in collector.requests[0].body


async def test_the_calls_of_a_request_are_one_trace_and_know_what_they_repeat() -> None:
    again = msgspec.structs.replace(ROW, id="use_2", parent="use_1", purpose="retry")
    other = msgspec.structs.replace(ROW, id="use_3", request="req_2")
    first, second, third = (await sent(ROW, again, other)).spans
    assert first.trace_id == second.trace_id != third.trace_id
    assert second.parent_span_id == first.span_id and first.parent_span_id == b""
    assert len({first.span_id, second.span_id, third.span_id}) == 3


async def test_a_failed_call_is_an_error_with_its_code() -> None:
    failed = msgspec.structs.replace(ROW, status="failed", error="upstream_timeout", finish=None, http_status=None)
    (span,) = (await sent(failed)).spans
    assert span.status.code == 2
    assert told(span)["error.type"] == "upstream_timeout"
    assert "http.response.status_code" not in told(span)


def test_embeddings_are_an_operation_of_their_own_and_have_no_first_chunk() -> None:
    said = attributes(msgspec.structs.replace(ROW, purpose="embeddings", stream=False))
    assert said["gen_ai.operation.name"] == "embeddings"
    assert "gen_ai.response.time_to_first_chunk" not in said


@pytest.mark.parametrize("missing", ["opentelemetry", "opentelemetry.sdk", "opentelemetry.exporter"])
def test_without_the_libraries_a_gateway_that_should_trace_does_not_start(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    assert unfit(None) is None and unfit("http://127.0.0.1:4318/v1/traces") is None
    monkeypatch.setattr("proxy.tracing.find_spec", lambda name: None if name == missing else object())
    assert unfit(None) is None
    assert "weirgate[otel]" in (unfit("http://127.0.0.1:4318/v1/traces") or "")


async def test_a_gateway_sends_the_spans_of_its_calls_before_it_ends() -> None:
    async def answering(_: SeenRequest, reply: Script) -> None:
        await reply.json(200, chat_reply("Yes.", usage=usage(20, 2)))

    collector = Collector()
    async with ScriptedUpstream(answering) as up, ScriptedUpstream(collector) as traces:
        async with gate(up.url, otel__endpoint=f"{traces.url}/traces") as weir:
            answer = await weir.ask([user("Is the canary open?")], user="canary")
            assert answer.status == 200
        (span,) = collector.spans
    assert told(span)["gen_ai.usage.input_tokens"] == 20
    assert b"canary" not in collector.requests[0].body
