"""The route that explains: who may ask, what is told, that the body is the one a call sends, that no trace is left."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import pytest_asyncio

from proxy.app import Application
from proxy.core.errors import StoreUnavailable
from proxy.core.explanation import Explanation
from proxy.server.lifecycle import Drain
from proxy.settings import load
from proxy.store.rows import LATELY
from tests.fakes import Script, ScriptedUpstream, SeenRequest, chat_reply, usage
from tests.server.wired import ADMIN, BUILT_IN, Wired, bearer, wired

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT = "/v1/chat/completions"
EXPLAIN = "/v1/weirgate/explain"
A, B = "client-secret-of-tenant-a", "client-secret-of-tenant-b"
WORDS = "the quick brown fox goes on and on "
WINDOW = 8192
SKILLS = {
    "a/tone": ("When the tone matters.", "Be warm and short.", ""),
    "a/hidden": ("For managers.", "Secret rules.", ""),
    "shared/refund": ("When money goes back.", "Refund within 14 days.", ""),
}
AGENTS: Mapping[str, Any] = {
    "support": {
        "model": "known",
        "instructions": "Help as {agent}.",
        "skills": ["tone", "refund"],
        "effort": "medium",
        "visible_to": {"tenants": ["a"]},
    },
    "strict": {"model": "known", "instructions": "Help.", "client_system": "refuse"},
}


async def answering(request: SeenRequest, reply: Script) -> None:
    size = sum(len(json.dumps(message)) for message in request.messages) // 4
    await reply.json(200, chat_reply("Done.", usage=usage(size, 3)))


def skills(folder: Path) -> Path:
    for name, (when, text, more) in SKILLS.items():
        home = folder / name
        home.mkdir(parents=True)
        slug = name.rpartition("/")[2]
        (home / "SKILL.md").write_text(f"---\nname: {slug}\ndescription: {when}\n{more}---\n{text}\n")
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def weir(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Wired]:
    async with wired(
        answering,
        keys=[
            {"id": "k", "tenant": "a", "secret": A, "models": ["known", "support", "strict", "small"]},
            {"id": "k2", "tenant": "b", "secret": B},
        ],
        admin={"secret": ADMIN},
        models={name: {"upstream": "main"} for name in ("known", "small")}
        | {"alias": {"upstream": "main", "model": "real"}},
        base_prompt="You work for {tenant}. Today is {date}.",
        skills={"folders": [str(skills(tmp_path_factory.mktemp("skills")))]},
        agents=AGENTS,
        window=WINDOW,
    ) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bare() -> AsyncIterator[Wired]:
    """Without keys, prompts and agents: what passes is the client's."""
    async with wired(answering, window=WINDOW) as running:
        yield running


def history(turns: int, size: int = 40, last: str = "And now?") -> list[dict[str, Any]]:
    talk: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}]
    for turn in range(turns):
        talk.append({"role": "user", "content": f"Question {turn}: {WORDS * size}"})
        talk.append({"role": "assistant", "content": f"Answer {turn}: {WORDS * size}"})
    return [*talk, {"role": "user", "content": last}]


async def post(weir: Wired, path: str, value: Any, secret: str | None = A, **headers: str) -> httpx.Response:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    sent = {"content-type": "application/json", **(bearer(secret) if secret else {}), **named}
    return await weir.client.post(path, content=body, headers=sent)


async def explained(weir: Wired, value: Any, query: str = "", secret: str | None = A, **headers: str) -> dict[str, Any]:
    got = await post(weir, EXPLAIN + query, value, secret, **headers)
    assert got.status_code == 200, got.text
    found: dict[str, Any] = got.json()
    assert found["object"] == "explanation"
    msgspec.convert({**found, "effort": None}, Explanation)  # what the route tells is the core's value, whole
    return found


# -- what is told -----------------------------------------------------------------------------------------------------


async def test_the_layers_are_told_with_what_they_take(weir: Wired) -> None:
    asked = {"model": "support", "messages": history(2, last="/tone And now?"), "user": "ann", "max_tokens": 500}
    found = await explained(weir, asked)
    parts = {part["layer"]: part for part in found["parts"]}
    assert [*parts][:6] == ["base", "conventions", "instructions", "client_system", "skills", "catalogue"]
    assert sum(part["tokens"] for part in found["parts"]) == found["tokens"] < found["held"]["trigger"]
    assert (found["agent"], found["upstream_model"], found["policy"]) == (True, "known", "default")
    assert found["held"]["reserve"] == 500 and found["effort"]["members"] == {"reasoning_effort": "medium"}
    assert found["tools"] == {"client": 0, "own": ["load_skill"], "why": ""} and "body" not in found


async def test_another_window_and_another_policy_can_be_asked_about(weir: Wired) -> None:
    asked = {"model": "known", "messages": history(20)}
    assert (await explained(weir, asked))["decision"] == "made"
    wide = await explained(weir, asked, "?window=200000")
    assert (wide["decision"], wide["held"]["window"], wide["held"]["source"]) == ("fits", 200_000, "asked")
    policy = json.dumps({"match": "*", "compact_at": 0.5, "target": 0.3})
    other = await explained(weir, asked, f"?policy={policy}")
    assert (other["held"]["trigger"], other["held"]["window"], other["policy"]) == (WINDOW // 2, WINDOW, "another")


# -- who may ask ------------------------------------------------------------------------------------------------------

REFUSED: Mapping[str, tuple[Any, str | None]] = {
    "no key": ({"model": "known", "messages": history(0)}, None),
    "an unknown key": ({"model": "known", "messages": history(0)}, "wg-unknown"),
    "the operator's secret": ({"model": "known", "messages": history(0)}, ADMIN),
    "an unknown model": ({"model": "nothing", "messages": history(0)}, A),
    "a model that the key may not use": ({"model": "alias", "messages": history(0)}, A),
    "another tenant's agent": ({"model": "support", "messages": history(0)}, B),
    "an unknown skill": ({"model": "support", "messages": history(0, last="/nothing Hi.")}, A),
    "a system message where none is taken": ({"model": "strict", "messages": history(0)}, A),
    "not JSON": (b"{", A),
    "no messages": ({"model": "known"}, A),
    "a routing member": ({"model": "known", "messages": history(0), "api_base": "http://127.0.0.1:1"}, A),
    "a wrong tool result": ({"model": "known", "messages": [{"role": "tool", "content": "x"}]}, A),
}


@pytest.mark.parametrize("case", [*REFUSED])
async def test_it_refuses_what_a_call_would_be_refused(weir: Wired, case: str) -> None:
    value, secret = REFUSED[case]
    called, asked = await post(weir, CHAT, value, secret), await post(weir, EXPLAIN, value, secret)
    assert called.status_code >= 400
    assert (asked.status_code, asked.json()) == (called.status_code, called.json())


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("?body=yes", "body"),
        ("?window=63", "window"),
        ("?window=many", "window"),
        ("?window=99999999999", "window"),
        ("?policy=[]", "policy"),
        ("?policy={", "policy"),
        ('?policy={"compact_at": 7}', "policy"),
        ('?policy={"compact_at": 0.5, "target": 0.9}', "policy"),
        ('?policy={"treshold": 0.5}', "policy"),
        ("?other=1", "other"),
        ("?body=true&body=true", "body"),
        ("?body=%ff", None),
    ],
)
async def test_a_wrong_question_is_a_400(weir: Wired, query: str, param: str | None) -> None:
    got = await post(weir, EXPLAIN + query, {"model": "known", "messages": history(0)})
    assert (got.status_code, got.json()["error"]["param"]) == (400, param)


async def test_only_a_post_asks(weir: Wired) -> None:
    got = await weir.client.get(EXPLAIN, headers=bearer(A))
    assert (got.status_code, got.headers["allow"]) == (405, "POST")


# -- the body ---------------------------------------------------------------------------------------------------------

TOOLS = [{"type": "function", "function": {"name": "grep", "parameters": {"type": "object"}}}]
OPEN_LOOP = [
    *history(1)[:-1],
    {"role": "user", "content": "Look."},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "grep", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "c", "content": "found"},
]
BODIES: Mapping[str, dict[str, Any]] = {
    "plain": {"model": "known", "messages": history(2)},
    "alias and stream": {
        "model": "alias",
        "messages": history(1),
        "stream": False,
        "temperature": 0.5,
        "unknown": {"a": 1},
    },
    "tools in an open loop": {"model": "known", "messages": OPEN_LOOP, "tools": TOOLS},
    "repaired": {"model": "known", "messages": [*history(1), {"role": "tool", "tool_call_id": "x", "content": "lost"}]},
    "compacted": {"model": "known", "messages": history(20), "max_tokens": 900},
    "an agent": {"model": "support", "messages": history(2)},
    "an agent with a selected skill": {
        "model": "support",
        "messages": history(2, last="/tone /refund Hi."),
        "user": "ann",
    },
    "an agent, compacted": {"model": "support", "messages": history(20), "tools": TOOLS, "user": "bob"},
    "an agent with an effort and a form": {
        "model": "support",
        "messages": history(1),
        "reasoning_effort": "high",
        "response_format": {"type": "json_object"},
    },
}


@pytest.mark.parametrize("case", [*BODIES])
async def test_the_body_is_byte_for_byte_what_a_call_then_sends(weir: Wired, bare: Wired, case: str) -> None:
    asked = BODIES[case]
    houses = [(weir, B if asked["model"] == "alias" else A)]
    houses += [] if asked["model"] in AGENTS else [(bare, A)]
    for house, secret in houses:
        raw = json.dumps(asked, indent=1).encode()
        told = await explained(house, raw, "?body=true", secret)
        before = len(house.up.ledger)
        assert (await post(house, CHAT, raw, secret)).status_code == 200
        (entry,) = house.up.ledger[before:]
        assert told["body"].encode() == entry.request.body
        assert (told["compaction"] is not None) is ("compacted" in case)


async def test_it_follows_a_conversation_from_turn_to_turn(weir: Wired) -> None:
    talk = history(14, last="/tone First.")
    known = None
    for turn in range(4):
        asked = {"model": "support", "messages": talk, "metadata": {"session_id": "followed"}}
        raw = json.dumps(asked).encode()
        told = await explained(weir, raw, "?body=true")
        got = await post(weir, CHAT, raw)
        assert told["body"].encode() == weir.up.ledger[-1].request.body
        assert (told["conversation"], told["label"]) == (known, "followed")
        known = got.headers["x-weirgate-conversation"]
        again = await explained(weir, raw, "?body=true")
        assert (again["decision"], again["body"]) == ("again", told["body"])
        assert told["tokens"] == int(got.headers["x-weirgate-context"].partition("tokens=")[2].partition(";")[0])
        talk = [
            *talk,
            {"role": "assistant", "content": "Done."},
            {"role": "user", "content": f"More {turn}. " + WORDS * 90},
        ]


async def test_a_stream_is_told_with_what_is_asked_of_it(bare: Wired) -> None:
    told = await explained(bare, {"model": "m", "messages": history(0), "stream": True}, "?body=true")
    assert json.loads(told["body"])["stream_options"] == {"include_usage": True}


async def test_what_no_model_would_see_has_no_body(weir: Wired) -> None:
    told = await explained(weir, {"model": "known", "messages": history(4, last="/compact")}, "?body=true")
    assert (told["decision"], told["body"], told["parts"]) == ("command", None, [])


async def test_the_header_that_turns_the_gateway_off_counts_here_too(bare: Wired) -> None:
    raw = json.dumps({"model": "known", "messages": history(20, size=41)}).encode()
    for mode, decision in (("off", "relayed"), ("observe", "made")):
        told = await explained(bare, raw, "?body=true", None, x_weirgate_mode=mode)
        assert (told["mode"], told["decision"], told["body"].encode()) == (mode, decision, raw)


async def test_the_operators_prompts_are_not_asked_away_by_a_header(weir: Wired) -> None:
    told = await explained(weir, {"model": "known", "messages": history(1)}, "?body=true", x_weirgate_mode="off")
    assert told["mode"] == "enforce"
    assert "You work for a." in told["body"]


# -- nothing is left behind -------------------------------------------------------------------------------------------


def contents(path: Path) -> dict[str, list[Any]]:
    """Everything that the database holds."""
    with closing(sqlite3.connect(path)) as connection:
        tables = [name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")]
        return {table: sorted(map(repr, connection.execute(f"select * from {table}"))) for table in tables}


async def test_nothing_is_sent_stored_or_marked_as_used(tmp_path: Path) -> None:
    file = tmp_path / "weirgate.db"
    known = {"model": "support", "messages": history(20), "user": "ann"}
    async with ScriptedUpstream(answering) as up:
        given = {
            "upstreams.main.base_url": up.url,
            "policies": str(BUILT_IN),
            "window": WINDOW,
            "store.url": f"sqlite:///{file}",
        }
        given |= {"agents": {"support": {"model": "known", "skills": ["*"]}}, "models": {"known": {"upstream": "main"}}}
        given["skills"] = {"folders": [str(skills(tmp_path / "skills"))]}
        settings = load(None, {}, given)
        for number in range(2):
            app = Application(settings, Drain())
            await app.start()
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8400") as client:
                weir = Wired(app=app, up=up, client=client)
                if number == 0:
                    await post(weir, CHAT, known)
                else:
                    # Long after the first call: whatever counts as use would be marked now.
                    assert app._gateway is not None
                    app._gateway.wall = lambda: 4e9 + LATELY
                    for asked in (known, {**known, "messages": history(21)}, {**known, "messages": history(3)}):
                        assert (await explained(weir, asked, "?body=true"))["tokens"] > 0
                    told = await explained(weir, {**known, "messages": history(20, last="/compact")})
                    assert told["decision"] == "command" and told["compaction"] is not None
                    assert app._gateway.leases.held == 0
            await app.stop()
            if number == 0:
                before = contents(file)
                assert before["usage"] and before["compaction"] and len(up.ledger) == 1
        assert contents(file) == before and len(up.ledger) == 1


async def test_a_lost_store_is_a_503_as_for_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    async def lost(*_: Any) -> Any:
        raise StoreUnavailable("The store is away.")

    asked = {"model": "m", "messages": history(2)}
    for required, status in ((True, 503), (False, 200)):
        async with wired(answering, store__required=required) as weir:
            monkeypatch.setattr(type(weir.app.store), "recall", lost)
            assert (await post(weir, EXPLAIN, asked)).status_code == status
            assert (await post(weir, CHAT, asked)).status_code == status
            monkeypatch.undo()
