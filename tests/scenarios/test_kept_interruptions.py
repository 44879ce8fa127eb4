"""Turns of conversations that the gateway keeps, interrupted: by words spoken into them, by a client that leaves, by a
stop, by a provider or a server that gives out. What was said stands once, and nothing that broke off looks whole.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from proxy.core.steps import Caller
from proxy.server.desk import Desk
from proxy.server.endpoints import Chat
from tests.fakes import BOUND, Script, SeenRequest, chat_chunks
from tests.scenarios.acts import refusing
from tests.scenarios.gate import Gate, Wire, prompts, user
from tests.scenarios.pausing import asking
from tests.scenarios.skilled import TONE, loads, saying
from tests.scenarios.speaking import held, into, left_for
from tests.scenarios.test_conversation_items import PATH, Kept, kept

both = pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
PICTURE: Wire = {
    "role": "user",
    "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,aGFsbG8="}}],
}
LOOKS = saying("Let me look.", loads())
KEYED = {"idempotency-key": "k1"}


async def breaking(request: SeenRequest, reply: Script) -> None:
    """Two words of a stream, and no more."""
    if not request.stream:
        await reply.reset()
        return
    await reply.head(200, {"content-type": "text/event-stream"})
    for chunk in chat_chunks("The beginning")[:2]:
        await reply.event(chunk)
    await reply.reset()


async def endless(request: SeenRequest, reply: Script) -> None:
    """The same, and the connection stays."""
    if request.stream:
        await reply.head(200, {"content-type": "text/event-stream"})
        for chunk in chat_chunks("The beginning")[:2]:
            await reply.event(chunk)
    await reply.hang()


async def said(talk: Kept) -> list[tuple[str, str]]:
    """(role, text or kind) of every message, told-only ones left out."""
    items = [item for item in await talk.items() if item["audience"] != "told" and item["type"] == "message"]
    return [(item["role"], item["content"][0].get("text") or item["content"][0]["type"]) for item in items]


def desk(weir: Gate) -> Desk:
    chat = weir.app._exact["/v1/chat/completions"]
    assert isinstance(chat, Chat)
    return chat.desk


def ask(talk: Kept, *messages: str | Wire, **more: Any) -> asyncio.Task[Any]:
    wires = [user(each) if isinstance(each, str) else each for each in messages]
    asking = talk.weir.ask(wires, model=talk.model, conversation=talk.id, stream=talk.stream, **more)
    return asyncio.create_task(asking)


async def stop(talk: Kept) -> int:
    return (await talk.weir.client.post(f"{PATH}/{talk.id}/cancel")).status_code


async def idle(talk: Kept) -> None:
    """Until no turn runs."""
    while (await talk.state())["state"] == "running":
        await asyncio.sleep(0)


# -- spoken into ------------------------------------------------------------------------------------------------------


@both
async def test_two_that_a_turn_did_not_read_are_answered_once_and_together(stream: bool, tmp_path: Path) -> None:
    slow, going, release = held(saying("One."))
    async with asking(tmp_path, slow, saying("Two.")) as (weir, up), asyncio.timeout(BOUND):
        talk = await kept(weir, stream=stream)
        first = ask(talk, "A")
        await going.wait()
        second = asyncio.create_task(into(talk, "B"))
        await left_for(weir, 1)
        third = asyncio.create_task(into(talk, "C"))
        await left_for(weir, 2)
        release.set()
        assert [(await each).text for each in (first, second, third)] == ["One.", "Two.", "Two."]
        assert await said(talk) == [
            ("user", "A"),
            ("assistant", "One."),
            ("user", "B"),
            ("user", "C"),
            ("assistant", "Two."),
        ]
        assert len(up.ledger) == 2


@both
@pytest.mark.parametrize("slug", ["/nobody", "/tone"])
async def test_words_that_select_skills_wait_and_open_a_turn(stream: bool, slug: str, tmp_path: Path) -> None:
    slow, going, release = held(LOOKS)
    async with asking(tmp_path, slow, saying("One."), saying("Two.")) as (weir, up), asyncio.timeout(BOUND):
        talk = await kept(weir, stream=stream)
        first = ask(talk, "A")
        await going.wait()
        second = asyncio.create_task(into(talk, f"{slug} B"))
        await waits_for_its_turn(weir)
        release.set()
        assert (await first).text == "Let me look.\n\nOne."
        answer = await second
        if slug == "/nobody":
            assert (answer.status, answer.code) == (404, "skill_not_found")
            assert len(await said(talk)) == 3 and len(up.ledger) == 2
        else:
            assert answer.text == "Two."
            assert TONE in str(prompts(up)[-1][0])


async def waits_for_its_turn(weir: Gate) -> None:
    """Until somebody waits for the end of a turn that runs here."""
    running = desk(weir).conversing._running
    while not any(turn.over._waiters for turn in running.values()):
        await asyncio.sleep(0)


@both
async def test_a_picture_that_the_provider_refuses_costs_no_more_than_its_turn(stream: bool, tmp_path: Path) -> None:
    slow, going, release = held(LOOKS)
    acts = (slow, refusing(400), refusing(400), saying("Well."))
    async with asking(tmp_path, *acts) as (weir, _), asyncio.timeout(BOUND):
        talk = await kept(weir, stream=stream)
        first = ask(talk, "A")
        await going.wait()
        second = asyncio.create_task(into(talk, PICTURE))
        await left_for(weir, 1)
        release.set()
        await asyncio.wait([first, second])
        assert ((await second).status, (await second).code) == (400, "upstream_rejected")
        assert (await talk.say("B")) == "Well."
        assert ("user", "input_image") not in await said(talk)


@both
async def test_what_was_said_into_a_turn_that_fails_is_answered_on_its_own(stream: bool, tmp_path: Path) -> None:
    slow, going, release = held(LOOKS)
    async with asking(tmp_path, slow, refusing(500), saying("Two.")) as (weir, _), asyncio.timeout(BOUND):
        talk = await kept(weir, stream=stream)
        first = ask(talk, "A")
        await going.wait()
        second = asyncio.create_task(into(talk, "B"))
        await left_for(weir, 1)
        release.set()
        assert (await first).code == "upstream_error"
        answer = await second
        if stream:  # its beginning had been shown, and is the turn's answer
            assert (answer.status, answer.code) == (409, "turn_incomplete")
            assert await said(talk) == [("user", "A"), ("user", "B"), ("assistant", "Let me look.")]
        else:
            assert answer.text == "Two."
            assert await said(talk) == [("user", "A"), ("user", "B"), ("assistant", "Two.")]


@both
async def test_who_speaks_into_a_turn_and_leaves_is_answered_all_the_same(stream: bool, tmp_path: Path) -> None:
    slow, going, release = held(saying("One."))
    async with asking(tmp_path, slow, saying("Two.")) as (weir, _), asyncio.timeout(BOUND):
        talk = await kept(weir, stream=stream)
        first = ask(talk, "A")
        await going.wait()
        second = asyncio.create_task(into(talk, "B"))
        await left_for(weir, 1)
        second.cancel()
        await asyncio.wait([second])
        release.set()
        assert (await first).text == "One."
        assert [row.status for row in await weir.rows()] == ["ok", "ok"]
        assert (await said(talk))[2:] == [("user", "B"), ("assistant", "Two.")]


# -- sent again -------------------------------------------------------------------------------------------------------


@both
async def test_a_call_that_is_sent_again_while_it_runs_is_answered_once(stream: bool, tmp_path: Path) -> None:
    slow, going, release = held(saying("One."))
    async with asking(tmp_path, slow) as (weir, up), asyncio.timeout(BOUND):
        talk = await kept(weir, stream=stream)
        first = ask(talk, "A", headers=KEYED)
        await going.wait()
        again = ask(talk, "A", headers=KEYED)
        await waits_for_its_turn(weir)
        release.set()
        assert [(await each).text for each in (first, again)] == ["One.", "One."]
        assert len(up.ledger) == 1


@both
async def test_a_call_that_is_sent_again_behind_one_that_failed_has_its_own_answer(
    stream: bool, tmp_path: Path
) -> None:
    async with asking(tmp_path, saying("One."), refusing(500)) as (weir, up):
        talk = await kept(weir, stream=stream)
        await ask(talk, "A", headers=KEYED)
        await ask(talk, "B")
        assert (await ask(talk, "A", headers=KEYED)).text == "One."
        assert len(up.ledger) == 2
        assert await said(talk) == [("user", "A"), ("assistant", "One."), ("user", "B")]


async def test_an_answer_that_broke_off_is_never_told_as_whole_and_is_given_anew(tmp_path: Path) -> None:
    async with asking(tmp_path, breaking, saying("One.")) as (weir, _):
        talk = await kept(weir, stream=True)
        broke = await ask(talk, "A", headers=KEYED)
        assert (broke.done, broke.code) == (False, "upstream_invalid_response")
        assert [item["status"] for item in await talk.items()] == ["completed", "incomplete"]
        again = await ask(talk, "A", headers=KEYED)
        assert (again.done, again.text) == (True, "One.")
        assert await said(talk) == [("user", "A"), ("assistant", "One.")]


# -- stopped ----------------------------------------------------------------------------------------------------------


@both
async def test_a_turn_is_stopped_before_its_first_word_and_in_a_tool_round(stream: bool, tmp_path: Path) -> None:
    for acts in ((endless,), (LOOKS, endless)):
        async with asking(tmp_path, *acts, saying("Well.")) as (weir, up), asyncio.timeout(BOUND):
            talk = await kept(weir, stream=stream)
            first = ask(talk, "A")
            await up.arrived(len(acts))
            assert await stop(talk) == 200
            assert (await first).code == "turn_cancelled"
            assert (await talk.state())["state"] == "idle"
            assert await stop(talk) == 409
            statuses = {row.status for row in await weir.rows()} - {"ok"}
            assert statuses == {"cancelled"}


async def test_a_turn_is_stopped_before_it_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, _, release = held(saying("One."))
    release.set()
    async with asking(tmp_path, slow) as (weir, _), asyncio.timeout(BOUND):
        talk = await kept(weir)
        conversing = desk(weir).conversing
        begin = conversing.begin

        async def stopping(*given: Any) -> Any:
            turn = await begin(*given)
            stopped.append(asyncio.create_task(conversing.cancel(Caller(tenant="local", key="open"), talk.id)))
            return turn

        stopped: list[asyncio.Task[bool]] = []
        monkeypatch.setattr(conversing, "begin", stopping)
        assert (await ask(talk, "A")).code == "turn_cancelled"
        assert await stopped[0] is True
        assert (await talk.state())["state"] == "idle"


@both
async def test_who_spoke_into_a_turn_that_is_stopped_is_told_so(stream: bool, tmp_path: Path) -> None:
    slow, going, release = held(LOOKS)
    async with asking(tmp_path, slow, endless, saying("Two.")) as (weir, up), asyncio.timeout(BOUND):
        talk = await kept(weir, stream=stream)
        first = ask(talk, "A")
        await going.wait()
        second = asyncio.create_task(into(talk, "B"))
        await left_for(weir, 1)
        release.set()
        await up.arrived(2)
        assert await stop(talk) == 200
        assert (await first).code == "turn_cancelled"
        if stream:
            assert (await second).code == "turn_cancelled"
        else:  # nothing of an answer had been shown: it is answered on its own
            assert (await second).text == "Two."


async def test_a_turn_is_stopped_from_another_process(tmp_path: Path) -> None:
    async with asking(tmp_path, endless) as (weir, up), asyncio.timeout(BOUND):
        talk = await kept(weir, stream=True)
        first = ask(talk, "A")
        await up.arrived(1)
        assert weir.store.conversations is not None
        assert await weir.store.conversations.cancel("local", "open", talk.id, 0.0)
        assert (await first).code == "turn_cancelled"


# -- left -------------------------------------------------------------------------------------------------------------


async def test_a_client_that_leaves_while_its_turn_is_begun_has_it_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asking(tmp_path, saying("One.")) as (weir, _), asyncio.timeout(BOUND):
        talk = await kept(weir)
        begun = asyncio.Event()
        conversing = desk(weir).conversing
        begin = conversing._begun

        async def slowly(*given: Any) -> Any:
            found = await begin(*given)
            begun.set()
            await asyncio.sleep(0)
            return found

        monkeypatch.setattr(conversing, "_begun", slowly)
        first = ask(talk, "A")
        await begun.wait()
        first.cancel()
        await asyncio.wait([first])
        assert [(row.status, row.conversation) for row in await weir.rows()] == [("ok", talk.id)]
        assert await said(talk) == [("user", "A"), ("assistant", "One.")]
        assert (await talk.state())["state"] == "idle"


@both
async def test_a_client_that_leaves_in_a_tool_round_has_its_turn_all_the_same(stream: bool, tmp_path: Path) -> None:
    slow, going, release = held(saying("One."))
    async with asking(tmp_path, LOOKS, slow) as (weir, _), asyncio.timeout(BOUND):
        talk = await kept(weir, stream=stream)
        first = ask(talk, "A")
        await going.wait()
        first.cancel()
        await asyncio.wait([first])
        release.set()
        assert [(row.status, row.conversation) for row in await weir.rows()] == [("ok", talk.id)] * 2
        assert await said(talk) == [("user", "A"), ("assistant", "Let me look."), ("assistant", "One.")]


async def test_a_turn_whose_client_left_keeps_its_place(tmp_path: Path) -> None:
    slow, going, release = held(saying("One."))
    async with asking(tmp_path, slow) as (weir, _), asyncio.timeout(BOUND):
        talk = await kept(weir)
        running = desk(weir).running
        first = ask(talk, "A")
        await going.wait()
        first.cancel()
        await asyncio.wait([first])
        assert running == {("local", "open"): 1}
        release.set()
        await weir.rows()
        assert running == {}


# -- the server leaves ------------------------------------------------------------------------------------------------


@both
async def test_a_server_that_must_end_keeps_what_was_written(stream: bool, tmp_path: Path) -> None:
    async with asking(tmp_path, endless) as (weir, up), asyncio.timeout(BOUND):
        talk = await kept(weir, stream=stream)
        first = ask(talk, "A")
        await up.arrived(1)
        if stream:
            await shown(weir)
        desk(weir).drain.end()
        assert (await first).code == "shutting_down"
        await weir.rows()
        assert weir.store.conversations is not None
        path = await weir.store.conversations.path("local", "open", talk.id)
        assert [item.status for item in path] == ["completed", "incomplete"][: 1 + stream]
        owned = await weir.store.conversations.find("local", "open", talk.id, 0.0)
        assert owned is not None and owned.run is None


async def shown(weir: Gate) -> None:
    """Until something of the running answer was."""
    (turn,) = desk(weir).conversing._running.values()
    while not turn._shown:
        await asyncio.sleep(0)
