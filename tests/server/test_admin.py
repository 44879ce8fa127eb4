"""The operator's routes: who may use them, what they answer, and that a tenant sees its own rows only."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.server.auth import well_formed
from tests.fakes import Script, SeenRequest, chat_reply, usage
from tests.server.wired import ADMIN, HELLO, Wired, bearer, wired

ROOT = "/v1/weirgate"
A, B = "client-secret-of-tenant-a", "client-secret-of-tenant-b"
KEYS = [{"id": "k", "tenant": "a", "secret": A}, {"id": "k", "tenant": "b", "secret": B}]
BOTH = {"keys": [KEYS[0], {**KEYS[1], "id": "k2"}], "admin": {"secret": ADMIN}}
SAFE = (
    ("GET", "/keys"),
    ("POST", "/keys"),
    ("POST", "/keys/a/k/revoke"),
    ("GET", "/keys/a/k"),
    ("PATCH", "/keys/a/k"),
    ("PATCH", "/tenants/a"),
    ("GET", "/upstreams"),
    ("GET", "/config"),
    ("GET", "/calibrations"),
    ("POST", "/reload"),
)


async def hello(request: SeenRequest, reply: Script) -> None:
    await reply.json(200, chat_reply("Hello.", usage=usage(9, 3)))


async def call(weir: Wired, secret: str | None = None, model: str = "known") -> int:
    headers = bearer(secret) if secret else {}
    got = await weir.client.post("/v1/chat/completions", json={**HELLO, "model": model}, headers=headers)
    return got.status_code


# -- who -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "path"), SAFE)
async def test_a_client_key_opens_none_of_the_operators_routes(method: str, path: str) -> None:
    async with wired(hello, **BOTH) as weir:
        for secret in (A, "wrong", None):
            got = await weir.client.request(method, ROOT + path, headers=bearer(secret) if secret else {}, json={})
            assert (got.status_code, got.json()["error"]["code"]) == (401, "invalid_api_key")
        assert [row["id"] for row in (await weir.client.get(f"{ROOT}/keys", headers=bearer(ADMIN))).json()["data"]] == [
            "k",
            "k2",
        ]


@pytest.mark.parametrize(("method", "path"), SAFE)
async def test_with_keys_and_without_an_admin_secret_the_routes_are_off(method: str, path: str) -> None:
    async with wired(hello, keys=KEYS[:1]) as weir:
        got = await weir.client.request(method, ROOT + path, headers=bearer(A), json={})
    assert (got.status_code, got.json()["error"]["code"]) == (403, "forbidden")


async def test_without_keys_and_secret_a_program_on_this_machine_may_use_them() -> None:
    async with wired(hello) as weir:
        for host in ("127.0.0.1:8400", "localhost", "[::1]:8400"):
            got = await weir.client.get(f"{ROOT}/usage", headers={"host": host})
            assert got.status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "rebound.example:8400"},
        {"host": "10.0.0.5:8400"},
        {"host": "127.0.0.1:8400", "origin": "https://page.example"},
        {"host": "127.0.0.1:8400", "origin": "null"},
    ],
)
async def test_a_page_in_a_browser_may_not(headers: dict[str, str]) -> None:
    async with wired(hello) as weir:
        for method, path in (("GET", "/usage"), *SAFE):
            got = await weir.client.request(method, ROOT + path, headers=headers, json={})
            assert (got.status_code, got.json()["error"]["code"]) == (403, "forbidden")


async def test_with_an_admin_secret_an_open_gateway_does_not_show_its_rows_to_everybody() -> None:
    async with wired(hello, admin={"secret": ADMIN}) as weir:
        assert await call(weir) == 200
        for headers in ({}, bearer("anybody")):
            assert (await weir.client.get(f"{ROOT}/usage", headers=headers)).status_code == 401
        assert len((await weir.client.get(f"{ROOT}/usage", headers=bearer(ADMIN))).json()["data"]) == 1


# -- usage -----------------------------------------------------------------------------------------------------------


async def test_a_client_key_sees_its_tenants_rows_and_the_admin_secret_all() -> None:
    async with wired(hello, **BOTH) as weir:
        for secret in (A, A, B):
            assert await call(weir, secret) == 200
        seen = {}
        for secret in (A, B, ADMIN):
            rows = (await weir.client.get(f"{ROOT}/usage", headers=bearer(secret))).json()["data"]
            seen[secret] = sorted(row["tenant"] for row in rows)
            sums = (await weir.client.get(f"{ROOT}/usage?by=model", headers=bearer(secret))).json()["data"]
            assert sum(line["calls"] for line in sums) == len(rows)
    assert seen == {A: ["a", "a"], B: ["b"], ADMIN: ["a", "a", "b"]}


async def test_a_client_key_still_sees_its_rows_where_no_admin_secret_is_configured() -> None:
    async with wired(hello, keys=BOTH["keys"]) as weir:
        assert await call(weir, A) == 200
        assert len((await weir.client.get(f"{ROOT}/usage", headers=bearer(A))).json()["data"]) == 1
        assert (await weir.client.get(f"{ROOT}/usage", headers=bearer(B))).json()["data"] == []
        assert (await weir.client.get(f"{ROOT}/usage")).status_code == 401


async def test_a_row_says_what_it_was_and_holds_no_content_and_no_secret() -> None:
    async with wired(hello, **BOTH) as weir:
        assert await call(weir, A) == 200
        got = await weir.client.get(f"{ROOT}/usage", headers=bearer(ADMIN))
    (row,) = got.json()["data"]
    assert (row["tenant"], row["key"], row["input"], row["output"], row["status"]) == ("a", "k", 9, 3, "ok")
    assert "Hello" not in got.text and A not in got.text


@pytest.mark.parametrize("by", ["model", "conversation", "day", "key"])
async def test_sums_are_told_by_each_column(by: str) -> None:
    async with wired(hello, **BOTH) as weir:
        assert await call(weir, A) == 200
        (line,) = (await weir.client.get(f"{ROOT}/usage", params={"by": by}, headers=bearer(ADMIN))).json()["data"]
    assert (line["calls"], line["input"], line["unpriced"], line["estimated"]) == (1, 9, 1, 0)


@pytest.mark.parametrize(
    ("query", "code", "param"),
    [
        ("by=colour", "out_of_range", "by"),
        ("by=", "out_of_range", "by"),
        ("sinse=1", "unknown_parameter", "sinse"),
        ("since=yesterday", "out_of_range", "since"),
        ("since=-1", "out_of_range", "since"),
        ("since=nan", "out_of_range", "since"),
        ("until=inf", "out_of_range", "until"),
        ("until=1e400", "out_of_range", "until"),
        ("limit=0", "out_of_range", "limit"),
        ("limit=1.5", "out_of_range", "limit"),
        ("limit=10000001", "out_of_range", "limit"),
        ("limit=%ff%00", "out_of_range", "limit"),
    ],
)
async def test_a_question_that_means_nothing_is_refused(query: str, code: str, param: str) -> None:
    async with wired(hello) as weir:
        got = await weir.client.get(f"{ROOT}/usage?{query}")
    assert (got.status_code, got.json()["error"]["code"], got.json()["error"]["param"]) == (400, code, param)


async def test_since_until_and_limit_choose_rows() -> None:
    async with wired(hello) as weir:
        for _ in range(3):
            assert await call(weir) == 200
        times = sorted(row.opened_at for row in await weir.rows())

        async def count(**asked: object) -> int:
            got = await weir.client.get(f"{ROOT}/usage", params={name: str(value) for name, value in asked.items()})
            return len(got.json()["data"])

        assert await count(limit=2) == 2
        assert await count(since=times[1]) == 2
        assert await count(until=times[1]) == 1
        assert await count(since=times[2] + 1) == 0


# -- keys ------------------------------------------------------------------------------------------------------------


async def test_a_key_that_was_made_opens_and_one_that_was_revoked_does_not_from_the_next_request_on() -> None:
    async with wired(hello, **BOTH) as weir:
        body = {"tenant": "c", "models": ["known"]}
        made = (await weir.client.post(f"{ROOT}/keys", json=body, headers=bearer(ADMIN))).json()
        assert well_formed(made["secret"])
        assert await call(weir, made["secret"]) == 200
        assert await call(weir, made["secret"], model="other") == 403
        gone = await weir.client.post(f"{ROOT}/keys/c/{made['id']}/revoke", headers=bearer(ADMIN))
        assert gone.json() == {"id": made["id"], "tenant": "c", "revoked": True}
        assert await call(weir, made["secret"]) == 401
        listed = await weir.client.get(f"{ROOT}/keys", headers=bearer(ADMIN))
        found = {row["id"]: row for row in listed.json()["data"]}
        assert found[made["id"]]["revoked_at"] is not None
        assert (found["k"]["source"], found[made["id"]]["source"]) == ("configuration", "database")
        assert made["secret"] not in listed.text and A not in listed.text


async def test_the_first_key_closes_an_open_gateway() -> None:
    async with wired(hello) as weir:
        assert await call(weir) == 200
        made = (await weir.client.post(f"{ROOT}/keys", json={})).json()
        assert (made["tenant"], made["models"]) == ("default", ["*"])
        assert await call(weir) == 401
        assert await call(weir, made["secret"]) == 200
        assert (await weir.client.get(f"{ROOT}/keys")).status_code == 403


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        (b"{", "invalid_json", None),
        (b"\xff", "invalid_json", None),
        (b'{"tenant":"a","tenant":"b"}', "invalid_json", None),
        (b"[]", "invalid_type", None),
        (b'{"tenant":7}', "invalid_type", None),
        (b'{"role":"admin"}', "invalid_type", None),
        (b'{"tenant":""}', "invalid_id", "tenant"),
        (b'{"tenant":"a/b"}', "invalid_id", "tenant"),
        (b'{"tenant":"a\\u0000"}', "invalid_id", "tenant"),
        (b'{"tenant":"\xc4\xb1"}', "invalid_id", "tenant"),
        (b'{"id":"../x"}', "invalid_id", "id"),
        (b'{"id":""}', "invalid_id", "id"),
        (b'{"models":[]}', "out_of_range", "models"),
        (b'{"models":["a\\nb"]}', "out_of_range", "models"),
    ],
)
async def test_a_key_that_cannot_be_is_refused(body: bytes, code: str, param: str | None) -> None:
    async with wired(hello, **BOTH) as weir:
        headers = {**bearer(ADMIN), "content-type": "application/json"}
        got = await weir.client.post(f"{ROOT}/keys", content=body, headers=headers)
        error = got.json()["error"]
        assert (got.status_code, error["code"], error["param"]) == (400, code, param)
        assert await weir.app.store.keys() == ()


async def test_an_id_that_is_taken_is_refused_wherever_it_stands() -> None:
    async with wired(hello, **BOTH) as weir:
        for tenant, id, status in (("a", "k", 400), ("b", "k", 200), ("b", "k", 400)):
            got = await weir.client.post(f"{ROOT}/keys", json={"tenant": tenant, "id": id}, headers=bearer(ADMIN))
            assert got.status_code == status
            assert status == 200 or got.json()["error"]["code"] == "key_exists"
        assert await call(weir, A) == 200, "the configured key is untouched"


async def test_foreign_and_malformed_ids_are_not_found_and_a_configured_key_is_left_alone() -> None:
    async with wired(hello, **BOTH) as weir:
        made = (await weir.client.post(f"{ROOT}/keys", json={"tenant": "c"}, headers=bearer(ADMIN))).json()
        for path in (f"b/{made['id']}", "c/none", "c/%F0%9F%98%80", f"c/{made['id']}x"):
            got = await weir.client.post(f"{ROOT}/keys/{path}/revoke", headers=bearer(ADMIN))
            assert (got.status_code, got.json()["error"]["code"]) == (404, "not_found")
        kept = await weir.client.post(f"{ROOT}/keys/a/k/revoke", headers=bearer(ADMIN))
        assert (kept.status_code, kept.json()["error"]["code"]) == (400, "key_configured")
        assert await call(weir, A) == 200 == await call(weir, made["secret"])


# -- the rest --------------------------------------------------------------------------------------------------------


async def test_what_was_learned_is_shown() -> None:
    async with wired(hello) as weir:
        assert (await weir.client.get(f"{ROOT}/calibrations")).json() == {"object": "list", "data": []}
        assert await call(weir) == 200
        (learned,) = (await weir.client.get(f"{ROOT}/calibrations")).json()["data"]
    assert (learned["upstream"], learned["model"], learned["estimate"]["samples"]) == ("main", "known", 1)


async def test_a_reload_takes_good_policies_and_tells_what_is_wrong_with_bad_ones(tmp_path: Path) -> None:
    policy = tmp_path / "default.yaml"
    policy.write_text("window: 8192\n")
    async with wired(hello, policies=str(tmp_path)) as weir:

        async def window() -> str:
            got = await weir.client.post("/v1/chat/completions", json=HELLO)
            return got.headers["x-weirgate-context"].split("; ")[1]

        assert await window() == "window=8192"
        policy.write_text("window: 4096\n")
        assert (await weir.client.post(f"{ROOT}/reload")).json() == {"taken": True, "problems": []}
        assert await window() == "window=4096"
        policy.write_text("windo: 1\n")
        told = (await weir.client.post(f"{ROOT}/reload")).json()
        assert told["taken"] is False and 'did you mean "window"' in told["problems"][0]
        assert await window() == "window=4096"
