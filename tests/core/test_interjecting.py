"""A user who speaks while the model works, played as scripts: what is told then, and what the next call has of it."""

from __future__ import annotations

from typing import Any

from proxy.core.conversation import Message
from proxy.core.exchange import exchange
from proxy.core.steps import Interjected, Memory, Recall, Remember, Reply, Send
from proxy.core.usage import Usage
from tests.core.histories import model, result, user
from tests.core.scripts import remembered
from tests.core.stacks import HELLO, LOADED, TONE, asked, loads, prompts, ran, saying, snap
from tests.playbook import Played, like, play

WAIT, AND = user("Wait!"), user("And?")
KEPT: dict[str, Any] = {"owned": "conv_1", "label": "conv_1"}
OPENING = ((like(Recall), Memory()), (like(Send), saying("Let me look.", loads(), input=100)), ran(LOADED))


def spoken(*said: Message, more: tuple[Any, ...] = ()) -> Played:
    """The model loads a skill, its user says something, `more` happens, and the model answers."""
    played = Played()

    def kept(_: Recall) -> Memory:
        hidden = played[Remember][-1].hidden
        assert hidden is not None
        return Memory(hidden=(hidden,))

    interrupted = ((like(Interjected), said), (like(Remember), None), (like(Recall), kept))
    end = ((like(Send, purpose="tool_round"), saying("Done.", input=160)), (remembered(), None))
    return play(exchange(asked(**KEPT), snap()), *OPENING, *interrupted, *more, *end, into=played)


def test_what_was_said_is_told_behind_the_rounds_that_came_before_it() -> None:
    first, second = prompts(spoken(WAIT))
    assert second == (*first, model("Let me look.", loads()), result("w1", TONE.text), WAIT)


def test_the_client_sees_one_message_of_the_whole_turn() -> None:
    outcome = spoken(WAIT).outcome
    assert outcome.reply == Reply(
        message=model("Let me look.\n\nDone."), finish="stop", usage=Usage(input=160, output=4)
    )
    assert (outcome.rounds, outcome.past) == (2, None)


def test_the_next_call_tells_it_where_it_was_said() -> None:
    played = spoken(WAIT, AND)
    hidden = played[Remember][-1].hidden
    assert hidden is not None
    back = (*HELLO, WAIT, AND, model("Let me look.\n\nDone."), user("More"))
    later = play(
        exchange(asked(back, **KEPT), snap()),
        (like(Recall), Memory(hidden=(hidden,))),
        (like(Send), saying("Well.")),
        (remembered(), None),
    )
    (prompt,) = prompts(later)
    told = (*HELLO, model("Let me look.", loads()), result("w1", TONE.text), WAIT, AND, model("Done."), user("More"))
    assert prompt[1:] == told
    assert prompt[: len(prompts(played)[1])] == prompts(played)[1]


def test_it_may_be_spoken_into_again() -> None:
    played = Played()

    def kept(_: Recall) -> Memory:
        return Memory(hidden=tuple(step.hidden for step in played[Remember] if step.hidden is not None))

    play(
        exchange(asked(**KEPT), snap()),
        *OPENING,
        (like(Interjected), (WAIT,)),
        (like(Remember), None),
        (like(Recall), kept),
        (like(Send, purpose="tool_round"), saying("Again.", loads("w2"), input=160)),
        ran(LOADED),
        (like(Interjected), (AND,)),
        (like(Remember), None),
        (like(Recall), kept),
        (like(Send, purpose="tool_round"), saying("Done.", input=200)),
        (remembered(), None),
        into=played,
    )
    third = prompts(played)[2]
    assert third[1:] == (
        *HELLO,
        model("Let me look.", loads()),
        result("w1", TONE.text),
        WAIT,
        model("Again.", loads("w2")),
        result("w2", TONE.text),
        AND,
    )


def test_where_nothing_was_said_the_turn_goes_on() -> None:
    played = play(
        exchange(asked(**KEPT), snap()),
        *OPENING,
        (like(Interjected), ()),
        (like(Send, purpose="tool_round"), saying("Done.", input=160)),
        (remembered(), None),
    )
    assert played.outcome.past is not None


def test_a_conversation_of_the_client_is_never_asked() -> None:
    play(
        exchange(asked(), snap()),
        *OPENING,
        (like(Send, purpose="tool_round"), saying("Done.", input=160)),
        (remembered(), None),
    )
