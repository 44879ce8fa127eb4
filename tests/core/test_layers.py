"""Which layers a call gets, what of them a prompt holds, and what is remembered of the decision."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.core.conversation import Message
from proxy.core.errors import Malformed
from proxy.core.hidden import Behind, kept
from proxy.core.layers import CLIENTS, NONE, pieces, standing
from proxy.core.stack import Entry, Trace
from proxy.core.steps import Memory
from tests.core.histories import call, model, result, system, user
from tests.core.stacks import (
    TONE,
    a_stack,
    an_agent,
    behind,
    lead,
    loads,
    made,
    select,
    told,
)

GREP = call("g1", "grep", what="x")
HELLO = (user("Hello"),)
LOADED = (Trace(kind="SKILL_LOAD", id=TONE.id),)
OPEN = (user("/tone Find"), model("", GREP), result("g1", "x"))


# -- the leading message ----------------------------------------------------------------------------------------------


def test_where_nothing_is_added_the_prompt_is_the_same_object() -> None:
    messages = (system("Be brief."), user("Hello"))
    assert NONE.told(messages, (0, 1), None) is messages
    nothing = made(a_stack(an_agent(skills=())), messages)
    assert nothing.leading is None
    assert told(nothing, messages) is messages
    assert (nothing.extra, nothing.members, nothing.own, nothing.kept) == (0, {}, frozenset(), Behind())


def test_a_base_alone_is_followed_by_the_conventions() -> None:
    layers = made(a_stack(base="You are {agent}.", facts={"agent": "x"}), HELLO)
    (text,) = lead(layers)
    assert text.startswith("You are x.\n\nHow this conversation is kept:")
    assert layers.offer is None
    assert told(layers, HELLO) == (layers.leading, *HELLO)


def test_a_later_layer_stands_behind_an_earlier_one() -> None:
    messages = (system("Client."), user("/tone Hello"))
    agent = an_agent(instructions="Author.")
    before, clients, after = lead(made(a_stack(agent, base="Base."), messages))
    assert before.startswith("Base.\n\nHow this")
    assert before.endswith("\n\nAuthor.")
    assert clients == "Client."
    assert after.index(TONE.text) < after.index("- refund: For money back.")
    before, clients, after = lead(made(a_stack(an_agent(instructions="Author.", client_system="before")), messages))
    assert "Author." not in before
    assert after.startswith("Author.\n\n")


def test_the_pieces_of_the_leading_message_are_named() -> None:
    stack = a_stack(an_agent(instructions="A."), base="B.")
    names = [name for name, _ in pieces(stack, standing(stack), (TONE,), ())]
    assert names == ["base", "conventions", "instructions", CLIENTS[0], "skills", "catalogue"]
    before = a_stack(an_agent(instructions="A.", client_system="before"))
    assert [name for name, _ in pieces(before, standing(before), (), ())][2:4] == ["client_system", "instructions"]


def test_a_client_that_may_not_bring_a_system_message_is_refused() -> None:
    stack = a_stack(an_agent(client_system="refuse", instructions="A."))
    with pytest.raises(Malformed) as refused:
        made(stack, (system("Client."), *HELLO))
    assert refused.value.param == "messages[0]"
    inside = (user("Hello"), model("Yes?"), system("Now in French."), user("Go on."))
    assert told(made(stack, inside), inside)[1:] == inside  # one inside the history is none of those


def test_names_of_a_closed_set_are_replaced_and_nothing_else_is() -> None:
    facts = {"agent": "{date}", "date": "2026-11-30", "tenant": "acme"}
    text = "{agent} {date} {tenant} {language} {user} {} {{date}} {date!r} %(date)s"
    (said,) = lead(made(a_stack(an_agent(skills=(), instructions=text), facts=facts), HELLO))
    assert said.endswith("{date} 2026-11-30 acme {language} {user} {} {2026-11-30} {date!r} %(date)s")


def test_the_clients_leading_messages_become_one_and_those_inside_stay() -> None:
    messages = (system("A"), system("B"), user("Hello"), system("C"), model("Yes?"), user("Go on."))
    layers = made(a_stack(base="Base."), messages)
    assert layers.replaced == 2
    assert told(layers, messages) == (layers.leading, *messages[2:])
    assert lead(layers)[1:] == ["A", "B"]


def test_only_system_messages_are_a_conversation_too() -> None:
    messages = (system("A"),)
    layers = made(a_stack(an_agent()), messages)
    assert told(layers, messages) == (layers.leading,)


# -- what the turn keeps ----------------------------------------------------------------------------------------------


def test_the_effort_is_the_messages_then_the_turns_then_the_agents() -> None:
    agent = an_agent(effort="low", skills=())
    memory = behind(OPEN, (0, Behind(effort="high")))
    later = (*OPEN, model("Done."), user("Next"))

    def effort(messages: tuple[Message, ...], memory: Memory, **more: Any) -> tuple[object, object, object]:
        layers = made(a_stack(agent, **more), messages, memory)
        return layers.effort, layers.members.get("reasoning_effort"), layers.kept.effort

    assert effort(HELLO, Memory()) == ("low", b"low", None)
    assert effort(HELLO, Memory(), stated="xhigh") == ("xhigh", b"xhigh", "xhigh")
    assert effort(OPEN, memory) == ("high", b"high", None)  # kept on resume, and recorded once
    assert effort(OPEN, memory, stated="none") == ("none", b"none", "none")
    assert effort(OPEN, memory, stated="high") == ("high", b"high", None)
    assert effort(later, behind(later, (0, Behind(effort="high")))) == ("low", b"low", None)


def test_a_plain_model_is_told_no_effort() -> None:
    assert made(a_stack(base="Base.", stated="high"), HELLO).members == {}


def test_the_last_effort_of_a_turn_holds() -> None:
    loop = (*OPEN, model("", call("g2", "grep")), result("g2", "y"))
    memory = behind(loop, (0, Behind(effort="high")), (2, Behind(effort="minimal")))
    assert made(a_stack(an_agent()), loop, memory).effort == "minimal"


def test_the_catalogue_is_frozen_with_the_first_answer_of_a_conversation() -> None:
    old = (Entry(slug="gone", when="Long ago."), Entry(slug="tone", when="As it was."))
    messages = (user("One"), model("Done."), user("Two"))
    layers = made(a_stack(an_agent()), messages, behind(messages, (0, Behind(catalogue=old))))
    assert layers.catalogue == old
    assert "- tone: As it was." in lead(layers)[-1]
    assert layers.offer is not None
    assert layers.offer.members == {"tools": b'{"enum":["gone","tone"]}'}
    assert layers.kept.catalogue is None
    first = made(a_stack(an_agent()), HELLO)
    assert first.kept.catalogue == first.catalogue != ()


def test_an_empty_catalogue_is_frozen_as_well() -> None:
    assert made(a_stack(an_agent(), shelf={}), HELLO).kept.catalogue == ()
    messages = (user("One"), model("Done."), user("Two"))
    layers = made(a_stack(an_agent()), messages, behind(messages, (0, Behind(catalogue=()))))
    assert (layers.catalogue, layers.offer) == ((), None)
    for without in (an_agent(skills=()), an_agent(tools=())):
        assert made(a_stack(without), HELLO).kept.catalogue is None


def test_another_answer_to_the_same_request_takes_the_same_decisions_and_records_them_again() -> None:
    """The client may go on with either; hidden state is chosen by the reply that it sends back."""
    old = (Entry(slug="gone", when="Long ago."),)
    first = Behind(
        traces=(*select(TONE), *LOADED),
        effort="high",
        catalogue=old,
        rounds=(kept(model("", loads())), kept(result("w1", TONE.text))),
        reply=kept(model("Done.")),
        shown=model("Done.").digest,
    )
    opening = OPEN[:1]
    layers = made(a_stack(an_agent()), opening, behind(opening, (0, first)))
    assert layers.kept == Behind(traces=select(TONE), effort="high", catalogue=old)
    assert layers.catalogue == old
    assert layers.loaded(0) == {TONE.id}  # selected; what the other answer loaded is not told
    assert layers.used == ((0, TONE.id),)
    assert told(layers, opening)[1:] == opening
