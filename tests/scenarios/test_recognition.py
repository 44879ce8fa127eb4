"""Whose history is this? What is found again, by whom, what is never mixed up (DESIGN 2, research/real-parts.md 5.3).

The sign of recognition is the compaction: a history that was compacted before is told with the same notes, byte for
byte, without a new one being made.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import ScriptedUpstream, SeenRequest, tool_call
from tests.scenarios.gate import Answer, Gate, Wire, assistant, dialogue, gate, system, tool, user
from tests.strict import StrictUpstream

WINDOW = 4_000
NOTES = "<conversation-notes"
SYSTEM = system("Be brief.")
LONG = dialogue(20, words=80)
"""About 5,000 tokens: too long for the window."""


def echo(request: SeenRequest) -> str:
    return f"Answer to {len(request.messages)} messages."


@asynccontextmanager
async def talk(file: Path | None = None, **more: object) -> AsyncIterator[tuple[Gate, ScriptedUpstream]]:
    async with (
        ScriptedUpstream(StrictUpstream(window=WINDOW, answer=echo)) as up,
        gate(up.url, window=WINDOW, file=file, **more) as weir,  # type: ignore[arg-type]
    ):
        yield weir, up


def notes(up: ScriptedUpstream) -> str | None:
    """The notes of the last prompt, None where it was told whole."""
    return next((m["content"] for m in up.ledger[-1].request.messages if NOTES in str(m["content"])), None)


async def compactions(weir: Gate) -> int:
    return (await weir.stored())["compaction"]


async def compacted(weir: Gate, up: ScriptedUpstream, **more: object) -> tuple[list[Wire], str]:
    """A history that was just compacted, its answer included, and its notes."""
    history = [SYSTEM, *LONG, user("And now?")]
    answer = await weir.ask(history, **more)  # type: ignore[arg-type]
    told = notes(up)
    assert answer.compaction == "auto" and told is not None
    return [*history, answer.message], told


# -- the same conversation, in other clothes -------------------------------------------------------------------------


def parts(message: Wire) -> Wire:
    return {**message, "content": [{"type": "text", "text": message["content"]}]}


def trimmed(message: Wire) -> Wire:
    return {**message, "content": f"{message['content'].strip()} \n"}


def other_lines(message: Wire) -> Wire:
    return {**message, "content": message["content"].replace("\n", "\r\n")}


def reasoning(message: Wire) -> Wire:
    return {**message, "reasoning_content": "Hm."} if message["role"] == "assistant" else message


def marked(message: Wire) -> Wire:
    text = {"type": "text", "text": message["content"], "cache_control": {"type": "ephemeral"}}
    return {**message, "content": [text], "id": "msg_1"}


def dated(message: Wire) -> Wire:
    return system("Be brief. Today is Friday.") if message["role"] == "system" else message


@pytest.mark.parametrize("change", [parts, trimmed, other_lines, reasoning, marked, dated])
async def test_a_history_in_another_wire_form_is_the_same_history(change: object) -> None:
    async with talk() as (weir, up):
        history, told = await compacted(weir, up)
        again = [change(message) for message in history]  # type: ignore[operator]
        answer = await weir.ask([*again, user("Go on.")])
        assert (answer.compaction, notes(up)) == ("auto", told)
        assert await compactions(weir) == 1


async def test_tool_calls_are_recognised_though_ids_and_arguments_are_written_anew() -> None:
    def calling(id: str, arguments: str, content: str | None) -> list[Wire]:
        called = assistant(content, tool_call(id, "read", arguments))
        return [SYSTEM, *LONG, user("Read it."), called, tool(id, "It says so.")]

    async with talk() as (weir, up):
        first = calling("call_a", '{"path": "a.py", "lines": 3}', None)
        assert (await weir.ask(first)).compaction == "auto"
        told = notes(up)
        await weir.ask([*calling("call_b", '{"lines":3,"path":"a.py"}', ""), assistant("So."), user("Go on.")])
        assert notes(up) == told
        assert await compactions(weir) == 1


async def test_a_system_prompt_of_another_agent_shares_the_compaction_and_keeps_its_own_words() -> None:
    async with talk() as (weir, up):
        history, told = await compacted(weir, up)
        await weir.ask([system("You extract memories."), *history[1:], user("Extract.")])
        assert notes(up) == told
        assert up.ledger[-1].request.messages[0]["content"] == "You extract memories."
        assert await compactions(weir) == 1


async def test_an_altered_answer_costs_nothing_that_came_before_it() -> None:
    async with talk() as (weir, up):
        history, told = await compacted(weir, up)
        history[-1] = assistant("The client wrote this instead.")
        await weir.ask([*history, user("Go on.")])
        assert notes(up) == told
        assert up.ledger[-1].request.messages[-2]["content"] == "The client wrote this instead."
        assert await compactions(weir) == 1


# -- rewinds, edits, forks, re-rolls ---------------------------------------------------------------------------------


async def test_a_rewind_before_the_compaction_is_told_whole_again() -> None:
    async with talk() as (weir, up):
        await compacted(weir, up)
        answer = await weir.ask([SYSTEM, *LONG[:6], user("Back here.")])
        assert (answer.compaction, notes(up)) == ("none", None)


async def test_a_rewind_behind_the_compaction_keeps_it() -> None:
    async with talk() as (weir, up):
        history, told = await compacted(weir, up)
        await weir.ask([*history[:-2], user("Another question instead.")])
        assert notes(up) == told
        assert await compactions(weir) == 1


async def test_an_edit_in_the_covered_part_is_another_conversation_with_notes_of_its_own() -> None:
    async with talk() as (weir, up):
        history, told = await compacted(weir, up)
        history[1] = user("Another beginning about lighthouses.")
        answer = await weir.ask([*history, user("Go on.")])
        assert answer.compaction == "auto"
        assert notes(up) not in (None, told)
        assert "lighthouses" in str(notes(up)) and "Question 0" not in str(notes(up))


async def test_forks_share_what_they_share_and_nothing_else() -> None:
    async with talk() as (weir, up):
        history, told = await compacted(weir, up)
        left = [*history, user("Left is secret-left-7731.")]
        right = [*history, user("Right.")]
        left.append((await weir.ask(left)).message)
        assert notes(up) == told
        await weir.ask(right)
        assert notes(up) == told
        for _ in range(12):
            left += [user("More " + "left " * 200)]
            left.append((await weir.ask(left)).message)
        assert "secret-left-7731" in str(notes(up))
        await weir.ask(right)
        assert notes(up) == told and b"secret-left" not in up.ledger[-1].request.body


async def test_a_re_roll_sends_the_same_bytes_and_makes_nothing_new() -> None:
    async with talk() as (weir, up):
        history, _ = await compacted(weir, up)
        before = await weir.stored()
        for _ in range(3):
            assert (await weir.ask(history[:-1])).status == 200
        assert len({entry.request.body for entry in up.ledger}) == 1
        after = await weir.stored()
        assert {**after, "usage": 0} == {**before, "usage": 0}


async def test_the_last_user_message_may_change_between_two_calls() -> None:
    """aider appends a reminder to the newest message and takes it off in the next call."""
    reminder = "\n\nTo suggest changes, answer with whole files."
    history: list[Wire] = [SYSTEM]
    async with talk() as (weir, up):
        for turn in range(24):
            said = f"Question {turn}: " + " ".join(f"word{turn}x{n}" for n in range(60))
            answer = await weir.ask([*history, user(said + reminder)])
            assert answer.status == 200
            assert up.ledger[-1].request.messages[-1]["content"] == said + reminder
            history += [user(said), answer.message]
        made = await compactions(weir)
        assert 1 <= made <= 8
        assert all(len(entry.request.body) < WINDOW * 4 * 1.3 for entry in up.ledger)
        assert len(up.ledger) == 24
        prompt = json.dumps(up.ledger[-1].request.messages)
        assert prompt.count("To suggest changes") == 1, "a reminder that the client took back is still told"


# -- labels ----------------------------------------------------------------------------------------------------------

LABELS: list[tuple[dict[str, str], dict[str, Any]]] = [
    ({"x-session-id": "s-1"}, {}),
    ({"session-id": "s-1"}, {}),
    ({"thread-id": "s-1"}, {}),
    ({"session_id": "s-1"}, {}),
    ({"x-claude-code-session-id": "s-1"}, {}),
    ({"x-openwebui-chat-id": "s-1"}, {}),
    ({}, {"metadata": {"session_id": "s-1"}}),
    ({}, {"prompt_cache_key": "s-1"}),
]


@pytest.mark.parametrize(("headers", "members"), LABELS, ids=[str({**h, **m}) for h, m in LABELS])
async def test_a_label_groups_its_calls_whatever_they_hold(headers: dict[str, str], members: Wire) -> None:
    async with talk() as (weir, _):
        first = await weir.ask([user("Hello")], headers=headers, **members)
        title = await weir.ask([system("Title this."), user("Hello")], headers=headers, **members)
        other = await weir.ask([user("Something else")], headers=headers, **members)
        alone = await weir.ask([user("Hello")])
        assert first.conversation == title.conversation == other.conversation != alone.conversation
        assert {row.conversation for row in await weir.rows()} == {first.conversation, alone.conversation}


async def test_a_label_is_no_key_and_side_requests_get_none_of_the_conversation() -> None:
    """opencode's title request and Open WebUI's tasks bear the id of the conversation they are about."""
    session = {"x-session-id": "s-1"}
    async with talk() as (weir, up):
        history, told = await compacted(weir, up, headers=session)
        side = await weir.ask([system("Write a title."), user("### Task: a title")], headers=session)
        assert (side.compaction, notes(up)) == ("none", None)
        assert len(up.ledger[-1].request.messages) == 2
        await weir.ask([*history, user("Go on.")], headers=session)
        assert notes(up) == told


async def test_a_history_is_recognised_without_its_label_and_under_another_one() -> None:
    async with talk() as (weir, up):
        history, told = await compacted(weir, up, headers={"x-session-id": "s-1"})
        for headers in ({}, {"x-session-id": "s-2"}):
            await weir.ask([*history, user("Go on.")], headers=headers)
            assert notes(up) == told
        assert await compactions(weir) == 1


# -- whose it is -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("member", ["user", "safety_identifier"])
async def test_two_end_users_behind_one_key_never_meet(member: str) -> None:
    ada: dict[str, Any] = {member: "ada"}
    bob: dict[str, Any] = {member: "bob"}
    async with talk() as (weir, up):
        history, told = await compacted(weir, up, **ada)
        answer = await weir.ask([*history, user("Go on.")], **bob)
        assert answer.compaction == "auto" and notes(up) != told
        assert await compactions(weir) == 2
        conversations = {row.end_user: row.conversation for row in await weir.rows()}
        assert conversations["ada"] != conversations["bob"]


async def test_two_who_open_with_the_same_words_do_not_share_a_conversation() -> None:
    async with talk() as (weir, _):
        first, second = [await weir.ask([SYSTEM, user("Hello")]) for _ in range(2)]
        assert first.conversation != second.conversation


KEYS = (("a", "key-a", "secret-of-tenant-a"), ("b", "key-b", "secret-of-tenant-b"), ("a", "key-a2", "secret-two-of-a"))


async def test_two_tenants_and_two_keys_never_meet() -> None:
    async with talk(keys=KEYS, api_key="upstream-key") as (weir, up):
        told: list[str | None] = []
        for _, _, secret in KEYS:
            headers = {"authorization": f"Bearer {secret}", "x-session-id": "the same"}
            answer = await weir.ask([SYSTEM, *LONG, user("And now?")], headers=headers)
            assert (answer.status, answer.compaction) == (200, "auto")
            told.append(notes(up))
        assert await compactions(weir) == 3
        rows = await weir.rows()
        assert len({row.conversation for row in rows}) == 3
        assert [(row.tenant, row.key) for row in rows] == [(tenant, key) for tenant, key, _ in KEYS]
        usage = await weir.client.get("/v1/weirgate/usage", headers={"authorization": "Bearer secret-of-tenant-b"})
        assert {row["tenant"] for row in usage.json()["data"]} == {"b"}
        assert len(set(told)) == 3, "the marks of three callers' notes are equal: one can forge another's fence"


# -- restarts and the client's own compaction ------------------------------------------------------------------------


async def test_a_restart_finds_compactions_windows_and_sizes_again(tmp_path: Path) -> None:
    file = tmp_path / "weirgate.db"
    provider = StrictUpstream(window=WINDOW, answer=echo)
    async with ScriptedUpstream(provider) as up:
        async with gate(up.url, file=file) as weir:  # the window is unknown: it is learned from a refusal
            history: list[Wire] = [SYSTEM, *LONG, user("And now?")]
            answer = await weir.ask(history)
            assert answer.compaction == "recovered"
            told = notes(up)
            history += [answer.message, user("Go on.")]
        async with gate(up.url, file=file) as weir:
            answer = await weir.ask(history)
            assert (answer.compaction, answer.context["window"]) == ("auto", str(WINDOW))
            assert notes(up) == told
            assert await compactions(weir) == 1
    assert provider.overflows == 1


ORDERS = [
    "You are performing a CONTEXT CHECKPOINT COMPACTION. Create a handoff summary.",
    "Provide a detailed summary of our conversation above, for continuing it.",
    "Your task is to create a detailed summary of the conversation so far.",
]


@pytest.mark.parametrize("order", ORDERS)
async def test_a_clients_own_compaction_request_is_untouched_where_it_fits(order: str) -> None:
    async with talk() as (weir, up):
        for turn in range(3, 13):  # the conversation before: it tells how this provider counts
            assert (await weir.ask([SYSTEM, *LONG[: 2 * turn + 1]])).compaction == "none"
        fitting = [SYSTEM, *LONG[:28], user(order)]
        answer = await weir.ask(fitting)
        assert (answer.status, answer.compaction, up.ledger[-1].request.messages) == (200, "none", fitting)
        size = StrictUpstream(window=None).measure({"messages": fitting})
        assert 0.86 * WINDOW < size < 0.97 * WINDOW, f"{size} is not between the trigger and the window"
        assert (await weir.ask([*fitting[:-1], user("Any other question.")])).compaction == "auto"


async def test_a_clients_own_compaction_request_that_does_not_fit_is_served_from_the_notes() -> None:
    async with talk() as (weir, up):
        history, told = await compacted(weir, up)
        answer = await weir.ask([*history, user(ORDERS[0])])
        assert (answer.status, answer.compaction, notes(up)) == (200, "auto", told)
        assert up.ledger[-1].request.messages[-1]["content"] == ORDERS[0]
        assert await compactions(weir) == 1


async def test_twenty_calls_of_one_branch_at_once_make_one_compaction() -> None:
    async with talk() as (weir, up):
        history = [SYSTEM, *LONG, user("And now?")]
        answers: list[Answer] = list(await asyncio.gather(*(weir.ask(history) for _ in range(20))))
        assert {answer.status for answer in answers} == {200}
        assert await compactions(weir) == 1
        assert len({entry.request.body for entry in up.ledger}) == 1
