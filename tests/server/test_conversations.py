"""Conversations that the gateway keeps, through the whole application: whose they are, and what may be asked for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from proxy.app import Application
from proxy.server.fence import Fence
from proxy.server.lifecycle import Drain
from proxy.settings import load
from tests.fakes import BOUND, Script, SeenRequest, chat_reply, usage
from tests.server.wired import BUILT_IN, HELLO, Wired, bearer, chat, wired

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH = "/v1/conversations"
A, A2, B = "client-secret-of-tenant-a", "second-secret-of-tenant-a", "client-secret-of-tenant-b"
KEYS = [
    {"id": "k", "tenant": "a", "secret": A},
    {"id": "k2", "tenant": "a", "secret": A2},
    {"id": "k3", "tenant": "b", "secret": B},
]
CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at": 1}'}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "nothing"}


async def model(request: SeenRequest, reply: Script) -> None:
    """Answers with how many messages it was told."""
    await reply.json(200, chat_reply(f"I was told {len(request.messages)}.", usage=usage(10, 3)))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def weir() -> AsyncIterator[Wired]:
    async with wired(model, keys=KEYS, models={"known": {"upstream": "main"}}) as running:
        yield running


async def ask(
    weir: Wired, method: str, path: str = "", value: Any = None, secret: str | None = A, **query: str
) -> httpx.Response:
    body = b"" if value is None else value if isinstance(value, bytes) else json.dumps(value).encode()
    headers = {"content-type": "application/json", **(bearer(secret) if secret else {})}
    return await weir.client.request(method, PATH + path, params=query, content=body, headers=headers)


async def made(weir: Wired, value: Mapping[str, Any] | None = None, secret: str = A) -> str:
    answer = await ask(weir, "POST", "", value or {}, secret)
    assert answer.status_code == 200, answer.text
    id: str = answer.json()["id"]
    return id


async def say(weir: Wired, id: str, *texts: str, **more: Any) -> httpx.Response:
    messages = [{"role": "user", "content": text} for text in texts]
    body = {"model": "known", "messages": messages, "conversation": id, **more}
    return await weir.client.post("/v1/chat/completions", json=body, headers=bearer(A))


async def listed(weir: Wired, id: str, **query: str) -> list[dict[str, Any]]:
    answer = await ask(weir, "GET", f"/{id}/items", **({"order": "asc"} | query))
    assert answer.status_code == 200, answer.text
    data: list[dict[str, Any]] = answer.json()["data"]
    return data


def refusal(answer: httpx.Response) -> tuple[int, str, str | None]:
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["param"]


# -- making and finding ----------------------------------------------------------------------------------------------


async def test_a_conversation_is_made_told_described_and_deleted(weir: Wired) -> None:
    answer = await ask(weir, "POST", "", {"metadata": {"topic": "weirs"}, "items": None})
    conversation = answer.json()
    assert conversation.keys() == {"id", "object", "created_at", "metadata"}
    assert (conversation["object"], conversation["metadata"]) == ("conversation", {"topic": "weirs"})
    id = conversation["id"]
    told = (await ask(weir, "GET", f"/{id}")).json()
    assert told == conversation | {
        "weirgate": {
            "state": "idle",
            "turns": 0,
            "effort": None,
            "window_fill": None,
            "tokens": None,
            "window": None,
            "compactions": [],
        }
    }
    changed = await ask(weir, "POST", f"/{id}", {"metadata": {"a": "b"}})
    assert changed.json() == conversation | {"metadata": {"a": "b"}}
    assert (await ask(weir, "DELETE", f"/{id}")).json() == {
        "id": id,
        "object": "conversation.deleted",
        "deleted": True,
    }
    assert refusal(await ask(weir, "GET", f"/{id}")) == (404, "conversation_not_found", "conversation")
    assert refusal(await ask(weir, "DELETE", f"/{id}")) == (404, "conversation_not_found", "conversation")


async def test_a_conversation_is_made_of_nothing(weir: Wired) -> None:
    answer = await ask(weir, "POST", "", b"")
    assert (answer.status_code, answer.json()["metadata"]) == (200, {})


async def test_conversations_are_listed_in_pages(weir: Wired) -> None:
    ids = [await made(weir, {"user": "pager"}) for _ in range(5)]

    async def page(**query: str) -> tuple[list[str], bool]:
        value = (await ask(weir, "GET", "", user="pager", **query)).json()
        found = [each["id"] for each in value["data"]]
        assert (value["first_id"], value["last_id"]) == ((found[0], found[-1]) if found else ("", ""))
        return found, value["has_more"]

    # They are made within a millisecond or so: the order of creation is by time, then by id.
    order, more = await page(order="asc")
    assert (sorted(order), more) == (sorted(ids), False)
    assert await page() == (order[::-1], False)
    assert await page(limit="2", order="asc") == (order[:2], True)
    assert await page(limit="2", order="asc", after=order[1]) == (order[2:4], True)
    assert await page(limit="2", order="asc", after=order[3]) == (order[4:], False)
    assert await page(after=order[0]) == ([], False)


async def test_a_conversation_is_its_keys_and_its_end_users(weir: Wired) -> None:
    id = await made(weir, {"user": "ann", "metadata": {"secret": "mine"}, "items": [{"role": "user", "content": "hi"}]})
    routes: list[tuple[str, str, Any]] = [
        ("GET", "", None),
        ("POST", "", {"metadata": {}}),
        ("DELETE", "", None),
        ("GET", "/items", None),
        ("POST", "/items", {"items": []}),
        ("POST", "/rewind", {"turns": 1}),
        ("POST", "/cancel", None),
        ("POST", "/compact", {"model": "known"}),
    ]
    for method, route, value in routes:
        missing = await ask(weir, method, f"/conv_unknown{route}", value)
        assert refusal(missing)[:2] == (404, "conversation_not_found")
        for secret, user in ((A2, {}), (B, {}), (A, {"user": "bob"})):
            foreign = await ask(weir, method, f"/{id}{route}", value, secret, **user)
            assert (foreign.status_code, foreign.json()) == (404, missing.json()), (method, route)
    for secret in (A2, B):
        assert (await ask(weir, "GET", "", None, secret)).json()["data"] == []
    assert (await ask(weir, "GET", "", user="bob")).json()["data"] == []
    for user in ({}, {"user": "ann"}):
        assert (await ask(weir, "GET", f"/{id}", **user)).json()["metadata"] == {"secret": "mine"}
        assert [item["content"][0]["text"] for item in await listed(weir, id, **user)] == ["hi"]


async def test_a_key_is_needed(weir: Wired) -> None:
    for method, path in (("GET", ""), ("POST", ""), ("GET", "/conv_1"), ("GET", "/conv_1/items")):
        assert refusal(await ask(weir, method, path, {}, None))[0] == 401


async def test_a_method_that_a_route_does_not_know_is_refused(weir: Wired) -> None:
    for method, path in (("DELETE", ""), ("PUT", "/conv_1"), ("GET", "/conv_1/rewind"), ("DELETE", "/conv_1/items")):
        assert refusal(await ask(weir, method, path, {}))[:2] == (405, "method_not_allowed")


PAIRS = {f"k{number}": "v" for number in range(16)}
BAD_BODIES = [
    ("", {"metadata": {**PAIRS, "one": "more"}}, "out_of_range", "metadata"),
    ("", {"metadata": {"k" * 65: "v"}}, "out_of_range", "metadata"),
    ("", {"metadata": {"k": "v" * 513}}, "out_of_range", "metadata"),
    ("", {"metadata": {"k": 1}}, "invalid_type", "metadata"),
    ("", {"metadata": []}, "invalid_type", "metadata"),
    ("", {"items": {}}, "invalid_type", "items"),
    ("", {"items": [{"role": "user", "content": "x"}] * 21}, "out_of_range", "items"),
    ("", {"items": [1]}, "invalid_type", "items[0]"),
    ("", {"user": ""}, "out_of_range", "user"),
    ("", {"name": "x"}, "unknown_parameter", "name"),
    ("", {"é": "x"}, "unknown_parameter", None),
    ("", [], "invalid_json", None),
    ("", b"{", "invalid_json", None),
    ("", b'{"metadata":{},"metadata":{}}', "invalid_json", None),
    ("", b"[" * 90, "invalid_json", None),
    ("", b"\xff", "invalid_json", None),
    ("/{id}", {}, "missing_required_parameter", "metadata"),
    ("/{id}", {"metadata": {}, "items": []}, "unknown_parameter", "items"),
    ("/{id}/items", {}, "missing_required_parameter", "items"),
    ("/{id}/rewind", {}, "missing_required_parameter", "turns"),
    ("/{id}/rewind", {"turns": 0}, "out_of_range", "turns"),
    ("/{id}/rewind", {"turns": True}, "invalid_type", "turns"),
    ("/{id}/rewind", {"turns": "1"}, "invalid_type", "turns"),
    ("/{id}/rewind", {"turns": 10**30}, "out_of_range", "turns"),
    ("/{id}/compact", {}, "missing_required_parameter", "model"),
    ("/{id}/compact", {"model": "known", "keep": 1}, "invalid_type", "keep"),
    ("/{id}/compact", {"model": "known", "keep": "x" * 2001}, "out_of_range", "keep"),
    ("/{id}/compact", {"model": 7}, "invalid_type", "model"),
    ("/{id}/compact", {"messages": []}, "unknown_parameter", "messages"),
]


@pytest.mark.parametrize(("path", "body", "code", "param"), BAD_BODIES)
async def test_a_bad_body_is_refused_and_changes_nothing(
    weir: Wired, path: str, body: Any, code: str, param: str | None
) -> None:
    id = await made(weir, {"metadata": PAIRS, "items": [{"role": "user", "content": "x"}] * 20})
    before = (await ask(weir, "GET", f"/{id}")).json()
    many = len((await ask(weir, "GET", "", limit="100")).json()["data"])
    answer = await ask(weir, "POST", path.format(id=id), body)
    assert refusal(answer) == (400, code, param)
    assert (await ask(weir, "GET", f"/{id}")).json() == before
    assert len(before["metadata"]) == 16
    assert len((await ask(weir, "GET", "", limit="100")).json()["data"]) == many


@pytest.mark.parametrize(
    ("query", "code", "param"),
    [
        ({"limit": "0"}, "out_of_range", "limit"),
        ({"limit": "101"}, "out_of_range", "limit"),
        ({"limit": "-1"}, "out_of_range", "limit"),
        ({"limit": "²"}, "out_of_range", "limit"),
        ({"order": "up"}, "out_of_range", "order"),
        ({"colour": "red"}, "unknown_parameter", "colour"),
        ({"user": ""}, "out_of_range", "user"),
    ],
)
async def test_a_bad_query_is_refused(weir: Wired, query: dict[str, str], code: str, param: str) -> None:
    id = await made(weir)
    for path in ("", f"/{id}/items"):
        assert refusal(await ask(weir, "GET", path, **query)) == (400, code, param)


async def test_a_list_behind_what_is_not_in_it_is_refused(weir: Wired) -> None:
    id, other = await made(weir), await made(weir, {"items": [{"role": "user", "content": "x"}]})
    (item,) = await listed(weir, other)
    assert refusal(await ask(weir, "GET", f"/{id}/items", after=item["id"])) == (404, "item_not_found", "after")
    assert refusal(await ask(weir, "GET", "", after="conv_x")) == (404, "conversation_not_found", "after")


# -- items and turns -------------------------------------------------------------------------------------------------


async def test_items_come_back_as_they_were_put(weir: Wired) -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo=", "detail": "low"}
    text = {"type": "input_text", "text": "Look."}
    file = {"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain;base64,YQ=="}
    id = await made(weir)
    put = await ask(
        weir,
        "POST",
        f"/{id}/items",
        {
            "items": [
                {"role": "developer", "content": "Be brief."},
                {"type": "message", "role": "user", "content": [text, image, file]},
                {"type": "reasoning", "id": "rs_1", "summary": []},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
                CALL,
                {**CALL, "call_id": "c2"},
                RESULT,
                {**RESULT, "call_id": "c2", "output": [text, image]},
                {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
            ]
        },
    )
    assert put.status_code == 200, put.text
    found = await listed(weir, id)
    assert put.json()["data"] == found
    kinds = ["message", "message", "message", *["function_call"] * 2, *["function_call_output"] * 2, "message"]
    assert [item["type"] for item in found] == kinds
    assert [item.get("role") for item in found[:3]] == ["developer", "user", "assistant"]
    assert found[1]["content"] == [text, image | {"file_id": None}, file]
    assert found[2]["content"] == [{"type": "output_text", "annotations": [], "text": "I look."}]
    assert (found[3]["call_id"], found[3]["name"], found[3]["arguments"]) == ("c1", "look", '{"at": 1}')
    assert found[5]["output"] == "nothing"
    assert found[6]["output"] == [text, image | {"file_id": None}]
    assert found[7]["content"][0]["text"] == "No."
    assert {(item["audience"], item["component"], item["status"]) for item in found} == {("both", "main", "completed")}
    assert {item["turn"] for item in found} == {1}
    assert len({item["id"] for item in found}) == len(found)


BAD_ITEMS: list[tuple[Any, str, str]] = [
    ({"role": "king", "content": "x"}, "invalid_items", "items[0].role"),
    ({"content": "x"}, "invalid_items", "items[0].role"),
    ({"role": "user"}, "invalid_type", "items[0].content"),
    ({"role": "user", "content": []}, "invalid_type", "items[0].content"),
    ({"role": "user", "content": [1]}, "invalid_type", "items[0].content[0]"),
    ({"role": "user", "content": [{"type": "odd"}]}, "invalid_items", "items[0].content[0].type"),
    ({"role": "user", "content": [{"type": "input_text"}]}, "invalid_type", "items[0].content[0].text"),
    (
        {"role": "user", "content": [{"type": "input_image", "file_id": "f"}]},
        "missing_required_parameter",
        "items[0].content[0].image_url",
    ),
    (
        {"role": "user", "content": [{"type": "input_file", "file_url": "x"}]},
        "invalid_items",
        "items[0].content[0]",
    ),
    (
        {"role": "assistant", "content": [{"type": "input_image", "image_url": "x"}]},
        "invalid_items",
        "items[0].content[0].type",
    ),
    ({"type": "web_search_call"}, "invalid_items", "items[0].type"),
    ({"type": "item_reference", "id": "x"}, "invalid_items", "items[0].type"),
    ({"type": "function_call", "name": "f"}, "missing_required_parameter", "items[0].call_id"),
    ({"type": "function_call", "call_id": "c"}, "missing_required_parameter", "items[0].name"),
    ({**CALL, "arguments": {}}, "invalid_type", "items[0].arguments"),
    ({**CALL, "call_id": 7}, "invalid_type", "items[0].call_id"),
    (RESULT, "invalid_items", "items[0].call_id"),
]


@pytest.mark.parametrize(("item", "code", "param"), BAD_ITEMS)
async def test_a_bad_item_is_named_and_nothing_is_put(weir: Wired, item: Any, code: str, param: str) -> None:
    id = await made(weir, {"items": [{"role": "user", "content": "hi"}]})
    good = {"role": "user", "content": "there"}
    assert refusal(await ask(weir, "POST", f"/{id}/items", {"items": [item]})) == (400, code, param)
    behind = await ask(weir, "POST", f"/{id}/items", {"items": [good, item]})
    assert refusal(behind) == (400, code, param.replace("[0]", "[1]", 1))
    assert refusal(await ask(weir, "POST", "", {"items": [item]})) == (400, code, param)
    assert len(await listed(weir, id)) == 1


async def test_a_call_has_one_result_and_comes_before_it(weir: Wired) -> None:
    id = await made(weir, {"items": [{"role": "user", "content": "go"}, CALL]})
    assert (await ask(weir, "GET", f"/{id}")).json()["weirgate"]["state"] == "waiting"
    twice = await ask(weir, "POST", f"/{id}/items", {"items": [RESULT, RESULT]})
    assert refusal(twice) == (400, "invalid_items", "items[1].call_id")
    assert (await ask(weir, "POST", f"/{id}/items", {"items": [RESULT]})).status_code == 200
    assert (await ask(weir, "GET", f"/{id}")).json()["weirgate"]["state"] == "idle"
    again = await ask(weir, "POST", f"/{id}/items", {"items": [RESULT]})
    assert refusal(again) == (400, "invalid_items", "items[0].call_id")
    same = await ask(weir, "POST", f"/{id}/items", {"items": [CALL, CALL]})
    assert refusal(same) == (400, "invalid_items", "items[1].call_id")


async def test_what_was_put_is_told_to_the_model_and_the_answer_is_kept(weir: Wired) -> None:
    items = [{"role": "user", "content": "One."}, {"role": "assistant", "content": "Two."}]
    id = await made(weir, {"items": items})
    answer = await say(weir, id, "Three.")
    assert answer.json()["choices"][0]["message"]["content"] == "I was told 3."
    assert [item["content"][0]["text"] for item in await listed(weir, id)] == [
        "One.",
        "Two.",
        "Three.",
        "I was told 3.",
    ]
    found = await listed(weir, id)
    assert [item["turn"] for item in found] == [1, 1, 2, 2]
    assert [item.get("phase") for item in found] == [None, None, None, "final_answer"]
    state = (await ask(weir, "GET", f"/{id}")).json()["weirgate"]
    assert (state["state"], state["turns"], state["tokens"] > 0) == ("idle", 2, True)
    pages = []
    after: dict[str, str] = {}
    while True:
        value = (await ask(weir, "GET", f"/{id}/items", limit="3", **after)).json()
        pages.append([item["id"] for item in value["data"]])
        if not value["has_more"]:
            break
        after = {"after": value["last_id"]}
    assert [id for page in pages for id in page] == [item["id"] for item in found][::-1]
    assert [len(page) for page in pages] == [3, 1]


async def test_a_rewind_takes_turns_back_and_the_next_one_begins_there(weir: Wired) -> None:
    id = await made(weir)
    for text in ("One.", "Two.", "Three."):
        assert (await say(weir, id, text)).status_code == 200
    back = (await ask(weir, "POST", f"/{id}/rewind", {"turns": 2})).json()
    assert (back["id"], back["weirgate"]["turns"]) == (id, 1)
    answer = await say(weir, id, "Other.")
    assert answer.json()["choices"][0]["message"]["content"] == "I was told 3."
    texts = [item["content"][0]["text"] for item in await listed(weir, id)]
    assert texts == ["One.", "I was told 1.", "Other.", "I was told 3."]
    assert (await ask(weir, "POST", f"/{id}/rewind", {"turns": 99})).json()["weirgate"]["turns"] == 0
    assert await listed(weir, id) == []


async def test_while_a_turn_runs_nothing_under_it_is_changed_and_it_can_be_cancelled() -> None:
    asked, answered = asyncio.Event(), asyncio.Event()

    async def slow(request: SeenRequest, reply: Script) -> None:
        asked.set()
        await answered.wait()
        await reply.json(200, chat_reply("Late.", usage=usage(1, 1)))

    async with wired(slow, keys=KEYS, models={"known": {"upstream": "main"}}) as weir, asyncio.timeout(BOUND):
        id = await made(weir)
        nothing = (409, "nothing_runs", "conversation")
        assert refusal(await ask(weir, "POST", f"/{id}/cancel")) == nothing
        running = chat(
            weir.app,
            {"model": "known", "conversation": id, "messages": [{"role": "user", "content": "Go."}]},
            authorization=f"Bearer {A}",
        )
        await asked.wait()
        assert (await ask(weir, "GET", f"/{id}")).json()["weirgate"]["state"] == "running"
        assert [item["content"][0]["text"] for item in await listed(weir, id)] == ["Go."]
        busy = (409, "conversation_busy", "conversation")
        assert refusal(await ask(weir, "POST", f"/{id}/rewind", {"turns": 1})) == busy
        assert refusal(await ask(weir, "POST", f"/{id}/items", {"items": []})) == busy
        assert refusal(await ask(weir, "DELETE", f"/{id}")) == busy
        assert refusal(await ask(weir, "POST", f"/{id}/compact", {"model": "known"})) == busy
        assert (await ask(weir, "POST", f"/{id}", {"metadata": {"a": "b"}})).status_code == 200
        cancelled = (await ask(weir, "POST", f"/{id}/cancel")).json()
        assert (cancelled["id"], cancelled["weirgate"]["state"]) == (id, "idle")
        assert (await running.head())[0] == 409
        await running.done()
        answered.set()
        assert (await ask(weir, "DELETE", f"/{id}")).json()["deleted"] is True


async def test_where_no_content_may_be_at_rest_no_conversation_is_kept(tmp_path: Path) -> None:
    strict = {"policies": str(BUILT_IN), "store.url": f"sqlite:///{tmp_path}/weirgate.db", "store.content": "strict"}
    app = Application(load(None, {}, {"upstreams.main.base_url": "http://127.0.0.1:1/v1", **strict}), Drain())
    await app.start()
    try:
        transport = httpx.ASGITransport(Fence(app))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8400") as client:
            answers = [await client.post(PATH, json={}), await client.get(PATH), await client.get(f"{PATH}/conv_1")]
            answers.append(await client.post("/v1/chat/completions", json={**HELLO, "conversation": "conv_1"}))
    finally:
        await app.stop()
    assert [refusal(answer)[:2] for answer in answers] == [(400, "conversations_unavailable")] * 4
