"""Tenants never meet: over every route, what belongs to another tenant is answered exactly as what does not exist.

The matrix is made from the application's own routes: one that is not listed here fails the first test.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from proxy.app import Application
from tests.fakes import Script, SeenRequest, chat_reply
from tests.server.wired import Wired, bearer, wired

ACME, OTHER = "acme-client-secret-of-this-test", "other-client-secret-of-this-test"
KEYS = [{"id": "acme-key", "tenant": "acme", "secret": ACME}, {"id": "o", "tenant": "other", "secret": OTHER}]
AGENTS = {
    "acmes": {"model": "fast", "instructions": "Be kind.", "visible_to": {"tenants": "acme"}, "skills": "*"},
    "everybodys": {"model": "fast", "skills": "*"},
}
OWN = {
    "tenant": "acme",
    "agent": "acmes",
    "skill": "acmes-rules",
    "key": "acme-key",
    "user": "anna",
    "label": "label-of-acme",
}
MISSING = {
    "tenant": "nowhere",
    "agent": "nobody",
    "skill": "no-such-rules",
    "key": "no-key",
    "user": "nobody",
    "label": "no-label",
}

Request = dict[str, Any]
Make = Callable[[str], Request]


def chat(model: str, text: str = "Hi.", **more: Any) -> Request:
    return {"json": {"model": model, "messages": [{"role": "user", "content": text}]}, **more}


PROBES: Mapping[tuple[str, str], Mapping[str, Make]] = {
    ("POST", "/v1/chat/completions"): {
        "agent": lambda name: chat(name),
        "skill": lambda name: chat("everybodys", f"/{name} please"),
        "label": lambda name: chat("fast", headers={"x-session-id": name}),
        "user": lambda name: {"json": {**chat("fast")["json"], "user": name}},
        "kept": lambda name: {"json": {**chat("fast")["json"], "conversation": name}},
    },
    ("GET", "/v1/conversations"): {
        "user": lambda name: {"params": {"user": name}},
        "kept": lambda name: {"params": {"after": name}},
    },
    ("POST", "/v1/conversations"): {},
    ("GET", "/v1/conversations/{id}"): {"kept": lambda name: {"id": name}},
    ("POST", "/v1/conversations/{id}"): {"kept": lambda name: {"id": name, "json": {"metadata": {}}}},
    ("DELETE", "/v1/conversations/{id}"): {"kept": lambda name: {"id": name}},
    ("GET", "/v1/conversations/{id}/items"): {"kept": lambda name: {"id": name}},
    ("POST", "/v1/conversations/{id}/items"): {
        "kept": lambda name: {"id": name, "json": {"items": [{"role": "user", "content": "Hi."}]}}
    },
    ("GET", "/v1/conversations/{id}/items/{item}"): {"kept": lambda name: {"id": name}},
    ("POST", "/v1/conversations/{id}/rewind"): {"kept": lambda name: {"id": name, "json": {"turns": 1}}},
    ("POST", "/v1/conversations/{id}/cancel"): {"kept": lambda name: {"id": name}},
    ("POST", "/v1/conversations/{id}/compact"): {"kept": lambda name: {"id": name, "json": {}}},
    ("POST", "/v1/weirgate/explain"): {
        "agent": lambda name: chat(name),
        "skill": lambda name: chat("everybodys", f"/{name} please"),
    },
    ("POST", "/v1/embeddings"): {"agent": lambda name: {"json": {"model": name, "input": "x"}}},
    ("GET", "/v1/models"): {},
    ("GET", "/v1/weirgate/settings"): {"user": lambda name: {"params": {"user": name}}},
    ("PUT", "/v1/weirgate/settings"): {"agent": lambda name: {"json": {"summary_model": name}}},
    ("GET", "/v1/weirgate/conversations/{id}/traces"): {"conversation": lambda name: {"id": name}},
    ("GET", "/v1/weirgate/usage"): {},
    ("GET", "/v1/weirgate/keys"): {},
    ("POST", "/v1/weirgate/keys"): {"key": lambda name: {"json": {"id": name}}},
    ("POST", "/v1/weirgate/keys/{tenant}/{id}/revoke"): {
        "key": lambda name: {"id": name, "tenant": "other"},
        "tenant": lambda name: {"id": "o", "tenant": name},
    },
    ("GET", "/v1/weirgate/keys/{tenant}/{id}"): {
        "key": lambda name: {"id": name, "tenant": "other"},
        "tenant": lambda name: {"id": "o", "tenant": name},
    },
    ("PATCH", "/v1/weirgate/keys/{tenant}/{id}"): {
        "key": lambda name: {"id": name, "tenant": "other", "json": {"limits": {}}},
        "tenant": lambda name: {"id": "o", "tenant": name, "json": {"limits": {}}},
    },
    ("GET", "/v1/weirgate/conversations"): {"tenant": lambda name: {"params": {"tenant": name}}},
    ("GET", "/v1/weirgate/conversations/{id}"): {
        "conversation": lambda name: {"id": name},
        "tenant": lambda name: {"params": {"tenant": name}},
    },
    ("GET", "/v1/weirgate/upstreams"): {},
    ("GET", "/v1/weirgate/config"): {},
    ("PATCH", "/v1/weirgate/tenants/{tenant}"): {
        "tenant": lambda name: {"tenant": name, "json": {"stopped": True}},
    },
    ("GET", "/v1/weirgate/calibrations"): {},
    ("POST", "/v1/weirgate/reload"): {},
    ("GET", "/healthz"): {},
    ("GET", "/readyz"): {},
    ("GET", "/metrics"): {},
}
"""What can be named in a request, by route."""


def skill(folder: Path, slug: str) -> None:
    (folder / slug).mkdir(parents=True)
    (folder / slug / "SKILL.md").write_text(f"---\nname: {slug}\ndescription: Rules of the house.\n---\nKnow {slug}.\n")


@asynccontextmanager
async def two_tenants(folder: Path) -> AsyncIterator[tuple[Wired, dict[str, str]]]:
    """An application that acme has used, and the ids of acme's conversations: the client's own, and one that is kept
    here."""
    skill(folder / "acme", OWN["skill"])
    skill(folder / "shared", "tone")

    async def answer(request: SeenRequest, reply: Script) -> None:
        if request.path.endswith("/embeddings"):
            await reply.json(200, {"object": "list", "data": [], "usage": {"prompt_tokens": 1, "total_tokens": 1}})
        else:
            await reply.json(200, chat_reply("Hello."))

    models = {"fast": {"upstream": "main", "model": "gpt-4o"}}
    settings = {"models": models, "agents": AGENTS, "keys": KEYS, "skills": {"folders": [str(folder)]}}
    async with wired(answer, **settings) as weir:
        body = {**chat("acmes", f"/{OWN['skill']} please")["json"], "user": OWN["user"]}
        headers = {**bearer(ACME), "x-session-id": OWN["label"]}
        used = await weir.client.post("/v1/chat/completions", json=body, headers=headers)
        assert used.status_code == 200
        made = await weir.client.post("/v1/conversations", json={}, headers=bearer(ACME))
        kept = made.json()["id"]
        spoken = {**chat("acmes", "Hello.")["json"], "conversation": kept}
        assert (await weir.client.post("/v1/chat/completions", json=spoken, headers=bearer(ACME))).status_code == 200
        yield weir, {"conversation": used.headers["x-weirgate-conversation"], "kept": kept}


def routes(app: Application) -> list[tuple[str, str]]:
    """Every route with each of its methods."""
    endpoints = [*app._exact.values(), *app._other._endpoints]  # type: ignore[attr-defined]
    return sorted((method, each.route) for each in endpoints for method in each.methods)


async def asked(weir: Wired, method: str, route: str, made: Request, secret: str = OTHER) -> httpx.Response:
    made = dict(made)
    path = route.format(id=made.pop("id", "x"), tenant=made.pop("tenant", "other"), item="msg_x")
    headers = {**bearer(secret), **made.pop("headers", {})}
    return await weir.client.request(method, path, headers=headers, **made)


def seen(answer: httpx.Response, name: str) -> tuple[int, str, dict[str, str]]:
    """All that a client can tell an answer by, `name` and what is drawn for each request aside."""
    drawn = ("x-request-id", "x-weirgate-conversation", "content-length")
    headers = {key: value for key, value in answer.headers.items() if key not in drawn}
    conversation = answer.headers.get("x-weirgate-conversation", "none was told")
    text = answer.text.replace(answer.headers["x-request-id"], "ID").replace(conversation, "CONV").replace(name, "X")
    return answer.status_code, text, headers


async def test_every_route_says_here_what_can_be_named_in_it(tmp_path: Path) -> None:
    async with two_tenants(tmp_path) as (weir, _):
        assert routes(weir.app) == sorted(PROBES)


@pytest.mark.parametrize(
    ("method", "route", "what"),
    [(method, route, what) for (method, route), makes in PROBES.items() for what in makes],
)
async def test_what_is_another_tenants_is_answered_as_what_does_not_exist(
    method: str, route: str, what: str, tmp_path: Path
) -> None:
    make = PROBES[method, route][what]
    async with two_tenants(tmp_path) as (weir, ids):
        own, missing = {**OWN, **ids}, {**MISSING, "conversation": "conv_no", "kept": "conv_no"}
        theirs = await asked(weir, method, route, make(own[what]))
        nobodys = await asked(weir, method, route, make(missing[what]))
        assert seen(theirs, own[what]) == seen(nobodys, missing[what])


async def test_no_answer_holds_a_name_of_another_tenant(tmp_path: Path) -> None:
    async with two_tenants(tmp_path) as (weir, ids):
        for method, route in routes(weir.app):
            answer = await asked(weir, method, route, {"json": {}} if method in ("POST", "PUT") else {})
            for name in (*OWN.values(), *ids.values()):
                assert name not in answer.text, (method, route)
                assert name not in json.dumps(dict(answer.headers)), (method, route)


async def test_its_owner_is_told_the_trace(tmp_path: Path) -> None:
    async with two_tenants(tmp_path) as (weir, ids):
        path = f"/v1/weirgate/conversations/{ids['conversation']}/traces"
        told = await weir.client.get(path, params={"user": OWN["user"]}, headers=bearer(ACME))
        assert told.status_code == 200
        (entry,) = told.json()["data"]
        assert entry.pop("at") > 0
        assert entry == {"kind": "SKILL_SELECT", "skill": f"acme/{OWN['skill']}", "agent": "acmes"}
        assert (await weir.client.get(path, headers=bearer(ACME))).status_code == 404  # without the end user it is
