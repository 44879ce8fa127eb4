"""Layers and tools as wire JSON: what a client wrote stays as it wrote it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.agent import Spec
from proxy.core.chain import message
from proxy.core.conversation import Message, Text
from proxy.core.measure import estimate
from proxy.core.steps import Call, Caller
from proxy.dialects.chat.dressing import barred, beside, leading, offer, plain
from proxy.dialects.chat.messages import read_message, write_message
from proxy.dialects.chat.request import decode_call

LOAD = Spec(name="load_skill", description="Load <it> & \u201cgo\u201d.", parameters=b'{"type": "object"}')
ASK = Spec(name="ask_user", description="Ask.", parameters=b"{}")


def read(wire: bytes) -> Message:
    return read_message(wire, 0)


def sent(**body: Any) -> Call:
    whole = {"model": "m", "messages": [{"role": "user", "content": "x"}], **body}
    return decode_call(json.dumps(whole).encode(), Caller(tenant="t", key="k"), read_message, {})


def sound(item: Message) -> Message:
    """`item`, whose blocks say what its bytes say."""
    again = read(write_message(item))
    assert (again.role, again.name, again.text.split()) == (item.role, item.name, item.text.split())
    return item


# -- the leading message ----------------------------------------------------------------------------------------------


def test_our_text_alone_is_one_string_in_the_system_role() -> None:
    made = sound(leading("Before.", (), "After."))
    assert made.wire == b'{"role":"system","content":"Before.\\n\\nAfter."}'
    assert leading("", (), "After.").wire == b'{"role":"system","content":"After."}'
    assert leading("Before.", (), "").wire == b'{"role":"system","content":"Before."}'


def test_plain_texts_become_one_string_and_the_first_role_stays() -> None:
    clients = (read(b'{ "content": "One",  "role":"developer"}'), read(b'{"role":"system","content":"Two"}'))
    made = sound(leading("Before.", clients, "After."))
    assert made.role == "developer"
    assert made.wire == b'{"content":"Before.\\n\\nOne\\n\\nTwo\\n\\nAfter.","role":"developer"}'


def test_parts_keep_their_bytes_their_marks_and_their_order() -> None:
    part = b'{ "type": "text","text": "Caf\\u00e9 \\/",  "cache_control": {"type":"ephemeral"}, "n":1.50 }'
    picture = b'{"type":"image_url","image_url":{"url":"data:image/png;base64,AA=="}}'
    clients = (
        read(b'{"role":"system","content":[' + part + b" , " + picture + b"]}"),
        read(b'{"role":"system","content":"Two"}'),
    )
    made = leading("Before.", clients, "After.")
    assert made.wire is not None
    ours = b'{"type":"text","text":"Before."}', b'{"type":"text","text":"Two"}', b'{"type":"text","text":"After."}'
    assert made.wire == b'{"role":"system","content":[' + b",".join((ours[0], part, picture, *ours[1:])) + b"]}"
    assert sound(made).media


def test_parts_stand_alone_where_we_add_on_one_side_only() -> None:
    clients = (read(b'{"role":"system","content":[{"type":"text","text":"x"}]}'),)
    assert leading("", clients, "After.").wire == (
        b'{"role":"system","content":[{"type":"text","text":"x"},{"type":"text","text":"After."}]}'
    )


def test_members_that_nobody_here_knows_stay_on_the_message() -> None:
    clients = (
        read(b'{"role":"system","content":"One","name":"app","x-mark":{"a": 1e2}}'),
        read(b'{"role":"system","content":"Two","name":"other","cache_control":{ "type":"ephemeral" },"x-mark":2}'),
    )
    assert leading("B", clients, "").wire == (
        b'{"role":"system","content":"B\\n\\nOne\\n\\nTwo","name":"app","x-mark":{"a": 1e2},'
        b'"cache_control":{ "type":"ephemeral" }}'
    )


def test_a_name_is_one_messages_and_not_the_others() -> None:
    clients = (read(b'{"role":"system","content":"One"}'), read(b'{"role":"system","content":"Two","name":"other"}'))
    assert leading("", clients, "A").wire == b'{"role":"system","content":"One\\n\\nTwo\\n\\nA"}'


@pytest.mark.parametrize("content", [b'"content":null,', b'"content":"",', b""])
def test_a_message_without_content_adds_nothing(content: bytes) -> None:
    clients = (read(b'{"role":"system",' + content + b'"x":1}'),)
    made = json.loads(write_message(leading("Before.", clients, "After.")))
    assert made == {"role": "system", "content": "Before.\n\nAfter.", "x": 1}


def test_half_of_a_surrogate_pair_becomes_a_replacement_character() -> None:
    for content in (b'"Half \\ud83d here"', b'[{"type":"text","text":"Half \\ud83d here"}]'):
        made = leading("Before.", (read(b'{"role":"system","content":' + content + b"}"),), "")
        assert "Half \ufffd here" in str(json.loads(write_message(made))["content"])


def test_a_message_that_was_made_here_is_written_from_its_blocks() -> None:
    made = leading("Before.", (message("system", (Text(text="One"), Text(text="Two"))),), "")
    assert made.wire == b'{"role":"system","content":"Before.\\n\\nOne\\n\\nTwo"}'


@given(st.text(max_size=30), st.lists(st.text(max_size=20), max_size=3), st.text(max_size=30), st.booleans())
def test_whatever_is_said_the_bytes_say_what_the_blocks_say(
    before: str, texts: list[str], after: str, parts: bool
) -> None:
    contents: list[Any] = [[{"type": "text", "text": text}] if parts else text for text in texts]
    clients = tuple(read(json.dumps({"role": "system", "content": content}).encode()) for content in contents)
    made = leading(before, clients, after)
    value = json.loads(write_message(made))["content"]
    told = value if isinstance(value, str) else "\n\n".join(part["text"] for part in value)
    for text in (before, *texts, after):
        assert text in told
    assert read(write_message(made)).role == "system"


# -- a text beside a user's words -------------------------------------------------------------------------------------


def test_a_text_stands_in_front_of_the_users_own_words() -> None:
    made = sound(beside("Skill.", read(b'{"role":"user","content":"/tone Hi","name":"ann","x":1}')))
    assert made.wire == b'{"role":"user","content":"Skill.\\n\\n/tone Hi","name":"ann","x":1}'
    assert made.name == "ann"


def test_beside_parts_it_is_a_part_and_theirs_keep_their_bytes() -> None:
    part = b'{"text":"/tone Hi", "type":"text","cache_control":{"type":"ephemeral"}}'
    made = sound(beside("Skill.", read(b'{"role":"user","content":[ ' + part + b" ]}")))
    assert made.wire == b'{"role":"user","content":[{"type":"text","text":"Skill."},' + part + b"]}"


# -- tools ------------------------------------------------------------------------------------------------------------


def written(found: Any) -> list[dict[str, Any]]:
    tools: list[dict[str, Any]] = json.loads(found.members["tools"])
    return tools


def test_our_tools_stand_alone_or_behind_the_clients_bytes() -> None:
    alone = offer(sent(), (LOAD, ASK))
    assert alone is not None
    assert alone.names == {"load_skill", "ask_user"}
    assert [tool["function"]["name"] for tool in written(alone)] == ["load_skill", "ask_user"]
    assert written(alone)[0] == {
        "type": "function",
        "function": {"name": "load_skill", "description": LOAD.description, "parameters": {"type": "object"}},
    }
    theirs = b'[ {"type":"function", "function":{"name":"grep","x":1.0}} , {"type":"web_search"} ]'
    body = b'{"model":"m","messages":[{"role":"user","content":"x"}],"tools":' + theirs + b"}"
    call = decode_call(body, Caller(tenant="t", key="k"), read_message, {})
    both = offer(call, (LOAD,))
    assert both is not None
    assert both.members["tools"] is not None
    assert both.members["tools"].startswith(b"[" + theirs[1:-1].strip() + b',{"type":"function"')
    assert json.loads(both.members["tools"])[:2] == json.loads(theirs)
    assert both.tokens > call.tools_tokens > 0


@pytest.mark.parametrize("tools", [None, []])
def test_an_empty_list_is_none(tools: Any) -> None:
    found = offer(sent(tools=tools), (LOAD,))
    assert found is not None
    assert [tool["function"]["name"] for tool in written(found)] == ["load_skill"]
    assert found.tokens >= estimate(json.dumps(written(found)[0], separators=(",", ":"), ensure_ascii=False))


@pytest.mark.parametrize(
    "shadow",
    [
        {"type": "function", "function": {"name": "load_skill"}},
        {"type": "custom", "custom": {"name": "load_skill"}},
        {"type": "function", "name": "load_skill"},
    ],
)
def test_a_tool_of_the_clients_shadows_ours_of_that_name_whatever_its_kind(shadow: Any) -> None:
    assert offer(sent(tools=[shadow]), (LOAD,)) is None
    found = offer(sent(tools=[shadow]), (LOAD, ASK))
    assert found is not None
    assert found.names == {"ask_user"}
    assert len(written(found)) == 2


def test_a_tool_that_nobody_can_read_shadows_nothing() -> None:
    for odd in ({"type": "function", "function": "grep"}, {"type": "function", "function": {"name": 7}}, {}):
        found = offer(sent(tools=[odd]), (LOAD,))
        assert found is not None
        assert written(found)[0] == odd


def test_without_tools_of_ours_there_is_no_offer() -> None:
    assert offer(sent(), ()) is None


def test_an_offer_is_known_by_all_its_tools() -> None:
    grep, find = ({"type": "function", "function": {"name": name}} for name in ("grep", "find"))
    made = [offer(sent(tools=tools), specs) for tools in ([], [grep], [find]) for specs in ((LOAD,), (LOAD, ASK))]
    assert len({found.digest for found in made if found is not None}) == 6
    again, first = offer(sent(tools=[grep]), (LOAD,)), made[2]
    assert again == first


@pytest.mark.parametrize(
    "member",
    [
        {"n": 2},
        {"logprobs": True},
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {}}},
        {"tool_choice": "required"},
        {"tool_choice": "none"},
        {"tool_choice": {"type": "function", "function": {"name": "grep"}}},
        {"parallel_tool_calls": False},
        {"functions": [{"name": "f"}]},
    ],
    ids=json.dumps,
)
def test_a_request_that_fixes_its_answer_or_its_calls_bars_ours(member: dict[str, Any]) -> None:
    assert barred(sent(**member))


@pytest.mark.parametrize(
    "member",
    [
        {},
        {"n": 1},
        {"n": None},
        {"logprobs": False},
        {"logprobs": None},
        {"response_format": {"type": "text"}},
        {"response_format": None},
        {"tool_choice": "auto"},
        {"tool_choice": None},
        {"parallel_tool_calls": True},
        {"functions": None},
    ],
    ids=json.dumps,
)
def test_what_leaves_the_model_free_does_not(member: dict[str, Any]) -> None:
    assert not barred(sent(**member))


def test_a_member_of_ours_is_taken_out_and_all_else_stays_as_the_client_wrote_it() -> None:
    item = read(b'{"role":"assistant","x": 1.0,"content":"Which?","weirgate":{"pause":{"id":"q"}},"refusal":null}')
    made = plain(item)
    assert made.wire == b'{"role":"assistant","x":1.0,"content":"Which?","refusal":null}'
    assert (made.blocks, made.digest) == (item.blocks, item.digest)


def test_a_message_without_one_is_the_same_object() -> None:
    for wire in (b'{"role":"assistant","content":"weirgate"}', b'{"role":"assistant","content":"\\"weirgate\\": 1"}'):
        item = read(wire)
        assert plain(item) is item
    ours = message("assistant", (Text(text='"weirgate"'),))
    assert plain(ours) is ours
