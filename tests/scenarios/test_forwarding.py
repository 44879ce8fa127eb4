"""What the provider is sent: the client's own bytes where nothing had to change, and in the modes that only watch."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import usage
from tests.scenarios.acts import HELLO, refusing, weir, well
from tests.scenarios.gate import dialogue, system, user

# -- modes and bytes -------------------------------------------------------------------------------------------------

ODD = (
    b'{ "model" : "scripted",\n "messages":[ {"role":"user","content":"caf\\u00e9 \\ud83d", "x_mark" : [1, {"a":null}]}'
    b' ], "temperature":1e0 ,"x_unknown":{"deep":[1,2]}, "seed" :7,"stop":null }'
)


async def test_an_untouched_request_is_forwarded_byte_for_byte() -> None:
    async with weir(well, window=8_000) as (opened, up):
        assert (await opened.send(ODD)).status == 200
        assert up.ledger[0].request.body == ODD


async def test_what_the_gateway_does_not_know_survives_a_change_of_something_else() -> None:
    async with weir(well) as (opened, up):
        body = ODD.replace(b'"seed"', b'"stream": true, "seed"')
        answer = await opened.send(body)
        sent = up.ledger[0].request.json
    assert answer.done
    assert sent.pop("stream_options") == {"include_usage": True}
    assert sent == json.loads(body)
    assert b'{"role":"user","content":"caf\\u00e9 \\ud83d", "x_mark" : [1, {"a":null}]}' in up.ledger[0].request.body


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"x_other": 1}])
async def test_usage_is_asked_for_and_its_frame_dropped_where_the_client_did_not_ask(options: Any) -> None:
    more = {} if options is None else {"stream_options": options}
    async with weir(well) as (opened, up):
        answer = await opened.ask(HELLO, stream=True, **more)
        row = (await opened.rows())[0]
    assert up.ledger[0].request.json["stream_options"]["include_usage"] is True
    assert (answer.usages, answer.done, answer.finish) == ([], True, "stop")
    assert (row.input, row.output, row.estimated) == (11, 3, False)


async def test_usage_that_the_client_asked_for_is_passed_on_as_it_came() -> None:
    async with weir(well) as (opened, up):
        body = {"model": "scripted", "messages": HELLO, "stream": True, "stream_options": {"include_usage": True}}
        answer = await opened.send(body)
        assert up.ledger[0].request.body == json.dumps(body).encode()
    assert answer.usages == [usage(11, 3)]


BIG = [system("Be brief."), *dialogue(40, words=80), user("And now?")]


@pytest.mark.parametrize("how", ["header", "policy"])
@pytest.mark.parametrize("mode", ["observe", "off"])
async def test_in_the_modes_that_only_watch_the_provider_sees_the_clients_bytes(
    mode: str, how: str, tmp_path: Path
) -> None:
    body = json.dumps({"model": "scripted", "messages": BIG}, indent=1).encode()
    policy = f"mode: {mode}\n" if how == "policy" else None
    headers = {"x-weirgate-mode": mode} if how == "header" else {}
    async with weir(well, window=4_000, policy=policy, folder=tmp_path) as (opened, up):
        answer = await opened.send(body, headers=headers)
        row = (await opened.rows())[0]
        assert up.ledger[0].request.body == body
    assert answer.status == 200
    assert (row.mode, row.status, row.input) == (mode, "ok", 11)
    assert (answer.compaction, row.projected is None) == (("auto", False) if mode == "observe" else ("none", True))


@pytest.mark.parametrize("mode", ["observe", "off"])
async def test_in_the_modes_that_only_watch_an_overflow_is_told_and_not_cured(mode: str) -> None:
    async with weir(refusing(400, message="prompt is too long: 9000 tokens > 4000 maximum"), window=4_000) as pair:
        opened, up = pair
        answer = await opened.ask(BIG, headers={"x-weirgate-mode": mode})
        assert (answer.status, answer.code, len(up.ledger)) == (400, "context_length_exceeded", 1)


async def test_a_request_may_not_ask_for_more_than_the_policy_does(tmp_path: Path) -> None:
    async with weir(well, window=4_000, policy="mode: observe\n", folder=tmp_path) as (opened, up):
        await opened.ask(BIG, headers={"x-weirgate-mode": "enforce"})
        assert up.ledger[0].request.messages == BIG


# -- bad input -------------------------------------------------------------------------------------------------------

BAD = [b"", b"{", b"[]", b"null", b'{"model":"m"}', b'{"messages":[]}', b'{"model":"m","messages":[]}', b"\xff\xfe{}"]
BAD += [b'{"model":"m","messages":[{"role":"boss","content":"x"}]}', b'{"model":"m","messages":[{"content":"x"}]}']
BAD += [b'{"model":1,"messages":[{"role":"user","content":"x"}]}', b'{"model":"m","messages":{"role":"user"}}']
BAD += [b'{"model":"m","messages":[{"role":"user","content":"x"}],"base_url":"http://127.0.0.1:1"}']
BAD += [b'{"model":"m","messages":[{"role":"user","content":"x"}],"n":0}', b"[" * 100_000, b'{"a":' * 50_000]


@pytest.mark.parametrize("body", BAD, ids=lambda body: re.sub(rb"[^ -~]", b"?", body)[:40].decode())
async def test_what_cannot_be_served_is_a_4xx_and_reaches_nobody(body: bytes) -> None:
    async with weir(well) as (opened, up):
        answer = await opened.send(body)
        assert 400 <= answer.status < 500
        assert set(answer.json["error"]) == {"message", "type", "param", "code"}
        assert len(up.ledger) == 0
