"""An account's settings through the whole application: whose they are, what may be asked for, and what they do."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from proxy.core.account import Account
from tests.fakes import Script, SeenRequest, chat_reply, error_body, usage
from tests.server.wired import ADMIN, Wired, bearer, wired

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT = "/v1/chat/completions"
SETTINGS = "/v1/weirgate/settings"
A, A2, B = "client-secret-of-tenant-a", "second-secret-of-tenant-a", "client-secret-of-tenant-b"
KEYS = [
    {"id": "k", "tenant": "a", "secret": A, "models": ["known", "small"]},
    {"id": "k2", "tenant": "a", "secret": A2},
    {"id": "k3", "tenant": "b", "secret": B},
]
NOTHING: Mapping[str, Any] = {"automatic": True, "threshold": None, "thresholds": {}, "summary_model": None}
SOME = {"automatic": False, "threshold": 0.5, "thresholds": {"known": 0.3}, "summary_model": "small"}
WINDOW = 8192


def tokens(request: SeenRequest) -> int:
    """What this provider counts: about what a tokenizer makes of English."""
    return sum(len(json.dumps(message)) for message in request.messages) // 4


async def limited(request: SeenRequest, reply: Script) -> None:
    """A provider whose window is real."""
    size = tokens(request)
    if size > WINDOW:
        text = (
            f"This model's maximum context length is {WINDOW} tokens. However, your messages resulted in {size} tokens."
        )
        await reply.json(400, error_body(text, code="context_length_exceeded"))
    else:
        await reply.json(200, chat_reply("Done.", usage=usage(size, 3)))


HOUSE: Mapping[str, Any] = {
    "keys": KEYS,
    "models": {name: {"upstream": "main"} for name in ("known", "small", "costly")},
    "admin": {"secret": ADMIN},
    "window": WINDOW,
}


@pytest_asyncio.fixture(loop_scope="module")
async def weir() -> AsyncIterator[Wired]:
    async with wired(limited, **HOUSE) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def standing() -> AsyncIterator[Wired]:
    """One for all that is refused."""
    async with wired(limited, **HOUSE) as running:
        yield running


async def get(weir: Wired, secret: str | None = A, user: str | None = None) -> httpx.Response:
    params = {} if user is None else {"user": user}
    return await weir.client.get(SETTINGS, params=params, headers=bearer(secret) if secret else {})


async def put(weir: Wired, value: Any, secret: str | None = A, user: str | None = None) -> httpx.Response:
    params = {} if user is None else {"user": user}
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    headers = {"content-type": "application/json", **(bearer(secret) if secret else {})}
    return await weir.client.put(SETTINGS, params=params, content=body, headers=headers)


# -- whose they are --------------------------------------------------------------------------------------------------


async def test_settings_are_told_whole_and_replaced_whole(weir: Wired) -> None:
    assert (await get(weir)).json() == NOTHING
    got = await put(weir, SOME)
    assert (got.status_code, got.json()) == (200, SOME)
    assert (await get(weir)).json() == SOME
    assert (await put(weir, (await get(weir)).json())).json() == SOME  # what is told may be sent back
    assert (await put(weir, {"threshold": 0.6})).json() == {**NOTHING, "threshold": 0.6}
    assert (await put(weir, {})).json() == NOTHING == (await get(weir)).json()


async def test_nobody_sees_or_changes_the_settings_of_somebody_else(weir: Wired) -> None:
    mine = {**NOTHING, "threshold": 0.4}
    accounts = [(secret, user) for secret in (A, A2, B) for user in (None, "ann", "bob", "k", "a b/ä&user=ann")]
    for secret, user in accounts:
        assert (await put(weir, mine, secret, user)).status_code == 200
        for other in accounts:
            assert (await get(weir, *other)).json() == (mine if other == (secret, user) else NOTHING)
        assert (await put(weir, {}, secret, user)).json() == NOTHING


@pytest.mark.parametrize("secret", [None, "wg-unknown", ADMIN])
async def test_without_a_clients_key_there_are_no_settings(weir: Wired, secret: str | None) -> None:
    for got in (await get(weir, secret), await put(weir, SOME, secret)):
        assert (got.status_code, got.json()["error"]["code"]) == (401, "invalid_api_key")


async def test_an_open_gateway_tells_its_clients_apart_by_what_they_send() -> None:
    async with wired(limited) as weir:
        assert (await put(weir, {"threshold": 0.4}, "mine")).json()["threshold"] == 0.4
        assert (await get(weir, "mine")).json()["threshold"] == 0.4
        assert (await get(weir, "theirs")).json() == NOTHING == (await get(weir, None)).json()
        got = await weir.client.get(SETTINGS, headers={**bearer("mine"), "host": "rebound.example"})
        assert got.status_code == 403


async def test_two_tenants_whose_keys_have_one_id_never_meet(weir: Wired) -> None:
    asked = {"tenant": "b", "id": "k"}
    made = (await weir.client.post("/v1/weirgate/keys", json=asked, headers=bearer(ADMIN))).json()
    for user in (None, "ann"):
        await put(weir, SOME, A, user)
        assert (await get(weir, made["secret"], user)).json() == NOTHING
        await put(weir, {"threshold": 0.7}, made["secret"], user)
        assert (await get(weir, A, user)).json() == SOME


# -- what may be asked for -------------------------------------------------------------------------------------------

MANY = {f"m{number}": 0.5 for number in range(101)}
DEEP = b"[" * 5000 + b"]" * 5000


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        (b"", "invalid_json", None),
        (b"{", "invalid_json", None),
        (b"[]", "invalid_json", None),
        (b"null", "invalid_json", None),
        (b'{"threshold":0.5} x', "invalid_json", None),
        (b'{"threshold":NaN}', "invalid_json", None),
        (b'{"threshold":1e999}', "invalid_json", None),
        (b'{"threshold":0.5,"threshold":0.6}', "invalid_json", None),
        (b'{"thresholds":{"m":0.5,"m":0.6}}', "invalid_json", None),
        (b'{"threshold":"\xff"}', "invalid_json", None),
        (b'{"thresholds":' + DEEP + b"}", "invalid_json", None),
        ({"automatic": None}, "invalid_type", "automatic"),
        ({"automatic": 1}, "invalid_type", "automatic"),
        ({"automatic": "on"}, "invalid_type", "automatic"),
        ({"threshold": "0.5"}, "invalid_type", "threshold"),
        ({"threshold": True}, "invalid_type", "threshold"),
        ({"threshold": [0.5]}, "invalid_type", "threshold"),
        ({"threshold": 0}, "out_of_range", "threshold"),
        ({"threshold": 0.2999}, "out_of_range", "threshold"),
        ({"threshold": 0.9501}, "out_of_range", "threshold"),
        ({"threshold": 85}, "out_of_range", "threshold"),
        ({"threshold": -0.5}, "out_of_range", "threshold"),
        (b'{"threshold":' + b"9" * 4000 + b"}", "out_of_range", "threshold"),
        ({"thresholds": None}, "invalid_type", "thresholds"),
        ({"thresholds": [["m", 0.5]]}, "invalid_type", "thresholds"),
        ({"thresholds": {"m": "0.5"}}, "invalid_type", "thresholds"),
        ({"thresholds": {"m": None}}, "invalid_type", "thresholds"),
        ({"thresholds": {"m": False}}, "invalid_type", "thresholds"),
        ({"thresholds": {"m": {}}}, "invalid_type", "thresholds"),
        ({"thresholds": {"m": 1}}, "out_of_range", "thresholds"),
        ({"thresholds": {"": 0.5}}, "out_of_range", "thresholds"),
        ({"thresholds": {"m" * 257: 0.5}}, "out_of_range", "thresholds"),
        ({"thresholds": {"m\u0000": 0.5}}, "out_of_range", "thresholds"),
        ({"thresholds": MANY}, "out_of_range", "thresholds"),
        ({"summary_model": 7}, "invalid_type", "summary_model"),
        ({"summary_model": ""}, "out_of_range", "summary_model"),
        ({"summary_model": "s" * 257}, "out_of_range", "summary_model"),
        ({"summary_model": "costly"}, "model_not_found", "summary_model"),  # not this key's
        ({"summary_model": "nowhere"}, "model_not_found", "summary_model"),
        ({"treshold": 0.5}, "unknown_parameter", "treshold"),
        ({"mode": "off"}, "unknown_parameter", "mode"),
        ({"key": "k2"}, "unknown_parameter", "key"),
        ({"canary-7f3a": 1}, "unknown_parameter", None),  # not a name of ours: not repeated
        ({"user": "ann"}, "unknown_parameter", "user"),
    ],
    ids=lambda value: None if value is None or isinstance(value, str) else repr(value)[:40],
)
async def test_what_cannot_be_set_is_refused_and_changes_nothing(
    standing: Wired, body: Any, code: str, param: str | None
) -> None:
    assert (await put(standing, {"threshold": 0.44})).status_code == 200
    began = time.monotonic()
    got = await put(standing, body)
    error = got.json()["error"]
    assert time.monotonic() - began < 1
    assert (got.status_code, error["type"], error["code"], error["param"]) == (
        400,
        "invalid_request_error",
        code,
        param,
    )
    assert "canary" not in got.text and "costly" not in got.text
    assert (await get(standing)).json() == {**NOTHING, "threshold": 0.44}


async def test_a_body_over_the_limit_and_one_of_another_kind_are_refused(standing: Wired) -> None:
    large = await put(standing, {"thresholds": {"m": 0.5, "x": "y" * 200_000}})
    assert (large.status_code, large.json()["error"]["code"]) == (413, "request_too_large")
    form = await standing.client.put(SETTINGS, content=b"threshold=0.5", headers=bearer(A))
    assert form.status_code == 415
    other = await standing.client.request("DELETE", SETTINGS, headers=bearer(A))
    assert (other.status_code, other.headers["allow"]) == (405, "GET, PUT")


@pytest.mark.parametrize(
    ("query", "code", "param"),
    [
        ("user=", "out_of_range", "user"),
        ("user=" + "u" * 257, "out_of_range", "user"),
        ("user=a&user=b", "out_of_range", "user"),
        ("user=%ff", "out_of_range", "user"),
        ("user=%00", "out_of_range", "user"),
        ("&".join(f"user={number}" for number in range(99)), "out_of_range", "user"),
        ("tenant=b", "unknown_parameter", "tenant"),
        ("user=ann&key=k2", "unknown_parameter", "key"),
    ],
    ids=lambda value: None if value is None else value[:20],
)
async def test_a_question_that_means_nobody_is_refused(standing: Wired, query: str, code: str, param: str) -> None:
    for method in ("GET", "PUT"):
        got = await standing.client.request(method, f"{SETTINGS}?{query}", json={}, headers=bearer(A))
        assert (got.status_code, got.json()["error"]["code"], got.json()["error"]["param"]) == (400, code, param)


async def test_the_bounds_themselves_are_taken(standing: Wired) -> None:
    thresholds = {f"m{number}".ljust(256, "x"): 0.3 if number % 2 else 0.95 for number in range(100)}
    asked = {"automatic": True, "threshold": 0.3, "thresholds": thresholds, "summary_model": "known"}
    assert (await put(standing, asked, user="ü" * 256)).json() == asked
    assert (await get(standing, user="ü" * 256)).json() == asked


# -- what they do ----------------------------------------------------------------------------------------------------

WORDS = "the weir keeps the river from flooding the low fields "


def history(share: float, opening: str = "Begin.") -> list[dict[str, str]]:
    """About so much of the window, as a conversation that has gone on."""
    talk = [{"role": "user", "content": opening}, {"role": "assistant", "content": "Well."}]
    count = 0
    while sum(len(json.dumps(message)) for message in talk) // 4 < share * WINDOW:
        talk.append({"role": "user", "content": f"Request {count}: {WORDS * 6}"})
        talk.append({"role": "assistant", "content": f"Answer {count}: {WORDS * 6}"})
        count += 1
    return [*talk, {"role": "user", "content": "And now?"}]


async def ask(
    weir: Wired, messages: list[dict[str, str]], headers: Mapping[str, str] | None = None, **more: Any
) -> httpx.Response:
    body = {"model": "known", "messages": messages, **more}
    return await weir.client.post(CHAT, json=body, headers={**bearer(A), **(headers or {})})


def done(got: httpx.Response) -> str:
    assert got.status_code == 200, got.text
    return got.headers["x-weirgate-context"].rpartition("compaction=")[2].partition(";")[0]


async def test_a_lower_threshold_compacts_earlier_and_holds_for_a_conversation_that_has_begun(weir: Wired) -> None:
    talk = history(0.5)
    assert done(await ask(weir, talk)) == "none"
    await put(weir, {"threshold": 0.3})
    longer = [*talk, {"role": "assistant", "content": "Done."}, {"role": "user", "content": "Go on."}]
    assert done(await ask(weir, longer)) == "auto"
    sent = weir.up.ledger[-1].request
    assert tokens(sent) < 0.3 * WINDOW
    assert sent.messages[-1] == longer[-1]


async def test_a_threshold_of_one_model_holds_for_it_alone(weir: Wired) -> None:
    await put(weir, {"threshold": 0.95, "thresholds": {"small": 0.3}})
    assert done(await ask(weir, history(0.6, "first"), model="small")) == "auto"
    assert done(await ask(weir, history(0.6, "second"), model="known")) == "none"
    assert done(await ask(weir, history(0.89, "third"), model="known")) == "none"


async def test_settings_hold_for_their_account_and_for_no_other(weir: Wired) -> None:
    await put(weir, {"threshold": 0.3}, user="ann")
    talk = history(0.5)
    assert done(await ask(weir, talk, user="ann")) == "auto"
    assert done(await ask(weir, talk, user="bob", safety_identifier="ann")) == "auto"
    assert done(await ask(weir, talk, user="ann", safety_identifier="bob")) == "none"
    assert done(await ask(weir, talk)) == "none"
    for secret in (A2, B):
        assert done(await ask(weir, talk, bearer(secret), user="ann")) == "none"
    await put(weir, {"threshold": 0.3})  # the key's own are not its end users'
    assert done(await ask(weir, [*history(0.5, "other")])) == "auto"
    assert done(await ask(weir, talk, user="bob")) == "none"


@pytest.mark.parametrize("stream", [False, True])
async def test_with_automatic_compaction_off_an_overflow_reaches_the_client_with_its_numbers(
    weir: Wired, stream: bool
) -> None:
    await put(weir, {"automatic": False})
    assert done(await ask(weir, history(0.93))) == "none"  # above the trigger, and nothing is done
    before = len(weir.up.ledger)
    got = await ask(weir, history(1.6), stream=stream)
    error = got.json()["error"]
    assert (got.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "messages")
    asked = tokens(weir.up.ledger[-1].request)
    assert str(WINDOW) in error["message"] and str(asked) in error["message"]
    assert len(weir.up.ledger) == before + 1 and asked > WINDOW
    assert weir.app.metrics.compactions.children == {}
    await put(weir, {})
    assert done(await ask(weir, history(1.6), stream=False)) == "auto"


@pytest.mark.parametrize("said", [{"headers": {"x-weirgate-channel": "general"}}, {"metadata": {"channel": "general"}}])
async def test_a_conversation_in_a_channel_keeps_compacting_at_the_threshold_of_whoever_writes(
    weir: Wired, said: dict[str, Any]
) -> None:
    await put(weir, {"automatic": False, "threshold": 0.3}, user="ann")
    await put(weir, {"automatic": False, "threshold": 0.95}, user="bob")
    assert done(await ask(weir, history(0.5), user="ann")) == "none"
    # Other words: a request that was answered before is told as it was then.
    assert done(await ask(weir, history(0.5, "In here."), user="ann", **said)) == "auto"
    assert done(await ask(weir, history(0.5, "In here."), user="bob", **said)) == "none"
    assert done(await ask(weir, history(1.6), user="bob", **said)) in ("auto", "recovered")


async def test_a_command_compacts_with_automatic_compaction_off_and_its_notes_stay_in_use(weir: Wired) -> None:
    await put(weir, {"automatic": False})
    talk = [*history(0.6)[:-1], {"role": "user", "content": "/compact"}]
    got = await ask(weir, talk)
    assert done(got) == "manual"
    line = got.json()["choices"][0]["message"]
    assert line["content"].startswith("Conversation compacted")
    on = [*talk, {"role": "assistant", "content": line["content"]}, {"role": "user", "content": "Go on."}]
    assert done(await ask(weir, on)) == "auto"
    assert tokens(weir.up.ledger[-1].request) < 0.5 * WINDOW


async def test_operator_and_request_decide_the_mode_whatever_the_account_says(weir: Wired) -> None:
    await put(weir, {"threshold": 0.3})
    got = await ask(weir, history(0.5), {"x-weirgate-mode": "observe"})
    assert got.status_code == 200 and weir.up.ledger[-1].request.messages == history(0.5)
    off = await ask(weir, history(0.5), {"x-weirgate-mode": "off"})
    assert off.status_code == 200 and weir.up.ledger[-1].request.messages == history(0.5)


async def test_an_accounts_summary_model_writes_and_one_that_its_key_has_lost_leaves_it_to_the_operators(
    tmp_path: Path,
) -> None:
    (tmp_path / "default.yaml").write_text('match: "*"\nsummary: {model: costly}\n')
    async with wired(limited, **HOUSE, policies=str(tmp_path)) as weir:

        async def asked(opening: str) -> list[str]:
            before = len(weir.up.ledger)
            assert done(await ask(weir, history(1.3, opening), bearer(A2))) == "auto"
            return [entry.request.model for entry in weir.up.ledger[before:]]

        assert (await asked("first"))[0] == "costly"
        await put(weir, {"summary_model": "small"}, A2)
        chosen = await asked("second")
        assert chosen[0] == "small" and "costly" not in chosen
        # As it stands in the database of an operator who has since taken the model away.
        await weir.app.store.set_account("a", "k2", "ann", Account(summary_model="gone"), 1.0)
        before = len(weir.up.ledger)
        assert done(await ask(weir, history(1.3, "third"), bearer(A2), user="ann")) == "auto"
        assert weir.up.ledger[before].request.model == "costly"
