"""A longer history is worked out from what is known of its beginning, and comes out the same as from nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from proxy.core import chain, groups, measure
from proxy.core.conversation import Message, Text, ToolCall, ToolResult
from proxy.core.past import Past
from proxy.core.recognition import beginning, nothing, recognise
from tests.core.histories import PICTURE, START, call, conversations, model, result, system, user

ANYTHING = st.lists(
    st.sampled_from(
        [
            system("Be brief."),
            user("hi"),
            user("look", PICTURE),
            model("yes"),
            model("", call("a"), call("b")),
            model("", call("a")),
            result("a", "one"),
            result("b", "two"),
            result("z", "orphan"),
            chain.message("user", ()),
            chain.message("assistant", (ToolCall(id="a", name="f", arguments="{}"),) * 2),
            chain.message("function", (ToolResult(call_id="a", text="old"),)),
            chain.message("user", (Text(text="sent"),), wire=b'{"role":"user","content":"sent"}'),
        ]
    ),
    max_size=12,
).map(tuple)


def same(found: Past, expected: Past) -> bool:
    """But for `sound`, which is only asked of whole histories."""
    return all(getattr(found, name) == getattr(expected, name) for name in Past.__struct_fields__ if name != "sound")


@given(said=ANYTHING, known=st.integers(0, 12), cut=st.integers(0, 12))
def test_what_is_known_of_a_beginning_changes_nothing(said: tuple[Message, ...], known: int, cut: int) -> None:
    before = recognise(START, said[:known])
    whole = recognise(START, said, before)
    assert whole == recognise(START, said)
    if before.sound:
        length = min(cut, len(before.messages))
        assert same(beginning(before, length), recognise(START, said[:length]))
        assert recognise(START, said, beginning(before, length)) == whole


@given(said=conversations())
def test_a_past_holds_what_is_asked_of_a_history(said: tuple[Message, ...]) -> None:
    found = recognise(START, said)
    assert found.chain == chain.follow(START, said)
    assert found.places == tuple(dict.fromkeys([*reversed(found.chain.after), START]))
    assert measure.PROMPT_OVERHEAD + found.tokens == measure.prompt_tokens(said, 0)
    assert found.system == b"".join(item.digest for item in said if item.role in ("system", "developer"))
    assert found.answered == any(item.role == "assistant" for item in said)
    assert found.media == any(item.media for item in said)
    assert found.sound == (groups.repair(said).messages is said)


def test_another_callers_identities_are_of_no_use() -> None:
    said = (user("hi"), model("yes"), user("go on"))
    theirs = recognise(chain.begin(b"other" * 8), said[:2])
    assert recognise(START, said, theirs) == recognise(START, said)


def test_an_edit_behind_a_result_leaves_its_call_open() -> None:
    said = (user("hi"), model("", call("a"), call("b")), result("a", "one"), result("b", "two"), user("go on"))
    known = recognise(START, said)
    assert known.sound
    for length in range(len(said) + 1):
        cut = beginning(known, length)
        for behind in ((user("other"),), (result("b", "late"), user("x")), (result("a", "late"), user("x")), ()):
            told = (*said[:length], *behind)
            assert recognise(START, told, cut) == recognise(START, told), (length, behind)


def test_nothing_is_where_every_conversation_begins() -> None:
    assert recognise(START, ()) == nothing(START)
