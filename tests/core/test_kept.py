"""What leaves the prompt is found again by following one reference, and is stored once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import msgspec

from proxy.core import chain, compaction, kept, measure
from proxy.core.conversation import Message
from proxy.core.narrative import REFERENCE
from proxy.core.notes import Compaction, Notes, Pin
from proxy.core.policy import Policy
from proxy.core.render import notes_text
from proxy.core.steps import Limits
from proxy.core.tail import History
from tests.core.histories import START, call, lines, model, result, system, user

REFER = partial(chain.reference, b"s" * 32)
TALK = (
    system("Be brief."),
    user("Look at the gate, ticket SLUICE-1."),
    model("", call("a", "read_log", gate=7), call("b", "ping")),
    result("a", "gate 7: " + "level 41 mm, " * 40),
    result("b", "pong from 10.4.17.223"),
    model("It is shut.\nIts log is /var/log/gate_7.log.\nAnything else?"),
    user("A long request. " * 200),
    model("Done with v2.11.4."),
    user("And now?"),
)


def made(messages: tuple[Message, ...], covers: int, *pins: Pin, kept_: tuple[str, ...] = ()) -> Compaction:
    links = chain.follow(START, messages)
    digest = links.after[links.behind(covers) - 1]
    notes = Notes(turns=covers // 4, pins=pins, kept=kept_)
    return Compaction(id="cmp_a", digest=digest, messages=covers, covers=covers, notes=notes)


def keep(
    messages: tuple[Message, ...], now: Compaction, before: Compaction | None = None
) -> tuple[tuple[str, ...], dict[str, str]]:
    references, stored = kept.kept(messages, chain.follow(START, messages), now, before, REFER)
    return references, {each.reference: each.text for each in stored}


def behind(references: tuple[str, ...], texts: Mapping[str, str]) -> str:
    """All that can be read by following."""
    seen: dict[str, str] = {}
    waiting = list(references)
    while waiting:
        reference = waiting.pop()
        if reference not in seen:
            seen[reference] = texts[reference]
            waiting += REFERENCE.findall(texts[reference])
    return "\n".join(seen.values())


def test_results_requests_and_what_was_named_stand_behind_one_reference() -> None:
    references, texts = keep(TALK, made(TALK, 7))
    assert len(references) == 1
    found = behind(references, texts)
    for said in (TALK[1].text, TALK[3].text, "pong from 10.4.17.223", "/var/log/gate_7.log", "v2.11.4", "SLUICE-1"):
        assert said.strip() in found
    assert "Anything else?" not in found
    assert "Be brief." not in found
    page = texts[references[0]]
    assert "[turn 1, ping] pong from 10.4.17.223" in page
    assert f"[turn 1, read_log] {REFER(TALK[3].text)}" in page
    assert f"[turn 2, the user] {REFER(TALK[6].text.strip())}" in page


def test_a_request_that_is_whole_in_the_notes_is_not_kept_and_one_that_no_longer_is_is() -> None:
    pin = Pin(turn=1, text=TALK[1].text)
    first = made(TALK, 5, pin)
    references, texts = keep(TALK, first)
    assert "SLUICE-1" not in behind(references, texts)
    second, more = keep(TALK, made(TALK, 7), made(TALK, 5, pin, kept_=references))
    assert "SLUICE-1" in more[second[0]]
    assert "pong" not in more[second[0]]


def test_each_page_leads_to_those_before_however_many_there_are() -> None:
    history: tuple[Message, ...] = ()
    before: Compaction | None = None
    texts: dict[str, str] = {}
    turns = kept.PAGES + 20
    for turn in range(turns):
        history += (user(f"Turn {turn}"), model("", call("c")), result("c", f"seen res-{turn}."), model("Done."))
        references, more = keep(history, made(history, len(history)), before)
        assert not set(more) & set(texts)
        texts |= more
        before = made(history, len(history), kept_=references)
    assert before is not None
    assert len(before.notes.kept) == kept.PAGES
    newest = before.notes.kept[0]
    assert texts[newest].startswith(kept.BEFORE + ", ".join(before.notes.kept[1:]))
    assert max(map(len, texts.values())) < 40 * kept.PAGES
    assert all(f"seen res-{turn}." in behind((newest,), texts) for turn in range(turns))
    assert f"turns 1-{turns}" in (text := notes_text(before))
    assert newest in text
    assert len(REFERENCE.findall(text)) < 8


def test_what_is_clipped_behind_the_notes_is_kept_too() -> None:
    links = chain.follow(START, TALK)
    clipped = msgspec.structs.replace(made(TALK, 1), clips=((links.counted[3], 160),))
    references, texts = keep(TALK, clipped)
    assert TALK[3].text in behind(references, texts)
    assert "pong" not in behind(references, texts)


def test_nothing_new_makes_no_page() -> None:
    first = made(TALK, 7, kept_=("res_" + "1" * 24,))
    assert keep(TALK, made(TALK, 7), first) == (first.notes.kept, {})


def test_a_long_history_makes_several_pages() -> None:
    history = tuple(
        item for turn in range(900) for item in (user(f"Turn {turn}: " + "word " * 30), model(f"See file_{turn}.py."))
    )
    references, texts = keep(history, made(history, len(history)))
    assert len(references) >= 3
    assert max(map(len, texts.values())) < 70_000
    assert all(f"file_{turn}.py" in behind(references[:1], texts) for turn in range(900))


def test_what_stands_on_a_page_is_redacted() -> None:
    _, stored = kept.kept(
        TALK, chain.follow(START, TALK), made(TALK, 7), None, REFER, lambda text: text.replace("SLUICE", "***")
    )
    assert not any("SLUICE" in each.text for each in stored)


def test_equal_histories_give_equal_pages() -> None:
    assert keep(TALK, made(TALK, 7)) == keep(TALK, made(TALK, 7))


def test_of_a_real_plan_all_that_is_covered_is_found_again() -> None:
    history: tuple[Message, ...] = ()
    for turn in range(30):
        text = f"{lines(20)}\nref=K{turn}X{turn * 7919}"
        history += (user(f"Turn {turn}"), model("", call("c")), result("c", text), model("Done."))
    room = measure.room(Policy(), Limits(total=4_000), None)
    assert room is not None
    links = chain.follow(START, history)
    planned = compaction.plan(
        History(history, links, tuple(item.tokens for item in history), 0, 1.0), room, Policy(), 9_000
    )
    assert planned is not None
    references, texts = keep(history, planned)
    cut = links.behind(planned.covers)
    assert cut > 20
    assert all(item.text in behind(references, texts) for item in history[:cut] if item.role == "tool")
