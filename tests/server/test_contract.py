"""The error contract as a table over the routes: what a client does wrong is told in one form, in under a second, and
never reaches the upstream. Source: research/reliability.md 4.3, DESIGN 13.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import httpx
import pytest
import pytest_asyncio

from tests.fakes import Script, SeenRequest, chat_reply, usage
from tests.server.wired import ADMIN, HELLO, Wired, bearer, wired

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT = "/v1/chat/completions"
EMBED = "/v1/embeddings"
KEY = "client-secret-of-this-test"
IRE = "invalid_request_error"


class Case(NamedTuple):
    name: str
    status: int
    code: str
    param: str | None = None
    body: Any = HELLO
    path: str = CHAT
    method: str = "POST"
    headers: dict[str, str] = {}
    type: str = IRE


def said(**more: Any) -> dict[str, Any]:
    return {**HELLO, **more}


def messages(*items: Any) -> dict[str, Any]:
    return said(messages=list(items))


def user(**more: Any) -> dict[str, Any]:
    return {"role": "user", "content": "hi", **more}


DEEP = b"[" * 70 + b"]" * 70
HEAD = b'{"model":"known","messages":[{"role":"user","content":"hi"}]'

CASES = [
    # -- not JSON ----------------------------------------------------------------------------------------------------
    Case("an empty body", 400, "invalid_json", body=b""),
    Case("not JSON", 400, "invalid_json", body=b"hello"),
    Case("a broken object", 400, "invalid_json", body=HEAD),
    Case("trailing bytes", 400, "invalid_json", body=HEAD + b"} x"),
    Case("two values", 400, "invalid_json", body=HEAD + b"}{}"),
    Case("an array", 400, "invalid_json", body=b"[1]"),
    Case("null", 400, "invalid_json", body=b"null"),
    Case("UTF-16", 400, "invalid_json", body=(HEAD + b"}").decode().encode("utf-16")),
    Case("UTF-32", 400, "invalid_json", body=(HEAD + b"}").decode().encode("utf-32")),
    Case("Latin-1", 400, "invalid_json", body=HEAD + b',"user":"caf\xe9"}'),
    Case("NaN", 400, "invalid_json", body=HEAD + b',"temperature":NaN}'),
    Case("Infinity", 400, "invalid_json", body=HEAD + b',"temperature":Infinity}'),
    Case("a member twice", 400, "invalid_json", body=HEAD + b',"model":"other"}'),
    Case("an escaped member twice", 400, "invalid_json", body=HEAD + b',"mod\\u0065l":"other"}'),
    Case(
        "a member of a message twice",
        400,
        "invalid_json",
        "messages[0]",
        b'{"model":"known","messages":[{"role":"user","role":"system","content":"hi"}]}',
    ),
    Case("too deep", 400, "invalid_json", "metadata", HEAD + b',"metadata":' + DEEP + b"}"),
    Case(
        "too deep inside a message",
        400,
        "invalid_json",
        "messages[0]",
        b'{"model":"known","messages":[{"role":"user","content":' + DEEP + b"}]}",
    ),
    # -- members -----------------------------------------------------------------------------------------------------
    Case("no model", 400, "missing_required_parameter", "model", {"messages": [user()]}),
    Case("an empty model", 400, "missing_required_parameter", "model", said(model="")),
    Case("a model that is a number", 400, "invalid_type", "model", said(model=7)),
    Case("no messages", 400, "missing_required_parameter", "messages", {"model": "known"}),
    Case("messages that are text", 400, "invalid_type", "messages", said(messages="hi")),
    Case("no message at all", 400, "invalid_messages", "messages", said(messages=[])),
    Case("a message that is text", 400, "invalid_type", "messages[0]", messages("hi")),
    Case("an unknown role", 400, "invalid_messages", "messages[1].role", messages(user(), user(role="narrator"))),
    Case("content that is a number", 400, "invalid_type", "messages[0]", messages(user(content=7))),
    Case(
        "a tool result of nothing",
        400,
        "missing_required_parameter",
        "messages[1].tool_call_id",
        messages(user(), {"role": "tool", "content": "x"}),
    ),
    Case("n of zero", 400, "out_of_range", "n", said(n=0)),
    Case("n of a hundred", 400, "out_of_range", "n", said(n=100)),
    Case("n that is half", 400, "invalid_type", "n", said(n=1.5)),
    Case("no output", 400, "out_of_range", "max_tokens", said(max_tokens=0)),
    Case("a huge integer", 400, "invalid_type", "max_tokens", HEAD + b',"max_tokens":' + b"9" * 5000 + b"}"),
    Case("stream that is text", 400, "invalid_type", "stream", said(stream="yes")),
    Case("stream options that are a list", 400, "invalid_type", "stream_options", said(stream_options=[1])),
    Case("too many tools", 400, "out_of_range", "tools", said(tools=[{"type": "function"}] * 129)),
    Case("a wrong mode", 400, "out_of_range", "x-weirgate-mode", headers={"x-weirgate-mode": "fast"}),
    # -- where and as whom -------------------------------------------------------------------------------------------
    Case("api_base", 400, "unknown_parameter", "api_base", said(api_base="http://127.0.0.1:1")),
    Case("base_url deep inside", 400, "unknown_parameter", "base_url", said(extra={"a": [{"base_url": "x"}]})),
    Case("headers", 400, "unknown_parameter", "headers", said(headers={"authorization": "x"})),
    Case("api_key escaped", 400, "unknown_parameter", "api_key", HEAD + b',"m":{"api\\u005fkey":"x"}}'),
    Case("callbacks", 400, "unknown_parameter", "callbacks", said(callbacks=["x"])),
    # -- media, size -------------------------------------------------------------------------------------------------
    Case("no content type", 415, "unsupported_media_type", headers={"content-type": ""}),
    Case("a form", 415, "unsupported_media_type", headers={"content-type": "application/x-www-form-urlencoded"}),
    Case("text", 415, "unsupported_media_type", headers={"content-type": "text/plain"}),
    Case("gzip", 415, "unsupported_media_type", headers={"content-encoding": "gzip"}),
    Case("a broken zstd frame", 400, "invalid_json", headers={"content-encoding": "zstd"}),
    Case("a body over the limit", 413, "request_too_large", body=HEAD + b',"user":"' + b"x" * 70_000 + b'"}'),
    # -- who ---------------------------------------------------------------------------------------------------------
    Case("no key", 401, "invalid_api_key", headers={"authorization": ""}),
    Case("another scheme", 401, "invalid_api_key", headers={"authorization": "Basic eDp5"}),
    Case("an unknown key", 401, "invalid_api_key", headers=bearer("wg-unknown")),
    Case("the admin secret", 401, "invalid_api_key", headers=bearer(ADMIN)),
    Case("no key for embeddings", 401, "invalid_api_key", path=EMBED, headers={"authorization": ""}),
    Case("no key for the list", 401, "invalid_api_key", path="/v1/models", method="GET", headers=bearer("x")),
    Case("a model the key lacks", 403, "forbidden", "model", said(model="costly"), type="permission_error"),
    Case("an unknown model", 404, "model_not_found", "model", said(model="nowhere")),
    # -- routes ------------------------------------------------------------------------------------------------------
    Case("GET on chat", 405, "method_not_allowed", method="GET"),
    Case("DELETE on models", 405, "method_not_allowed", path="/v1/models", method="DELETE"),
    Case("POST on healthz", 405, "method_not_allowed", path="/healthz"),
    Case("PUT on keys", 405, "method_not_allowed", path="/v1/weirgate/keys", method="PUT"),
    Case("an unknown route", 404, "not_found", path="/v1/nothing"),
    Case("a slash too many", 404, "not_found", path="/v1/chat/completions/"),
    Case("the root", 404, "not_found", path="/", method="GET"),
    # -- embeddings --------------------------------------------------------------------------------------------------
    Case("embeddings without input", 400, "missing_required_parameter", "input", {"model": "known"}, EMBED),
    Case("embeddings without model", 400, "missing_required_parameter", "model", {"input": "x"}, EMBED),
    Case("embeddings of an unknown model", 404, "model_not_found", "model", {"model": "no", "input": "x"}, EMBED),
    Case(
        "embeddings elsewhere",
        400,
        "unknown_parameter",
        "api_base",
        {"model": "known", "input": "x", "api_base": "y"},
        EMBED,
    ),
]


async def answer(request: SeenRequest, reply: Script) -> None:
    await reply.json(200, chat_reply("Hello.", usage=usage(5, 2)))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def weir() -> AsyncIterator[Wired]:
    async with wired(
        answer,
        models={"known": {"upstream": "main"}, "costly": {"upstream": "main"}},
        keys=[{"id": "k", "tenant": "t", "secret": KEY, "models": ["known", "no*"]}],
        admin={"secret": ADMIN},
        server__limits__body=65_536,
    ) as running:
        yield running


async def ask(weir: Wired, case: Case) -> httpx.Response:
    headers = {"content-type": "application/json", **bearer(KEY), **case.headers}
    body = case.body if isinstance(case.body, bytes) else json.dumps(case.body).encode()
    given = {name: value for name, value in headers.items() if value}
    return await weir.client.request(case.method, case.path, content=body, headers=given)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_what_a_client_does_wrong_is_told_in_one_form_and_costs_nothing(weir: Wired, case: Case) -> None:
    before = len(weir.up.ledger)
    began = time.monotonic()
    got = await ask(weir, case)
    took = time.monotonic() - began
    error = got.json()["error"]
    assert (got.status_code, error["type"], error["code"], error["param"]) == (
        case.status,
        case.type,
        case.code,
        case.param,
    )
    assert [*got.json()] == ["error"] and [*error] == ["message", "type", "param", "code"]
    assert isinstance(error["message"], str) and error["message"]
    assert got.headers["content-type"] == "application/json"
    assert got.headers["x-request-id"].startswith("req_")
    assert got.headers["x-should-retry"] == "false"
    assert ("allow" in got.headers) == (case.status == 405)
    assert took < 1, f"{took:.2f} s"
    assert len(weir.up.ledger) == before, "the upstream was called"


async def test_the_table_is_not_refused_for_another_reason(weir: Wired) -> None:
    got = await ask(weir, Case("nothing wrong", 200, ""))
    assert got.status_code == 200 and got.json()["choices"][0]["message"]["content"] == "Hello."


async def test_a_method_that_is_not_allowed_is_told_which_are(weir: Wired) -> None:
    for path, allowed in ((CHAT, "POST"), ("/v1/models", "GET"), ("/v1/weirgate/keys", "GET, POST")):
        got = await weir.client.patch(path, headers=bearer(KEY))
        assert (got.status_code, got.headers["allow"]) == (405, allowed)


async def test_a_request_id_is_echoed_if_it_is_a_plain_token_and_replaced_if_not(weir: Wired) -> None:
    for given, echoed in (("trace-1.a_B", True), ("http://127.0.0.1/x", False), ("x" * 65, False)):
        got = await ask(weir, Case("", 200, "", headers={"x-request-id": given}))
        assert (got.headers["x-request-id"] == given) is echoed
        assert len(got.headers.get_list("x-request-id")) == 1


async def test_a_lone_surrogate_is_forwarded_byte_for_byte(weir: Wired) -> None:
    body = b'{"model":"known","messages":[{"role":"user","content":"cut \\ud83d here"}],"user":"\\udc00"}'
    before = len(weir.up.ledger)
    got = await ask(weir, Case("", 200, "", body=body))
    assert got.status_code == 200
    assert weir.up.ledger[before].request.body == body


async def test_no_error_repeats_what_was_sent(weir: Wired) -> None:
    canary = "canary-7f3a"
    for body in (
        messages(user(role=canary)),
        messages(user(content=canary, role=7)),
        said(model=canary),
        said(n=canary),
        said(**{canary: {"api_key": canary}}),
        f'{{"{canary}'.encode(),
    ):
        got = await ask(weir, Case("", 0, "", body=body))
        assert got.status_code in (400, 404)
        assert canary not in got.text
