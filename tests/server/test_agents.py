"""Agents over HTTP: who may ask for one, who is told of one, and what changes while the server runs."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from proxy.app import Application
from proxy.configfile import ConfigError
from proxy.core.steps import Caller
from proxy.policies import shipped
from proxy.server.fence import Fence
from proxy.server.lifecycle import Drain
from proxy.settings import load
from proxy.store.sqlite import from_url
from tests.fakes import Script, ScriptedUpstream, SeenRequest, chat_reply
from tests.server.wired import ADMIN, BUILT_IN, Wired, bearer, wired

ACME, OTHER = "acme-client-secret-of-this-test", "other-client-secret-of-this-test"
KEYS = [
    {"id": "a", "tenant": "acme", "secret": ACME},
    {"id": "o", "tenant": "other", "secret": OTHER},
]
MODELS = {"fast": {"upstream": "main", "model": "gpt-4o"}, "mini": {"upstream": "main", "model": "gpt-4o-mini"}}
AGENTS = {
    "support": {"model": "fast", "instructions": "Be kind.", "visible_to": {"tenants": "acme"}},
    "annas": {"model": "mini", "visible_to": {"users": "anna"}},
    "everybodys": {"model": "mini"},
}


async def answer(request: SeenRequest, reply: Script) -> None:
    if request.path.endswith("/models"):
        await reply.json(200, {"object": "list", "data": [{"id": name} for name in ("gpt-4o", "support", "zeta")]})
    else:
        await reply.json(200, chat_reply("Hello."))


async def names(weir: Wired, secret: str) -> list[str]:
    got = await weir.client.get("/v1/models", headers=bearer(secret))
    assert got.status_code == 200
    return [entry["id"] for entry in got.json()["data"]]


async def ask(weir: Wired, model: str, secret: str, **more: Any) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": "Hi."}], **more}
    return await weir.client.post("/v1/chat/completions", json=body, headers=bearer(secret))


def sent(weir: Wired) -> Any:
    """The last body that went upstream."""
    return json.loads(weir.up.ledger[-1].request.body)


# -- the list --------------------------------------------------------------------------------------------------------


async def test_agents_are_listed_beside_the_models_with_the_window_of_theirs() -> None:
    async with wired(answer, models=MODELS, agents=AGENTS, keys=KEYS) as weir:
        got = await weir.client.get("/v1/models", headers=bearer(ACME))
        listed = {entry["id"]: entry for entry in got.json()["data"]}
        assert [*listed] == ["everybodys", "support", "fast", "mini"]
        assert listed["support"] == {
            "id": "support",
            "object": "model",
            "created": 0,
            "owned_by": "weirgate",
            "context_length": 128_000,
            "max_model_len": 128_000,
        }


async def test_an_agent_of_some_end_users_is_listed_for_them_whatever_else_is_asked() -> None:
    async with wired(answer, models=MODELS, agents=AGENTS, keys=KEYS) as weir:
        for query, told in (("user=anna&limit=5", True), ("user=bert", False), ("limit=5", False)):
            got = await weir.client.get(f"/v1/models?{query}", headers=bearer(ACME))
            assert ("annas" in [entry["id"] for entry in got.json()["data"]]) is told
        refused = await weir.client.get("/v1/models?user=a&user=b", headers=bearer(ACME))
        assert refused.status_code == 400


async def test_an_agent_that_is_not_for_the_caller_is_never_listed() -> None:
    async with wired(answer, models=MODELS, agents=AGENTS, keys=KEYS) as weir:
        assert await names(weir, OTHER) == ["everybodys", "fast", "mini"]


async def test_a_key_sees_only_the_agents_it_may_ask_for() -> None:
    keys = [{"id": "a", "tenant": "acme", "secret": ACME, "models": ["supp*"]}]
    async with wired(answer, models=MODELS, agents=AGENTS, keys=keys) as weir:
        assert await names(weir, ACME) == ["support"]


async def test_an_upstreams_model_of_an_agents_name_is_listed_to_those_who_cannot_see_the_agent() -> None:
    models = {"fast": {"upstream": "main", "model": "gpt-4o"}, "*": {"upstream": "main"}}
    async with wired(answer, models=models, agents={"support": AGENTS["support"]}, keys=KEYS) as weir:
        assert await names(weir, ACME) == ["support", "fast", "gpt-4o", "zeta"]
        assert await names(weir, OTHER) == ["fast", "gpt-4o", "support", "zeta"]
        for secret, owner in ((ACME, "weirgate"), (OTHER, "main")):
            got = await weir.client.get("/v1/models", headers=bearer(secret))
            assert {entry["id"]: entry["owned_by"] for entry in got.json()["data"]}["support"] == owner


# -- asking for one --------------------------------------------------------------------------------------------------


async def test_an_agent_leads_to_its_model_and_metrics_which_are_open_to_all_see_the_model_alone() -> None:
    async with wired(answer, models=MODELS, agents=AGENTS, keys=KEYS) as weir:
        assert (await ask(weir, "support", ACME)).status_code == 200
        assert sent(weir)["model"] == "gpt-4o"
        assert "Be kind." in json.dumps(sent(weir)["messages"])
        (row,) = await weir.settled()
        assert (row.asked_model, row.model, row.tenant) == ("support", "gpt-4o", "acme")
        seen = (await weir.client.get("/metrics")).text
        assert 'model="fast"' in seen
        assert "support" not in seen


async def test_an_agent_that_is_not_for_the_caller_answers_exactly_as_a_name_that_does_not_exist() -> None:
    async with wired(answer, models=MODELS, agents=AGENTS, keys=KEYS) as weir:
        hidden, missing = await ask(weir, "support", OTHER), await ask(weir, "missing", OTHER)
        assert (hidden.status_code, hidden.json()) == (missing.status_code, missing.json())
        assert hidden.status_code == 404
        assert weir.up.ledger == []


async def test_an_agent_for_some_end_users_is_there_for_them_alone() -> None:
    async with wired(answer, models=MODELS, agents=AGENTS, keys=KEYS) as weir:
        assert (await ask(weir, "annas", ACME, user="anna")).status_code == 200
        assert sent(weir)["model"] == "gpt-4o-mini"
        assert [(await ask(weir, "annas", ACME, **user)).status_code for user in ({}, {"user": "bob"})] == [404, 404]


async def test_a_hidden_agents_name_is_the_models_that_a_pattern_would_make_of_it() -> None:
    models = {"fast": {"upstream": "main", "model": "gpt-4o"}, "*": {"upstream": "main"}}
    async with wired(answer, models=models, agents={"support": AGENTS["support"]}, keys=KEYS) as weir:
        assert (await ask(weir, "support", OTHER)).status_code == 200
        assert sent(weir)["model"] == "support"
        assert "Be kind." not in json.dumps(sent(weir)["messages"])


async def test_a_key_needs_the_agents_name_and_not_the_models_behind_it() -> None:
    keys = [
        {"id": "a", "tenant": "acme", "secret": ACME, "models": ["support"]},
        {"id": "b", "tenant": "acme", "secret": OTHER, "models": ["fast"]},
    ]
    async with wired(answer, models=MODELS, agents=AGENTS, keys=keys) as weir:
        assert [(await ask(weir, model, ACME)).status_code for model in ("support", "fast")] == [200, 403]
        assert [(await ask(weir, model, OTHER)).status_code for model in ("support", "fast")] == [403, 200]


async def test_an_agent_makes_no_embeddings() -> None:
    async with wired(answer, models=MODELS, agents=AGENTS, keys=KEYS) as weir:
        body = {"model": "support", "input": "x"}
        got = await weir.client.post("/v1/embeddings", json=body, headers=bearer(ACME))
        assert (got.status_code, weir.up.ledger) == (404, [])


async def test_a_summary_model_is_never_an_agent() -> None:
    async with wired(answer, models=MODELS, agents=AGENTS, keys=KEYS) as weir:
        assert weir.app.places.destination("support") is None


async def test_one_destination_is_made_for_an_agent_and_a_tenant() -> None:
    async with wired(answer, models=MODELS, agents=AGENTS, keys=KEYS) as weir:
        places, ann, bob = weir.app.places, Caller(tenant="acme", key="a"), Caller(tenant="acme", key="b")
        first = places.destination_of("everybodys", ann)
        assert first is not None and first is places.destination_of("everybodys", bob)
        assert (first.pattern, first.agent and first.agent.name) == ("mini", "everybodys")
        plain = places.destination("mini")
        assert plain is not None and (first.target, first.policy) == (plain.target, plain.policy)


# -- efforts ---------------------------------------------------------------------------------------------------------


async def test_the_effort_of_an_agent_is_told_as_its_model_takes_it_or_not_at_all() -> None:
    models = {"deep": {"upstream": "main", "model": "gpt-5.1"}, **MODELS}
    agents = {"thinks": {"model": "deep", "effort": "xhigh"}, "cannot": {"model": "fast", "effort": "xhigh"}}
    async with wired(answer, models=models, agents=agents, policies=str(shipped())) as weir:
        for model, more, told in (
            ("thinks", {}, "high"),
            ("thinks", {"reasoning_effort": "minimal"}, "low"),
            ("cannot", {}, None),
            ("cannot", {"reasoning_effort": "low"}, None),
            ("deep", {}, None),
            ("deep", {"reasoning_effort": "minimal"}, "minimal"),
        ):
            assert (await ask(weir, model, "", **more)).status_code == 200
            assert sent(weir).get("reasoning_effort") == told, (model, more)


# -- while all runs --------------------------------------------------------------------------------------------------


@asynccontextmanager
async def served(folder: Path, text: str, **more: str) -> AsyncIterator[Wired]:
    """An application whose weirgate.yaml lies in `folder`."""
    (folder / "weirgate.yaml").write_text(f"models: {{fast: {{upstream: main, model: gpt-4o}}}}\n{text}")
    async with ScriptedUpstream(answer) as up:
        flags = {"upstreams.main.base_url": up.url, "policies": str(BUILT_IN), "admin.secret": ADMIN, **more}
        app = Application(load(folder / "weirgate.yaml", {}, flags), Drain(), store=from_url("sqlite://"))
        await app.start()
        try:
            transport = httpx.ASGITransport(Fence(app))
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8400") as client:
                yield Wired(app=app, up=up, client=client)
        finally:
            await app.stop()


async def test_prompts_and_agents_that_change_are_taken_and_mistakes_keep_the_old_and_say_so(tmp_path: Path) -> None:
    (tmp_path / "p.md").write_text("Be kind.")
    text = "agents: {support: {model: fast, instructions: {file: p.md}}}\nbase_prompt: {file: p.md}\n"

    async def reloaded() -> Any:
        return (await weir.client.post("/v1/weirgate/reload", headers=bearer(ADMIN))).json()

    async def told(model: str) -> str:
        got = await ask(weir, model, "")
        return json.dumps(sent(weir)["messages"]) if got.status_code == 200 else str(got.status_code)

    async def fresh() -> bool:
        return "weirgate_config_last_reload_successful 1" in (await weir.client.get("/metrics")).text

    async with served(tmp_path, text) as weir:
        assert (await told("support")).count("Be kind.") == 2 and (await told("fast")).count("Be kind.") == 1
        (tmp_path / "p.md").write_text("Be kinder.")
        (tmp_path / "agents").mkdir()
        (tmp_path / "agents" / "brief.yaml").write_text("model: fast\ninstructions: Be brief.")
        assert await reloaded() == {"taken": True, "problems": []}
        assert (await told("support")).count("Be kinder.") == 2 and (await told("fast")).count("Be kinder.") == 1
        assert "Be brief." in await told("brief") and await fresh()
        (tmp_path / "agents" / "brief.yaml").write_text("modle: fast\nmodel: fast")
        answer = await reloaded()
        assert (
            answer["taken"] is False
            and 'brief.yaml:1: modle: unknown key; did you mean "model"?' in answer["problems"][0]
        )
        assert "Be brief." in await told("brief") and not await fresh()
        (tmp_path / "agents" / "brief.yaml").unlink()
        assert (await reloaded())["taken"] is True
        assert await told("brief") == "404" and await fresh()


async def test_policies_and_skills_that_change_reach_the_agents(tmp_path: Path) -> None:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "default.yaml").write_text("window: 8192\n")
    (tmp_path / "skills" / "shared").mkdir(parents=True)
    text = "agents: {support: {model: fast, skills: tone}}\nskills: {folders: skills}\n"
    caller = Caller(tenant="t", key="k")
    async with served(tmp_path, text, policies=str(tmp_path / "policies")) as weir:

        def now() -> tuple[int | None, list[str]]:
            led = weir.app.places.destination_of("support", caller)
            assert led is not None
            return led.policy.window, [*led.shelf]

        assert now() == (8192, [])
        (tmp_path / "policies" / "default.yaml").write_text("window: 4096\n")
        skill = tmp_path / "skills" / "shared" / "tone"
        skill.mkdir()
        (skill / "SKILL.md").write_text("---\nname: tone\ndescription: Always.\n---\nPlainly.\n")
        await weir.app._reload_all()
        assert now() == (4096, ["tone"])


async def test_an_agent_that_was_read_again_is_the_new_one_at_once(tmp_path: Path) -> None:
    (tmp_path / "p.md").write_text("Old.")
    caller = Caller(tenant="t", key="k")
    async with served(tmp_path, "agents: {support: {model: fast, instructions: {file: p.md}}}\n") as weir:
        assert weir.app.places.destination_of("support", caller) is not None
        (tmp_path / "p.md").write_text("New.")
        weir.app.agents.reload()  # by its thread; the loop has not been told yet
        led = weir.app.places.destination_of("support", caller)
        assert led is not None and led.agent is not None and led.agent.instructions == "New."


async def test_a_mistake_in_one_is_not_forgotten_when_another_is_taken(tmp_path: Path) -> None:
    (tmp_path / "p.md").write_text("Ours.")
    async with served(tmp_path, "base_prompt: {file: p.md}\n") as weir:
        (tmp_path / "p.md").write_text("")
        assert (await weir.client.post("/v1/weirgate/reload", headers=bearer(ADMIN))).json()["taken"] is False
        await weir.app._reload("policies", weir.app.watch.reload)
        assert weir.app.metrics.reload_ok.value == 0.0


async def test_a_look_around_takes_what_changed(tmp_path: Path) -> None:
    async with served(tmp_path, "") as weir:
        assert (await ask(weir, "brief", "")).status_code == 404
        (tmp_path / "agents").mkdir()
        (tmp_path / "agents" / "brief.yaml").write_text("model: fast")
        assert await weir.app._reload("agents", weir.app.agents.poll) == ()
        assert (await ask(weir, "brief", "")).status_code == 200


@pytest.mark.parametrize("text", ["base_prompt: {file: gone.md}\n", "skills: {folders: gone}\n"])
def test_a_server_does_not_start_without_what_it_was_promised(tmp_path: Path, text: str) -> None:
    (tmp_path / "weirgate.yaml").write_text(f'upstreams: {{main: {{base_url: "http://127.0.0.1:1/v1"}}}}\n{text}')
    with pytest.raises(ConfigError, match="gone"):
        Application(load(tmp_path / "weirgate.yaml", {}), Drain(), store=from_url("sqlite://"))
