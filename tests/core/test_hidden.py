"""What only the told transcript has: kept and given back whole, and told where it belongs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from proxy.core import chain
from proxy.core.chain import message
from proxy.core.conversation import Block, Message, Reasoning, Text, ToolCall, ToolResult
from proxy.core.hidden import (
    BETWEEN,
    Behind,
    Expansion,
    Placed,
    Said,
    expansion,
    kept,
    packed,
    placed,
    shown,
    told,
    unpacked,
)
from proxy.core.recognition import recognise
from proxy.core.stack import Entry, Trace
from proxy.core.steps import Hidden
from tests.core.histories import START, call, model, result, system, user

LOAD = ToolCall(id="w1", name="load_skill", arguments='{"name":"tone"}')
GREP = call("g1", "grep", what="x")
FULL = Behind(
    rounds=(kept(model("Let me look.", LOAD)), kept(result("w1", "Be kind."))),
    reply=kept(model("Done.")),
    shown=b"s" * 16,
    results=(kept(result("w2", "more")),),
    traces=(Trace(kind="SKILL_SELECT", id="acme/tone"), Trace(kind="SKILL_LOAD", id="shared/a")),
    effort="high",
    catalogue=(Entry(slug="tone", when="always"),),
)


def hidden(digest: bytes, state: Behind) -> Hidden:
    payload = packed(state)
    assert payload is not None
    return Hidden(digest=digest, label=None, payload=payload)


def test_what_is_stored_comes_back_as_it_was_and_nothing_takes_no_place() -> None:
    payload = packed(FULL)
    assert payload is not None
    assert unpacked(payload) == FULL
    assert packed(Behind()) is None
    assert unpacked(b"{}") == Behind()


def test_an_empty_catalogue_is_a_catalogue() -> None:
    payload = packed(Behind(catalogue=()))
    assert payload is not None
    assert unpacked(payload).catalogue == ()
    assert unpacked(b"{}").catalogue is None


BLOCKS = st.one_of(
    st.builds(lambda text: Text(text=text), st.text(min_size=1, max_size=8)),
    st.builds(lambda text: Reasoning(text=text), st.text(min_size=1, max_size=8)),
    st.builds(
        lambda id, name, extra: ToolCall(id=id, name=name, arguments="{}", extra=extra),
        st.text(max_size=4),
        st.sampled_from(["grep", "load_skill"]),
        st.sampled_from([b"", b'{"index":0}']),
    ),
)


@given(st.lists(BLOCKS, max_size=5))
def test_a_reply_is_told_as_it_was_said(blocks: list[Block]) -> None:
    said = message("assistant", tuple(blocks))
    again = told(kept(said))
    assert again.calls == said.calls
    assert again.text == said.text
    assert "".join(block.text for block in again.blocks if type(block) is Reasoning) == "".join(
        block.text for block in said.blocks if type(block) is Reasoning
    )


def test_a_result_is_told_as_it_was_given() -> None:
    assert told(kept(result("w1", "Be kind."))) == result("w1", "Be kind.")
    assert told(kept(result("w1", ""))).results == (ToolResult(call_id="w1", text=""),)


def test_a_client_sees_one_message_of_all_rounds_without_our_calls() -> None:
    own = frozenset(["load_skill"])
    seen = shown([model("Let me look.", LOAD), None, model("", LOAD), model("Done.", GREP, LOAD)], own)
    assert seen == model(f"Let me look.{BETWEEN}Done.", GREP)
    assert shown([model("", LOAD)], own) is None
    assert shown([None], own) is None
    thought = message("assistant", (Reasoning(text="hm"), Text(text="Yes.")))
    assert shown([thought], own) == model("Yes.")


# -- its place in a history -------------------------------------------------------------------------------------------

TALK = (system("Be brief."), user("One"), model("Done."), system("The date."), user("Two"))


def test_hidden_state_stands_behind_the_message_that_its_answer_came_behind() -> None:
    past = recognise(START, TALK)
    after = past.chain.after
    later, first = hidden(after[4], Behind(effort="low")), hidden(after[1], FULL)
    assert placed(past, (), (4,)) == ()
    assert placed(past, (later, first, hidden(b"x" * 16, FULL)), (4,)) == (
        Placed(index=1, reply=2, state=FULL, opened=False, again=False),
        Placed(index=4, reply=None, state=Behind(effort="low"), opened=True, again=True),
    )


def test_system_messages_between_a_request_and_its_answer_part_nothing() -> None:
    talk = (user("One"), system("The date."), model("Done."), user("Two"))
    past = recognise(START, talk)
    assert past.chain.after[0] == past.chain.after[1]
    (found,) = placed(past, (hidden(past.chain.after[0], FULL),), (3,))
    assert (found.index, found.reply) == (1, 2)


def test_where_no_answer_was_sent_back_there_is_none() -> None:
    past = recognise(START, (user("One"), user("Two"), system("x")))
    after = past.chain.after
    first, last = placed(past, (hidden(after[0], FULL), hidden(after[1], FULL)), ())
    assert (first.index, first.reply, first.opened, first.again) == (0, None, False, False)
    assert (last.index, last.reply, last.opened, last.again) == (2, None, False, True)


# -- what is told there -----------------------------------------------------------------------------------------------


def at(state: Behind, reply: Message, opened: bool = False) -> tuple[Placed, tuple[Message, ...]]:
    return Placed(index=0, reply=1, state=state, opened=opened, again=False), (user("One"), reply)


def test_a_reply_that_came_back_as_it_was_is_told_word_for_word() -> None:
    seen = model("Let me look.\n\nDone.")
    state = Behind(rounds=FULL.rounds, reply=kept(model("Done.")), shown=seen.digest)
    each, messages = at(state, seen)
    assert each.speaks
    assert each.told_whole(messages)
    assert expansion(each, messages) == Expansion(
        before=(model("Let me look.", LOAD), result("w1", "Be kind.")), instead=model("Done.")
    )


def test_a_reply_that_was_altered_is_told_as_it_was_sent_back_behind_the_rounds() -> None:
    state = Behind(rounds=FULL.rounds, reply=kept(model("Done.")), shown=model("Done.").digest)
    each, messages = at(state, model("Done!"))
    assert expansion(each, messages) == Expansion(before=(model("Let me look.", LOAD), result("w1", "Be kind.")))
    assert each.told_whole(messages)  # all its results are in the rounds


def test_results_beside_an_altered_reply_are_not_told() -> None:
    state = Behind(reply=kept(model("", LOAD, GREP)), shown=model("", GREP).digest, results=(kept(result("w1", "k")),))
    each, messages = at(state, model("Changed.", GREP))
    assert expansion(each, messages) == Expansion()
    assert not each.told_whole(messages)


def test_a_mixed_reply_has_both_calls_and_our_result_before_the_clients() -> None:
    seen = model("", GREP)
    state = Behind(reply=kept(model("", LOAD, GREP)), shown=seen.digest, results=(kept(result("w1", "Be kind.")),))
    each, messages = at(state, seen)
    assert each.told_whole(messages)
    assert expansion(each, messages) == Expansion(instead=model("", LOAD, GREP), behind=(result("w1", "Be kind."),))


def test_the_clients_calls_bear_the_ids_that_it_gives_back() -> None:
    """Its results bear them too; an identity is made of ordinals, so other ids are no other reply."""
    find = call("f1", "find")
    said = message("assistant", (Text(text="See."), GREP, LOAD, find))
    seen = message("assistant", (Text(text="See."), GREP, find))
    other = model("See.", call("9", "grep", what="x"), call("8", "find"))
    assert seen.digest == other.digest
    state = Behind(reply=kept(said), shown=seen.digest, results=(kept(result("w1", "k")),))
    each, messages = at(state, other)
    made = expansion(each, messages)
    assert made.instead is not None
    assert [(item.id, item.name) for item in made.instead.calls] == [("9", "grep"), ("w1", "load_skill"), ("8", "find")]


def test_our_calls_make_way_where_the_client_gives_their_ids_to_its_own() -> None:
    seen = model("See.", GREP)
    state = Behind(reply=kept(model("See.", LOAD, GREP)), shown=seen.digest, results=(kept(result("w1", "Be kind.")),))
    each, messages = at(state, model("See.", call("w1", "grep", what="x")))
    made = expansion(each, messages)
    assert made.instead is not None
    assert [(item.id, item.name) for item in made.instead.calls] == [("w1_", "load_skill"), ("w1", "grep")]
    assert made.behind == (result("w1_", "Be kind."),)


def test_what_a_turn_has_loaded_stays_with_its_request() -> None:
    loads = (Trace(kind="SKILL_LOAD", id="shared/tone"),)
    rounds = (model("Let me look.", LOAD), result("w1", "Be kind."))
    seen = model("", GREP)
    alone = Behind(rounds=FULL.rounds, reply=kept(seen), shown=seen.digest, traces=loads)
    each, messages = at(alone, seen, opened=True)
    assert expansion(each, messages).stays == rounds
    each, messages = at(alone, model("Changed.", GREP), opened=True)
    assert expansion(each, messages).stays == rounds
    each, messages = at(alone, seen)
    assert (expansion(each, messages).stays, expansion(each, messages).opened) == (rounds, False)
    nothing = Behind(rounds=FULL.rounds, reply=kept(seen), shown=seen.digest)
    each, messages = at(nothing, seen, opened=True)
    assert expansion(each, messages).stays == ()


def test_of_a_mixed_reply_only_our_part_stays() -> None:
    seen = model("See.", GREP)
    mixed = Behind(
        reply=kept(model("See.", LOAD, GREP)),
        shown=seen.digest,
        results=(kept(result("w1", "Be kind.")),),
        traces=(Trace(kind="SKILL_LOAD", id="shared/tone"),),
    )
    each, messages = at(mixed, seen, opened=True)
    assert expansion(each, messages).stays == (model("", LOAD), result("w1", "Be kind."))


def test_state_without_rounds_or_reply_says_nothing() -> None:
    each, _ = at(Behind(effort="low"), model("x"))
    assert not each.speaks
    assert Said(role="user") == kept(message("user", ()))
    assert chain.message("user", ()) == told(Said(role="user"))


def test_results_of_one_message_are_kept_one_by_one() -> None:
    assert kept(message("tool", (ToolResult(call_id="a", text="x"),))).answers == "a"
    assert kept(message("assistant", (Text(text="x"), Reasoning(text="r")))) == Said(
        role="assistant", text="x", reasoning="r"
    )
