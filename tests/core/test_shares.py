"""What each layer takes: the parts add up to the size that decides, whatever they are made of."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from proxy.core import chain
from proxy.core.conversation import Message
from proxy.core.layers import NONE, Layers
from proxy.core.layout import Layout
from proxy.core.shares import many, parts, shared
from proxy.core.stack import Offer
from proxy.core.steps import Prompt, Report
from tests.core.histories import START, call, loop, model, result, system, user


def sent(messages: tuple[Message, ...]) -> Prompt:
    report = Report(conversation="c", tokens=1, window=None)
    return Prompt(messages=messages, untouched=True, max_output=None, estimated=0, shape=b"", report=report)


@given(st.integers(0, 10**9), st.lists(st.integers(0, 10**7), max_size=14))
def test_the_parts_add_up_and_none_is_off_by_one_or_more(total: int, weights: list[int]) -> None:
    found = shared(total, weights)
    whole = sum(weights)
    assert len(found) == len(weights)
    if not whole:
        assert not any(found)
        return
    assert sum(found) == total
    assert all(abs(part - total * weight / whole) < 1 for part, weight in zip(found, weights, strict=True))


def test_a_larger_layer_never_gets_less() -> None:
    found = shared(10, [3, 3, 3, 1])
    assert found == sorted(found, reverse=True) and sum(found) == 10


def test_a_plain_conversation_is_system_earlier_turns_the_newest_and_tools() -> None:
    messages = (system("Be brief."), *loop(2), user("And now?"), user("Please."))
    layout = Layout(messages, chain.follow(START, messages), None)
    found = parts(sent(messages), layout, NONE, None, None, tools=(2, 50), total=1000, window=4000)
    assert [(part.layer, part.messages) for part in found] == [
        ("client_system", 1),
        ("earlier", 8),
        ("newest", 2),
        ("client_tools", 0),
    ]
    assert sum(part.tokens for part in found) == 1000
    assert [part.share for part in found] == [round(part.tokens / 4000, 4) for part in found]
    assert [part.told for part in found] == ["", "word for word", "word for word", "2 tools"]


def test_an_open_loop_belongs_to_the_newest_turn() -> None:
    messages = (*loop(3)[:-1],)
    layout = Layout(messages, chain.follow(START, messages), None)
    earlier, newest = parts(sent(messages), layout, NONE, None, None, tools=(0, 0), total=100, window=None)
    assert (earlier.messages, newest.messages, newest.share) == (8, 3, None)


def test_a_history_in_which_no_user_speaks_has_earlier_messages_alone() -> None:
    messages = (model("Hello."),)
    layout = Layout(messages, chain.follow(START, messages), None)
    (part,) = parts(sent(messages), layout, NONE, None, None, tools=(0, 0), total=9, window=None)
    assert (part.layer, part.tokens) == ("earlier", 9)


def test_one_is_not_several() -> None:
    assert [many(count, "tool") for count in (0, 1, 2000)] == ["0 tools", "1 tool", "2,000 tools"]


def test_rounds_of_our_own_tools_and_a_shorter_memory_are_told_apart() -> None:
    messages = (*loop(3), user("And now?"))
    own = (model("", call("o", "load_skill")), result("o", "Be warm."))
    told = sent((messages[0], *own, messages[3], *messages[4:]))  # the first turn without its call and result
    offer = Offer(names=frozenset(("load_skill",)), members={}, tokens=30, digest=b"")
    layout = Layout(messages, chain.follow(START, messages), None)
    found = parts(told, layout, Layers(offer=offer), None, None, tools=(0, 0), total=10**6, window=None)
    counts = {part.layer: (part.messages, part.told) for part in found}
    assert counts["rounds"] == (2, "calls of our own tools, and results")
    assert counts["earlier"] == (10, "as memory tells them") and counts["newest"][0] == 1
    weights = {part.layer: part.tokens for part in found}
    earlier = sum(item.tokens for item in (messages[0], messages[3], *messages[4:12]))
    assert abs(weights["earlier"] / weights["newest"] - earlier / messages[-1].tokens) < 0.01


def test_a_clients_tool_of_our_name_is_the_clients() -> None:
    messages = (user("Go."), model("", call("o", "load_skill")), result("o", "x"), model("Done."), user("And?"))
    layout = Layout(messages, chain.follow(START, messages), None)
    found = parts(sent(messages), layout, NONE, None, None, tools=(1, 20), total=100, window=None)
    assert [part.layer for part in found] == ["earlier", "newest", "client_tools"]
