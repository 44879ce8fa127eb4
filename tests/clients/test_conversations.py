"""OpenAI's SDKs keep a conversation at the gateway through their own Conversations API, over a real socket."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from proxy.server.conversation_compact import Compact
from proxy.server.conversation_items import Cancel, Items, OneItem, Rewind
from proxy.server.conversations import Conversation, Conversations
from tests import test_readme
from tests.clients import programs
from tests.clients.conftest import MODEL
from tests.data import ROOT

KEEPERS: Mapping[str, Sequence[str]] = {
    "openai-python": (sys.executable, str(programs.HERE / "python" / "openai_keeper.py")),
    "openai-node": ("node", str(programs.NODE_FOLDER / "openai_keeper.mjs")),
}
KINDS = ["Message", "Message", "ResponseFunctionToolCallItem", "ResponseFunctionToolCallOutputItem", *["Message"] * 3]
WEIR = "A weir keeps a river from overflowing."


@pytest.fixture(scope="module", params=KEEPERS)
def read(request: pytest.FixtureRequest, gateway: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    programs.need(request.param)
    said = json.dumps({"base_url": gateway, "model": MODEL})
    found: dict[str, Any] = json.loads(programs.run(KEEPERS[request.param], tmp_path_factory.mktemp("kept"), said=said))
    return found


def brief(item: Mapping[str, Any]) -> tuple[str, str]:
    said = item.get("name") or item.get("output") or item["content"][0]["text"]
    return item["type"], said


def test_a_conversation_is_made_read_changed_and_deleted(read: dict[str, Any]) -> None:
    made = read["made"]
    assert (made["object"], made["metadata"], made["id"][:5]) == ("conversation", {"topic": "weirs"}, "conv_")
    assert type(made["created_at"]) is int
    told = dict(read["told"])
    state = told.pop("weirgate")
    assert told == made
    assert (state["state"], state["turns"], state["compactions"]) == ("idle", 2, [])
    assert read["changed"] == made | {"metadata": {"topic": "rivers"}}
    assert read["deleted"] == {"id": made["id"], "object": "conversation.deleted", "deleted": True}


def test_items_are_put_and_listed_page_by_page_in_either_order(read: dict[str, Any]) -> None:
    assert read["answer"] == WEIR
    assert [brief(item) for item in read["items"]] == [
        ("message", "Be brief."),
        ("message", "Hello."),
        ("function_call", "look"),
        ("function_call_output", "nothing"),
        ("message", "Good day."),
        ("message", "What is a weir?"),
        ("message", WEIR),
    ]
    assert read.get("kinds", KINDS) == KINDS  # in JavaScript they are plain objects
    assert read["put"]["data"] == read["items"][2:5]
    newest = read["newest"]
    assert (newest["data"], newest["has_more"]) == (read["items"][::-1], False)
    assert (newest["first_id"], newest["last_id"]) == (read["items"][-1]["id"], read["items"][0]["id"])
    assert read["one"] == read["items"][1]


def test_what_is_refused_is_the_sdks_own_error(read: dict[str, Any]) -> None:
    param = "conversation"
    assert read["gone"] == {"kind": "NotFoundError", "status": 404, "code": "conversation_not_found", "param": param}
    assert read["bad"] == {"kind": "BadRequestError", "status": 400, "code": "out_of_range", "param": "metadata"}


# -- the page --------------------------------------------------------------------------------------------------------

PAGE = ROOT / "docs" / "conversations.md"
ADDRESS = "http://127.0.0.1:8400/v1"


def program(language: str, gateway: str) -> str:
    """The page's example in that language, for the gateway of this test."""
    mark = f"tested by {Path(__file__).relative_to(ROOT).as_posix()}"
    (code,) = (
        one.code
        for one in test_readme.examples(PAGE.read_text(encoding="utf-8"))
        if (one.language, one.mark) == (language, mark)
    )
    assert ADDRESS in code
    return code.replace(ADDRESS, gateway)


def test_every_example_of_the_page_is_run() -> None:
    assert [one.language for one in test_readme.examples(PAGE.read_text(encoding="utf-8"))] == ["sh", "python"]


def test_the_pages_commands_keep_a_conversation(gateway: str, tmp_path: Path) -> None:
    programs.need("curl")
    said = programs.run(["bash", "-euo", "pipefail", "-c", program("sh", gateway)], tmp_path)
    answer, told, listed = (json.loads(each) for each in said.replace("}{", "}\n{").splitlines())
    assert answer["choices"][0]["message"]["content"] == WEIR
    assert (told["metadata"], told["weirgate"]["turns"]) == ({"topic": "weirs"}, 1)
    assert [brief(item) for item in listed["data"]] == [("message", "What does a weir do?"), ("message", WEIR)]


def test_the_pages_program_keeps_a_conversation(gateway: str, tmp_path: Path) -> None:
    lines = programs.run([sys.executable, "-c", program("python", gateway)], tmp_path).splitlines()
    assert lines[:2] == [WEIR, WEIR]
    assert [line.split()[0] for line in lines[2:]] == ["message"] * 4


def test_the_page_names_every_route() -> None:
    page = PAGE.read_text(encoding="utf-8")
    served = (Conversations, Conversation, Items, OneItem, Rewind, Cancel, Compact)
    routes = [f"{method} {endpoint.route}" for endpoint in served for method in endpoint.methods]
    assert [route for route in routes if f"| `{route}` |" not in page] == []
    assert page.count("| `GET /v1/") + page.count("| `POST /v1/") + page.count("| `DELETE /v1/") == len(routes)
