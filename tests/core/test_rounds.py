"""Tool rounds: what is run, when the call ends, what the client sees and what is remembered."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from proxy.core.chain import measured, message
from proxy.core.conversation import Block, Message, Reasoning, Text, ToolCall
from proxy.core.events import CallDelta, Counted, Said
from proxy.core.hidden import Behind, kept, shown
from proxy.core.layers import Layers, layered
from proxy.core.recognition import recognise
from proxy.core.relay import Relay
from proxy.core.rounds import MOST, Rounds
from proxy.core.stack import Trace
from proxy.core.steps import Ran, Reply, RunTools
from proxy.core.usage import Usage
from tests.core.histories import START, call, model, result, user
from tests.core.stacks import REFUND, TONE, a_stack, an_agent, loads

OWN = frozenset(["load_skill"])
GREP = call("g1", "grep", what="x")


def a_stackful(text: str = "Hello") -> Layers:
    return layered(a_stack(an_agent()), recognise(START, (user(text),)), ())


def said(*blocks: Any, finish: str | None = None, usage: tuple[int, int] | None = None) -> Reply:
    item = message("assistant", tuple(Text(text=each) if isinstance(each, str) else each for each in blocks))
    ends = finish or ("tool_calls" if item.calls else "stop")
    return Reply(
        message=item if blocks else None, finish=ends, usage=Usage(input=usage[0], output=usage[1]) if usage else None
    )


def ran(rounds: Rounds, reply: Reply, *skills: Any) -> bool:
    """Take a reply and answer our calls of it, each with a skill (None: with none)."""
    asked = rounds.take(reply)
    assert asked is not None
    assert len(asked.calls) == len(skills)
    found = [Ran(text=skill.text if skill else "None.", skill=skill.id if skill else None) for skill in skills]
    return rounds.ran(asked.calls, found)


def test_a_reply_without_our_calls_ends_the_call() -> None:
    for reply in (said("Done."), said("See.", GREP), said()):
        rounds = Rounds(a_stackful())
        assert rounds.take(reply) is None
        assert (rounds.count, rounds.replies) == (0, 1)
        assert rounds.behind(reply.message, 1.0) == rounds.layers.kept


def test_a_call_of_ours_is_run_and_the_model_goes_on() -> None:
    rounds = Rounds(a_stackful())
    layers = rounds.layers
    asked = rounds.take(said("Let me look.", loads(), usage=(40, 5)))
    assert asked == RunTools(calls=(loads(),), catalogue=layers.catalogue, loaded=frozenset())
    assert rounds.ran(asked.calls, [Ran(text=TONE.text, skill=TONE.id)])
    assert rounds.layers.rounds == (model("Let me look.", loads()), result("w1", TONE.text))
    assert rounds.take(said("Done.", usage=(60, 7))) is None
    assert rounds.reply() == Reply(
        message=model("Let me look.\n\nDone."), finish="stop", usage=Usage(input=60, output=12)
    )
    assert (rounds.read, rounds.replies, rounds.count) == (100, 2, 1)


def test_what_all_rounds_thought_is_told_and_makes_no_identity() -> None:
    rounds = Rounds(a_stackful())
    assert ran(rounds, said(Reasoning(text="Which tone? "), loads()), TONE)
    rounds.take(said(Reasoning(text="Warm."), "Done."))
    seen = rounds.reply().message
    assert seen == message("assistant", (Reasoning(text="Which tone? Warm."), Text(text="Done.")))
    assert seen is not None and seen.digest == model("Done.").digest
    silent = Rounds(a_stackful())
    assert ran(silent, said(Reasoning(text="Which tone?"), loads()), TONE)
    silent.take(said())
    assert silent.reply().message is None


def test_what_is_remembered_is_what_the_model_said() -> None:
    rounds = Rounds(a_stackful())
    assert ran(rounds, said(loads()), TONE)
    rounds.take(said("Done."))
    seen = rounds.reply().message
    assert seen == model("Done.")
    first = rounds.layers.kept
    assert rounds.behind(seen, 1.0) == Behind(
        rounds=(kept(model("", loads())), kept(result("w1", TONE.text))),
        reply=kept(model("Done.")),
        shown=seen.digest,
        traces=(Trace(kind="SKILL_LOAD", id=TONE.id),),
        catalogue=first.catalogue,
    )


def test_a_skill_is_loaded_once_and_what_is_there_already_counts() -> None:
    rounds = Rounds(a_stackful("/refund Hello"))
    asked = rounds.take(said(loads(), loads("w2")))
    assert asked is not None
    assert asked.loaded == {REFUND.id}
    rounds.ran(asked.calls, [Ran(text=TONE.text, skill=TONE.id), Ran(text="Again.", skill=TONE.id)])
    again = rounds.take(said(loads("w3")))
    assert again is not None
    assert again.loaded == {REFUND.id, TONE.id}
    rounds.ran(again.calls, [Ran(text="Loaded already.")])
    rounds.take(said("Done."))
    traces = rounds.behind(rounds.reply().message, 1.0).traces
    assert [(trace.kind, trace.id) for trace in traces] == [("SKILL_SELECT", REFUND.id), ("SKILL_LOAD", TONE.id)]


def test_skills_of_covered_messages_are_not_there() -> None:
    talk = (user("/tone One"), model("Done."), user("Two"))
    layers = layered(a_stack(an_agent(place="message")), recognise(START, talk), ())
    asked = Rounds(layers).take(said(loads()))
    assert asked is not None
    assert asked.loaded == {TONE.id}
    asked = Rounds(layers, first=2).take(said(loads()))
    assert asked is not None
    assert asked.loaded == frozenset()


def test_a_mixed_reply_ends_the_call_once_ours_are_run() -> None:
    rounds = Rounds(a_stackful())
    reply = said("See.", loads(), GREP)
    assert not ran(rounds, reply, TONE)
    assert rounds.layers.rounds == ()
    seen = rounds.reply()
    assert seen == Reply(message=model("See.", GREP), finish="tool_calls", usage=None)
    made = rounds.behind(seen.message, 1.0)
    assert made.rounds == ()
    assert made.reply == kept(model("See.", loads(), GREP))
    assert made.results == (kept(result("w1", TONE.text)),)
    assert made.traces == (Trace(kind="SKILL_LOAD", id=TONE.id),)


def test_in_the_last_round_no_tool_may_be_called_and_what_is_called_all_the_same_is_unseen() -> None:
    rounds = Rounds(a_stackful())
    for number in range(MOST):
        assert "tool_choice" not in rounds.layers.members
        assert ran(rounds, said(loads(f"w{number}")), None)
    assert rounds.layers.members["tool_choice"] == b'"none"'
    assert rounds.take(said("Enough.", loads("again"))) is None
    seen = rounds.reply()
    assert seen == Reply(message=model("Enough."), finish="stop", usage=None)
    assert rounds.behind(seen.message, 1.0).reply == kept(model("Enough."))
    assert len(rounds.behind(seen.message, 1.0).rounds) == 2 * MOST


def test_where_nothing_was_said_in_all_rounds_there_is_no_message() -> None:
    rounds = Rounds(a_stackful())
    for number in range(MOST):
        ran(rounds, said(loads(f"w{number}")), None)
    rounds.take(said(loads("again")))
    seen = rounds.reply()
    assert seen == Reply(message=None, finish="stop", usage=None)
    made = rounds.behind(None, 1.0)
    assert (made.reply, made.shown, len(made.rounds)) == (None, b"", 2 * MOST)


def test_a_last_round_of_nothing_but_our_calls_is_remembered_as_the_rounds_alone() -> None:
    rounds = Rounds(a_stackful())
    for number in range(MOST):
        ran(rounds, said("Hm.", loads(f"w{number}")), None)
    rounds.take(said(loads("again")))
    seen = rounds.reply()
    assert seen.message is not None
    assert rounds.behind(seen.message, 1.0).reply is None


def test_the_clients_calls_in_the_last_round_are_handed_over_without_ours() -> None:
    rounds = Rounds(a_stackful())
    for number in range(MOST):
        ran(rounds, said(loads(f"w{number}")), None)
    rounds.take(said(loads("again"), GREP))
    seen = rounds.reply()
    assert seen == Reply(message=model("", GREP), finish="tool_calls", usage=None)
    assert rounds.behind(seen.message, 1.0).reply == kept(model("", GREP))
    assert rounds.behind(seen.message, 1.0).results == ()


def test_another_finish_stays() -> None:
    rounds = Rounds(a_stackful())
    ran(rounds, said(loads()), TONE)
    rounds.take(said("Do", finish="length"))
    assert rounds.reply().finish == "length"


def test_rounds_without_a_report_count_for_nothing() -> None:
    rounds = Rounds(a_stackful())
    ran(rounds, said(loads()), TONE)
    rounds.take(said("Done.", usage=(60, 7)))
    assert rounds.reply().usage == Usage(input=60, output=7)
    assert rounds.read == 60


def ids(blocks: tuple[Block, ...]) -> list[str]:
    return [block.id for block in blocks if isinstance(block, ToolCall)]


def test_calls_of_ours_get_ids_of_their_own_and_the_clients_keep_theirs() -> None:
    def renamed(*calls: ToolCall) -> tuple[list[str], list[str]]:
        rounds = Rounds(a_stackful())
        asked = rounds.take(said("See.", *calls))
        assert asked is not None
        item = rounds._replies[-1].message
        assert item is not None
        return ids(item.blocks), [call.id for call in asked.calls]

    grep = call("", "grep")
    assert renamed(loads(""), loads("")) == (["call_0_1", "call_0_2"], ["call_0_1", "call_0_2"])
    assert renamed(loads("a"), loads("a")) == (["a", "call_0_2"], ["a", "call_0_2"])
    assert renamed(grep, loads(""), grep) == (["", "call_0_2", ""], ["call_0_2"])
    assert renamed(loads("g1"), GREP) == (["call_0_1", "g1"], ["call_0_1"])
    assert renamed(loads("a"), GREP) == (["a", "g1"], ["a"])


# -- what is streamed of several rounds is what the exchange says of them ----------------------------------------------

TEXTS = st.text("ab \n", max_size=4)


@st.composite
def replies(draw: st.DrawFn) -> list[Message | None]:
    """What a model says round by round: all but the last call our tools alone."""
    rounds: list[Message | None] = []
    for number in range(draw(st.integers(0, 3))):
        texts = [Text(text=text)] if (text := draw(TEXTS)) else []
        rounds.append(message("assistant", (*texts, *(loads(f"w{number}{n}") for n in range(draw(st.integers(1, 2)))))))
    blocks: list[Block] = [Text(text=text)] if (text := draw(TEXTS)) else []
    if draw(st.booleans()):
        blocks.insert(0, Reasoning(text="hm"))
    blocks += draw(st.lists(st.sampled_from([GREP, call("f1", "find")]), unique=True))
    if draw(st.booleans()):
        blocks.insert(
            draw(st.integers(len(blocks) - len([b for b in blocks if type(b) is ToolCall]), len(blocks))), loads("wl")
        )
    return [*rounds, message("assistant", tuple(blocks)) if blocks else None]


def frames(item: Message | None, draw: Any) -> list[Said]:
    """The increments of a reply, cut anywhere; the finish may come with the last of them."""
    made: list[Said] = [Said(raw=b"role", blank=True)]
    if item is not None:
        for block in item.blocks:
            if isinstance(block, Text):
                cut = draw(st.integers(0, len(block.text)))
                made += [Said(raw=b"t", text=part) for part in (block.text[:cut], block.text[cut:]) if part]
            elif isinstance(block, Reasoning):
                made.append(Said(raw=b"r", reasoning=block.text))
        for index, each in enumerate(item.calls):
            made.append(Said(raw=b"c", calls=(CallDelta(index=index, id=each.id, name=each.name),)))
            made.append(Said(raw=b"c", calls=(CallDelta(index=index, arguments=each.arguments),)))
    finish = "tool_calls" if item is not None and item.calls else "stop"
    if len(made) > 1 and draw(st.booleans()):
        last = made.pop()
        made.append(Said(raw=b"f", text=last.text, reasoning=last.reasoning, calls=last.calls, finish=finish))
    else:
        made.append(Said(raw=b"f", finish=finish))
    return made


@given(replies(), st.data())
def test_a_stream_shows_of_several_rounds_what_the_answer_says(said: list[Message | None], data: st.DataObject) -> None:
    relay = Relay(include_usage=True, own=OWN)
    out: list[Said] = []
    counted: list[Counted] = []
    for number, item in enumerate(said):
        for frame in frames(item, data.draw):
            out += [event for event in relay.feed(frame) if isinstance(event, Said)]
        relay.feed(Counted(raw=b"u", usage=Usage(input=10 + number, output=2)))
        reply = relay.reply()
        assert (measured(reply.message) if reply.message is not None else None) == item
        if number < len(said) - 1:
            out += [event for event in relay.next_round() if isinstance(event, Said)]
    for event in relay.end():
        (out if isinstance(event, Said) else counted).append(event)  # type: ignore[arg-type]
    told = shown(said, OWN)
    assert "".join(event.text for event in out) == (told.text if told else "")
    calls: dict[int, list[str]] = {}
    for event in out:
        for each in event.calls:
            known = calls.setdefault(each.index, ["", "", ""])
            known[0] += each.id
            known[1] += each.name
            known[2] += each.arguments
    assert [*calls] == [*range(len(calls))]
    assert [tuple(each) for each in calls.values()] == [
        (each.id, each.name, each.arguments) for each in (told.calls if told else ())
    ]
    assert [event.finish for event in out if event.finish] == ["tool_calls" if told and told.calls else "stop"]
    (sum_,) = counted
    assert (sum_.usage.input, sum_.usage.output) == (9 + len(said), 2 * len(said))
    if len(said) > 1:
        assert (sum_.rounds, sum_.read) == (len(said), sum(10 + number for number in range(len(said))))


def test_what_a_cut_reply_asks_of_us_is_not_run_and_not_shown() -> None:
    for finish in ("length", "content_filter"):
        rounds = Rounds(a_stackful())
        assert rounds.take(said("Let me", loads(), finish=finish)) is None
        assert rounds.reply() == Reply(message=model("Let me"), finish=finish, usage=None)
        assert rounds.behind(model("Let me"), 1.0) == rounds.layers.kept


def test_arguments_that_no_server_would_read_again_are_told_as_none() -> None:
    for arguments in ('{"name":', "[]", "", "tone", '"tone"', '{"name": "\\ud83d"}', "[" * 9000):
        rounds = Rounds(a_stackful())
        broken = ToolCall(id="w1", name="load_skill", arguments=arguments)
        asked = rounds.take(said(broken, call("g1", "grep", x=1)))
        assert asked is not None
        assert [each.arguments for each in asked.calls] == ["{}"]
    theirs = ToolCall(id="g1", name="grep", arguments="{")
    rounds = Rounds(a_stackful())
    ran(rounds, said(loads(), theirs), TONE)
    seen = rounds.reply().message
    assert seen is not None
    assert seen.calls == (theirs,)
