"""The account of a call: it is of the very prompt that would be sent, adds up, and says why."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from proxy.core.agent import Agent, MemoryLimits, Skill
from proxy.core.branch import Branch
from proxy.core.conversation import Message
from proxy.core.errors import Conflict, Malformed, NotFound
from proxy.core.exchange import exchange
from proxy.core.explaining import Asked, explained
from proxy.core.explanation import Explained, Explanation, Fix
from proxy.core.guards import Guard, Pause
from proxy.core.hidden import Behind, packed
from proxy.core.notes import Compaction, Notes
from proxy.core.pacing import Window
from proxy.core.policy import Mode, ModelCard, Policy
from proxy.core.stack import Trace
from proxy.core.steps import (
    Call,
    Claim,
    Count,
    Hidden,
    Limits,
    Memory,
    Recall,
    Remember,
    Send,
    Snapshot,
    Summarise,
    Summariser,
)
from proxy.layering import Layering
from tests.core.histories import call as asked_for
from tests.core.histories import loop, model, result, system, user
from tests.core.scripts import LONG, NEAR, SHORT, WINDOW, compacted, first_compaction, memory_of, remembered, size
from tests.playbook import a_call, a_reply, a_snap, changed, estimates, like, play, too_long

OWN = Summariser(name="m", window=WINDOW, own=True)
OTHER = Summariser(name="small", window=WINDOW)
CARD = ModelCard(name="m", efforts=("low", "medium", "high"), means="reasoning_effort")
TONE = Skill(id="acme/tone", slug="tone", when="When the tone matters.", text="Be warm and short.")
REFUND = Skill(id="acme/refund", slug="refund", when="When money goes back.", text="Refund within 14 days.")
DRAFT = Skill(id="acme/draft", slug="draft", when="Not yet.", text="Nothing.", published=False)
SUPPORT = Agent(name="support", model="m", instructions="Help.", skills=("tone", "refund"), effort="medium")


def account(call: Call, snap: Snapshot, memory: Memory = Memory(), asked: Asked = Asked()) -> Explained:  # noqa: B008
    """Whatever it asks for is answered; it may ask for no more than Recall and Count."""
    flow = explained(call, snap, asked)
    answer: Any = None
    for _ in range(10):
        try:
            step = flow.send(answer)
        except StopIteration as end:
            found: Explained = end.value
            adds_up(found.told)
            return found
        assert type(step) in (Recall, Count)
        answer = memory if type(step) is Recall else estimates(step)  # type: ignore[arg-type]
    raise AssertionError("a rehearsal without an end")


def told(call: Call, snap: Snapshot, memory: Memory = Memory(), **asked: Any) -> Explanation:  # noqa: B008
    return account(call, snap, memory, Asked(**asked)).told


def adds_up(found: Explanation) -> None:
    if found.parts:
        assert sum(part.tokens for part in found.parts) == found.tokens
        assert all(part.tokens >= 0 for part in found.parts)
    if found.held is not None:
        assert found.held.target <= found.held.trigger <= found.held.window


def served(call: Call, snap: Snapshot, memory: Memory) -> Any:
    """The prompt that the call itself would send first, where no model answers."""
    flow = exchange(call, snap)
    answer: Any = None
    while True:
        step = flow.send(answer) if not isinstance(answer, Exception) else flow.throw(answer)
        match step:
            case Send():
                flow.close()
                return step.prompt
            case Summarise():
                answer = too_long()
            case Count():
                answer = estimates(step)
            case _:
                answer = {Recall: memory, Claim: True, Remember: None}[type(step)]


def layered(call: Call, agent: Agent | None = SUPPORT, base: str = "You work for {tenant}.", **snap: Any) -> Snapshot:
    shelf = {skill.slug: skill for skill in (TONE, REFUND, DRAFT)}
    stack = Layering(lambda: 0.0).stack(call, base=base, agent=agent, shelf=shelf, policy=Policy(), card=CARD)
    return a_snap(**({"window": WINDOW, "stack": stack, "card": CARD} | snap))


def layers(found: Explanation) -> list[str]:
    return [part.layer for part in found.parts]


# -- the size ---------------------------------------------------------------------------------------------------------


def test_what_fits_goes_out_as_it_came() -> None:
    found = account(a_call(SHORT, max_output=700), a_snap(WINDOW))
    assert (found.told.decision, found.told.compaction, found.told.same_bytes) == ("fits", None, True)
    assert found.told.tokens == found.told.whole == size(SHORT) and found.told.basis == "estimated"
    assert found.told.held is not None and found.told.held.reserve == 700 and found.told.held.source == "policy"
    assert f"{size(SHORT):,} tokens are within {found.told.held.trigger:,}" in found.told.why
    assert (found.told.output, found.told.lowered, found.told.conversation) == (700, False, None)
    assert layers(found.told) == ["client_system", "earlier", "newest"]


def test_the_prompt_is_the_one_that_would_be_sent() -> None:
    first = memory_of(first_compaction())
    cases = [
        (SHORT, Memory()),
        (NEAR, Memory()),
        (LONG, Memory()),
        (LONG, first),
        ((*LONG, model("a"), user("b")), first),
    ]
    for messages, memory in cases:
        for window in (None, WINDOW, WINDOW // 2):
            call, snap = a_call(messages, max_output=300), a_snap(window, summarisers=lambda: (OWN,))
            assert account(call, snap, memory).prompt == served(call, snap, memory)
            dressed = layered(call, window=window)
            assert account(call, dressed, memory).prompt == served(call, dressed, memory)


def test_a_new_compaction_is_told_with_what_it_covers_and_who_would_write_it() -> None:
    found = told(a_call(LONG), a_snap(WINDOW, summarisers=lambda: (OTHER, OWN)))
    made = found.compaction
    assert found.decision == "made" and made is not None and made.state == "new"
    assert made.asks == ("small", "m") and "small, else m" in found.why
    assert made.writer == "builtin" and not made.notes.narrated and made.notes.turns > 30
    assert layers(found)[:2] == ["client_system", "notes"] and found.parts[1].told == made.notes.covers
    assert found.whole > found.held.trigger > found.tokens if found.held else False
    kept = sum(part.messages for part in found.parts if part.layer != "notes")
    assert kept + made.messages == len(LONG)
    assert found.stopped == "", "that nobody was asked here is no failure of a model"


def test_a_known_compaction_is_told_as_known() -> None:
    first = first_compaction()
    found = told(a_call((*LONG, model("Done."), user("Go on."))), a_snap(WINDOW), memory_of(first))
    assert found.decision == "kept" and found.compaction is not None and found.compaction.state == "known"
    assert (found.conversation, found.basis) == ("conv_new", "reported")
    assert found.compaction.asks == () and f"{found.whole:,}" in found.why


def test_the_same_request_again_is_told_to_get_the_same_prompt() -> None:
    found = told(a_call(LONG), a_snap(WINDOW), memory_of(first_compaction()))
    assert found.decision == "again" and found.compaction is not None


def test_without_a_window_nothing_is_decided() -> None:
    found = told(a_call(LONG), a_snap(None))
    assert (found.decision, found.held, found.compaction) == ("unknown", None, None)
    assert [part.share for part in found.parts] == [None] * len(found.parts)


def test_with_automatic_compaction_off_it_is_sent_as_it_is() -> None:
    off = Policy(automatic=False)
    found = told(a_call(LONG), a_snap(WINDOW, policy=off))
    assert found.decision == "automatic_off" and found.tokens == found.whole == size(LONG)
    window = int(size(NEAR) / 0.92)  # over the trigger, and it fits
    found = told(a_call(NEAR), a_snap(window, policy=off))
    assert (found.decision, found.basis) == ("fits", "counted")
    assert told(a_call(NEAR), a_snap(window)).decision == "made"


def test_a_paused_branch_is_told_as_paused_and_never_by_the_rehearsals_own_failure() -> None:
    first = memory_of(first_compaction())
    assert first.anchor is not None
    more = (*LONG, *loop(20), user("Go on."))
    window = int(size(more) / 0.92)  # over the trigger, not at the edge: there even a pause gives way
    for pause in Pause:
        guard = Guard(model="m", window=window, pause=pause)
        memory = Memory(anchor=changed(first.anchor, guard=guard, compaction=None))
        found = told(a_call(more), a_snap(window), memory)
        assert (found.decision, found.stopped) == ("paused", pause.value) and pause.value in found.why
    tired = Guard(model="m", window=WINDOW, failures=2)
    memory = Memory(anchor=changed(first.anchor, guard=tired, compaction=None))
    assert told(a_call(more), a_snap(WINDOW, summarisers=lambda: (OWN,)), memory).stopped == ""
    memory = Memory(anchor=changed(first.anchor, guard=changed(tired, failures=3), compaction=None))
    found = told(a_call(more), a_snap(WINDOW, summarisers=lambda: (OWN,)), memory)
    assert (found.decision, found.stopped) == ("made", "model_failures")
    assert found.compaction is not None and found.compaction.asks == ()


def test_where_nothing_can_be_gained_the_part_that_is_too_large_is_named() -> None:
    messages = (system("rule " * 9000), user("Hello."))
    found = told(a_call(messages), a_snap(WINDOW))
    assert found.decision == "stuck" and "the system messages alone take" in found.why and found.stopped == ""


def test_with_the_built_in_notes_off_nobody_knows_what_a_model_would_write() -> None:
    policy = Policy(summary_builtin=False)
    found = told(a_call(LONG), a_snap(WINDOW, policy=policy, summarisers=lambda: (OTHER, OWN)))
    assert found.decision == "asks" and "what small, else m would write is not known" in found.why


def test_a_window_that_somebody_asks_about_is_told_as_such() -> None:
    snap = changed(a_snap(None), limits=Limits(total=500, source="asked"))
    found = told(a_call(SHORT), snap)
    assert found.held is not None and (found.held.window, found.held.source) == (500, "asked")


# -- memory -----------------------------------------------------------------------------------------------------------


def test_what_memory_tells_shorter_and_what_has_slid_out_of_it_is_told() -> None:
    short = MemoryLimits(turns=5, result_turns=2, step=1)
    agent = msgspec.structs.replace(SUPPORT, memory=short, skills=(), tools=("read_tool_result",))
    long = MemoryLimits(turns=50)
    messages = (system("Be brief."), *loop(12), user("And now?"))
    call = a_call(messages)
    found = account(call, layered(call, agent, window=None, policy=Policy()))
    assert found.prompt == served(call, layered(call, agent, window=None), Memory())
    assert found.told.memory == Window(first=0, results=3, trimmed=5)
    assert found.told.decision == "folded" and found.told.compaction is not None
    assert found.told.compaction.state == "new" and found.told.compaction.notes.turns == 7
    parts = {part.layer: part for part in found.told.parts}
    assert parts["earlier"].told == "as memory tells them" and parts["notes"].told == "turns 1-7"
    assert found.told.tools.own == ("read_tool_result",)
    dropping = msgspec.structs.replace(agent, memory=msgspec.structs.replace(short, leaving="drop"))
    gone = told(call, layered(call, dropping))
    assert gone.compaction is None and gone.memory == Window(first=7, results=10, trimmed=12)
    kept = told(call, layered(call, msgspec.structs.replace(agent, memory=long)))
    assert kept.memory is not None and kept.memory.first == 0
    assert told(call, layered(call)).memory is None


# -- commands and modes -----------------------------------------------------------------------------------------------


def test_a_command_to_the_gateway_sends_nothing_upstream() -> None:
    found = account(a_call((*LONG, model("Done."), user("/compact keep the paths"))), a_snap(WINDOW))
    assert found.prompt is None and found.told.decision == "command"
    assert "Conversation compacted: turns 1-" in found.told.why
    made = found.told.compaction
    assert made is not None and made.trigger == "MANUAL" and made.messages > 100
    nothing = account(a_call((user("/compact"),)), a_snap(WINDOW))
    assert "Not compacted: there is nothing to compact yet." in nothing.told.why and nothing.told.compaction is None


def test_the_modes_that_only_watch_send_the_clients_own_messages() -> None:
    seen = account(a_call(LONG), a_snap(WINDOW, mode=Mode.OBSERVE))
    assert seen.prompt is not None and seen.prompt.messages is LONG and seen.told.same_bytes
    assert seen.told.decision == "made" and seen.told.compaction is not None
    assert "the client's own bytes go out" in seen.told.why and "notes" not in layers(seen.told)
    assert seen.told.tokens == seen.told.whole
    off = account(a_call(LONG), a_snap(WINDOW, mode=Mode.OFF))
    assert off.told.decision == "relayed" and off.told.compaction is None
    assert play(explained(a_call(LONG), a_snap(WINDOW, mode=Mode.OFF))).steps == []


# -- repairs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("messages", "fixes"),
    [
        (SHORT, []),
        ((user("Go."), model("", asked_for("c1")), user("And?")), [("unanswered_call", 1)]),
        ((user("Go."), model("", asked_for("c1")), result("c1", "")), [("empty_result", 1)]),
        ((user("Go."), result("c9", "Lost."), user("And?")), [("orphan_result", 1)]),
        ((user("Go."), model(""), user("And?")), [("dropped_or_moved", 1)]),
    ],
)
def test_each_repair_is_named(messages: tuple[Message, ...], fixes: list[Any]) -> None:
    found = told(a_call(messages), a_snap(WINDOW))
    assert found.repaired == tuple(Fix(what=what, count=count) for what, count in fixes)
    assert found.same_bytes is not bool(fixes)


def test_merged_neighbours_are_repairs_too() -> None:
    messages = (user("Go."), user("Now."), model("Yes."), user("And?"))
    assert told(a_call(messages), a_snap(WINDOW, policy=Policy(alternate=True))).repaired == (
        Fix(what="merged", count=1),
    )


# -- layers -----------------------------------------------------------------------------------------------------------


def test_the_layers_of_an_agent_are_told_in_the_order_in_which_they_are_read() -> None:
    call = a_call((system("Be brief."), *loop(2), user("/tone And now?")), tools=b"[{}]", tools_tokens=40)
    found = told(call, layered(call), tools=1)
    front = ["base", "conventions", "instructions", "client_system", "skills", "catalogue"]
    assert layers(found) == [*front, "earlier", "newest", "client_tools", "own_tools"]
    named = {part.layer: part.told for part in found.parts}
    assert (named["skills"], named["catalogue"], named["client_tools"]) == ("tone", "refund", "1 tool")
    sizes = {part.layer: part.tokens for part in found.parts}
    alone = a_call(call.messages)
    own = next(part.tokens for part in told(alone, layered(alone)).parts if part.layer == "own_tools")
    assert abs(sizes["own_tools"] - own) <= 1 and abs(sizes["client_tools"] - 40) <= 1
    assert found.skills == ("tone",) and found.tools.own == ("load_skill",) and found.tools.client == 1
    before = msgspec.structs.replace(SUPPORT, client_system="before")
    assert layers(told(call, layered(call, before), tools=1))[:4] == [
        "base",
        "conventions",
        "client_system",
        "instructions",
    ]


def test_a_selected_skill_beside_its_message_is_a_layer_of_its_own() -> None:
    call = a_call((*loop(1), user("/tone And now?")))
    found = told(call, layered(call, msgspec.structs.replace(SUPPORT, place="message")))
    assert layers(found)[-4:] == ["earlier", "skills", "newest", "own_tools"]
    skill = next(part for part in found.parts if part.layer == "skills")
    assert skill.told == "tone beside the request" and skill.tokens > 10


def test_a_base_prompt_alone_is_told_for_a_plain_model() -> None:
    call = a_call(SHORT)
    found = told(call, layered(call, None))
    assert layers(found)[:3] == ["base", "conventions", "client_system"] and not found.agent
    assert (found.effort, found.tools.why) == (None, "Only agents offer tools of the gateway.")


@pytest.mark.parametrize(
    ("agent", "asked", "why"),
    [
        ({"tools": ()}, {}, "The agent offers none."),
        ({"skills": ()}, {}, "There is no skill that the model could load."),
        ({}, {"barred": True, "choices": 2}, "The request wants an answer of a fixed form"),
        (
            {},
            {"tools": b'[{"type":"function","function":{"name":"load_skill"}}]'},
            "The client's own tool of that name",
        ),
    ],
)
def test_why_no_tool_of_ours_is_offered_is_said(agent: dict[str, Any], asked: dict[str, Any], why: str) -> None:
    barred = asked.pop("barred", False)
    call = a_call(SHORT, **asked)
    found = told(call, layered(call, msgspec.structs.replace(SUPPORT, **agent)), barred=barred)
    assert found.tools.own == () and found.tools.why.startswith(why)


def test_the_effort_that_holds_is_told_with_its_source_and_its_members() -> None:
    messages = (*loop(1), user("And now?"))
    plain, stating = a_call(messages), a_call(messages, fields={"reasoning_effort": b'"high"'})
    agents = told(plain, layered(plain)).effort
    assert agents is not None and (agents.level, agents.source) == ("medium", "agent")
    assert bytes(agents.members) == b'{"reasoning_effort":"medium"}'
    stated = told(stating, layered(stating)).effort
    assert stated is not None and (stated.level, stated.source) == ("high", "request")
    open_turn = (user("Go."), model("", asked_for("c1")), result("c1", "ok"))
    resumed = a_call(open_turn, label="chat")
    payload = packed(Behind(effort="low", traces=(Trace(kind="SKILL_SELECT", id=TONE.id),)))
    assert payload is not None
    place = Branch(resumed, a_snap()).chain.after[0]
    memory = Memory(hidden=(Hidden(digest=place, label="chat", payload=payload),))
    kept = told(resumed, layered(resumed), memory)
    assert kept.effort is not None and (kept.effort.level, kept.effort.source) == ("low", "turn")
    assert kept.skills == ("tone",)


def test_what_serving_would_refuse_is_refused() -> None:
    cases = [("/nothing Hi.", NotFound, SUPPORT), ("/draft Hi.", Conflict, SUPPORT)]
    cases.append(("Hi.", Malformed, msgspec.structs.replace(SUPPORT, client_system="refuse")))
    for text, error, agent in cases:
        call = a_call((system("Be brief."), user(text)))
        with pytest.raises(error):
            account(call, layered(call, agent))


def test_system_messages_that_notes_leave_standing_are_told_behind_the_layers() -> None:
    messages = (system("Lead."), user("one"), model("a"), system("Inner."), user("two"), model("b"), user("three"))
    call = a_call(messages)
    branch = Branch(call, layered(call, None))
    branch.layer()
    digest = branch.chain.after[5]
    used = Compaction(id="cmp_x", digest=digest, messages=4, covers=4, notes=Notes(turns=2), standing=1)
    leading, standing, noted, newest = branch.prompt(used).messages
    assert "Lead." in leading.text and standing.text == "Inner." and newest.text == "three"
    assert noted.text.startswith("<conversation-notes")


def test_nothing_is_asked_but_what_is_known_and_how_large_it_is() -> None:
    snap = a_snap(WINDOW, summarisers=lambda: (OWN,))
    played = play(explained(a_call(LONG), snap), (like(Recall), Memory()), (like(Count), estimates))
    assert {type(step) for step in played.steps} == {Recall, Count}
    real = play(
        exchange(a_call(LONG), a_snap(WINDOW)),
        (like(Recall), Memory()),
        (like(Claim), True),
        (like(Count), estimates),
        (compacted(), None),
        (like(Send), a_reply()),
        (remembered(), None),
    )
    assert played.result.prompt == real[Send][0].prompt
