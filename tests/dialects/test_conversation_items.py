"""Items as the Conversations API writes them: their forms, and the ids of parts of a message."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as some

from proxy.core.conversation import (
    Approval,
    Audience,
    Block,
    Clarification,
    CompactionBlock,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
)
from proxy.core.unfolded import Part
from proxy.dialects.chat.messages import read_message
from proxy.dialects.conversation_items import items, page

TOLD = Audience.TOLD


def told(*blocks: Block, role: Any = "assistant", id: str = "msg_1", status: str = "completed") -> list[dict[str, Any]]:
    return items(id, status, 3, (Part(role=role, blocks=blocks),))


def test_each_kind_of_block_has_its_form() -> None:
    made = told(
        CompactionBlock(notes="They met.", trigger="MANUAL"),
        Reasoning(text="hm", audience=TOLD),
        ToolCall(id="c", name="load_skill", arguments="", audience=TOLD),
        ToolResult(call_id="c", text="tone", audience=TOLD),
        Text(text="Yes.", final=True, component="helper"),
        Clarification(id="q", question="Which?", options=("a", "b")),
        Approval(id="p", action="Send", reason="late"),
    )
    heard = {"component": "main", "turn": 3}
    both, only = heard | {"audience": "both"}, heard | {"audience": "told", "status": "completed"}
    assert made == [
        {"id": "cmp_1_0", "type": "compaction", "encrypted_content": "", "notes": "They met.", "trigger": "MANUAL"}
        | both,
        {
            "id": "rs_1_1",
            "type": "reasoning",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "hm"}],
        }
        | only,
        {"id": "fc_1_2", "type": "function_call", "call_id": "c", "name": "load_skill", "arguments": "{}"} | only,
        {"id": "fco_1_3", "type": "function_call_output", "call_id": "c", "output": "tone"} | only,
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "annotations": [], "text": "Yes."}],
            "phase": "final_answer",
            "status": "completed",
        }
        | both
        | {"component": "helper"},
        {
            "id": "ask_1_5",
            "type": "weirgate.clarification_request",
            "call_id": "q",
            "question": "Which?",
            "options": ["a", "b"],
        }
        | both,
        {"id": "ask_1_6", "type": "weirgate.approval_request", "call_id": "p", "action": "Send", "reason": "late"}
        | both,
    ]


def test_words_of_one_audience_are_one_message_and_what_comes_between_parts_them() -> None:
    made = told(
        Text(text="Let me"),
        Text(text="look."),
        ToolCall(id="c", name="f", arguments="{}", audience=TOLD),
        Text(text="There."),
        Text(text="Which?", audience=Audience.SHOWN),
    )
    assert [[part["text"] for part in item["content"]] for item in made if item["type"] == "message"] == [
        ["Let me", "look."],
        ["There."],
        ["Which?"],
    ]
    assert [item.get("phase") for item in made] == ["commentary", None, "commentary", None]
    assert [item["id"] for item in made] == ["msg_1_0", "fc_1_1", "msg_1_2", "msg_1"]


def test_an_answer_that_was_cut_off_says_so_and_its_whole_calls_do_not() -> None:
    call = ToolCall(id="c", name="f", arguments="{}", audience=TOLD)
    for status, said in (("incomplete", "incomplete"), ("cancelled", "incomplete"), ("completed", "completed")):
        assert [item["status"] for item in told(call, Text(text="Dea"), status=status)] == ["completed", said]


def test_what_was_done_behind_a_users_words_is_not_his() -> None:
    parts = (Part(role="user", blocks=(Text(text="Hi."),)), Part(role="assistant", blocks=(Text(text="Hm."),)))
    first, second = items("msg_1", "completed", 1, parts)
    assert (first["id"], first["role"], second["id"], second["role"]) == ("msg_1", "user", "msg_1_1", "assistant")


def test_a_message_of_nothing_is_one_item() -> None:
    assert [item["content"] for item in told()] == [[]]
    assert [item["content"] for item in told(Text(text=""), role="user")] == [[{"type": "input_text", "text": ""}]]


def test_media_come_back_in_this_apis_form() -> None:
    parts = (
        '{"type": "text", "text": "Look."}',
        '{"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo=", "detail": "low"}}',
        '{"type": "image_url", "image_url": "data:image/png;base64,iVBORw0KGgo="}',
        '{"type": "file", "file": {"file_id": "f"}}',
        '{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}',
    )
    wire = f'{{"role": "user", "content": [{", ".join(parts)}]}}'.encode()
    (item,) = told(*read_message(wire, 0).blocks, role="user")
    url = "data:image/png;base64,iVBORw0KGgo="
    assert item["content"] == [
        {"type": "input_text", "text": "Look."},
        {"type": "input_image", "detail": "low", "image_url": url, "file_id": None},
        {"type": "input_image", "detail": "auto", "image_url": url, "file_id": None},
        {"type": "input_file", "file_id": "f"},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
    ]
    odd = read_message(b'{"role": "user", "content": [{"type": "hologram", "hologram": 1}]}', 0)
    assert told(*odd.blocks, role="user")[0]["content"][0]["type"] == "input_file"


def test_an_empty_page_has_no_ends() -> None:
    assert page([], more=False) == {"object": "list", "data": [], "first_id": "", "last_id": "", "has_more": False}


audiences = some.sampled_from(Audience)
blocks = some.one_of(
    some.builds(Text, text=some.sampled_from(["", "a"]), audience=audiences),
    some.builds(Reasoning, text=some.just("hm"), audience=audiences),
    some.builds(ToolCall, id=some.just("c"), name=some.just("f"), arguments=some.just("{}"), audience=audiences),
    some.builds(ToolResult, call_id=some.just("c"), text=some.just("ok"), audience=audiences),
    some.builds(Clarification, id=some.just("q"), question=some.just("Which?"), audience=audiences),
)
parts = some.lists(
    some.builds(Part, role=some.sampled_from(["user", "assistant", "tool"]), blocks=some.lists(blocks, max_size=5).map(
        tuple)), min_size=1, max_size=3).map(tuple)  # fmt: skip


@given(some.lists(parts, min_size=1, max_size=4))
def test_ids_are_unique_and_each_message_has_one_item_of_its_own(messages: list[tuple[Part, ...]]) -> None:
    made = [items(f"msg_{place:04}", "completed", 1, each) for place, each in enumerate(messages)]
    ids = [item["id"] for each in made for item in each]
    assert len(set(ids)) == len(ids)
    for place, each in enumerate(made):
        assert sum(item["id"].endswith(f"_{place:04}") for item in each) == 1
