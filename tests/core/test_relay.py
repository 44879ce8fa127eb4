"""What the client sees of an answer is one message with one end, however many rounds and choices it took."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from proxy.core.conversation import Clarification, Reasoning, Text, ToolCall
from proxy.core.events import Broke, CallDelta, Counted, Ended, Event, Remark, Said
from proxy.core.relay import Relay
from proxy.core.usage import Usage

OWN = frozenset({"load_skill"})


def said(text: str = "", **more: object) -> Said:
    blank = not (text or more)
    return Said(raw=b"raw " + text.encode(), text=text, blank=blank, **more)  # type: ignore[arg-type]


def call(index: int, name: str = "", arguments: str = "", id: str = "") -> CallDelta:
    return CallDelta(index=index, id=id, name=name, arguments=arguments)


def counted(input: int, output: int) -> Counted:
    return Counted(raw=b"usage", usage=Usage(input=input, output=output))


def relay(*, usage: bool = True, own: frozenset[str] = frozenset()) -> Relay:
    return Relay(include_usage=usage, own=own)


def test_text_goes_out_at_once_and_the_finish_waits_for_the_end() -> None:
    playing = relay()
    role, text, finish, usage = said(), said("a"), said(finish="stop"), counted(7, 2)
    assert playing.feed(role) == (role,)
    assert not playing.said
    assert playing.feed(text) == (text,)
    assert playing.said
    assert playing.feed(finish) == playing.feed(usage) == ()
    assert playing.complete
    assert playing.end() == (finish, usage)
    assert playing.end() == ()


def test_text_in_the_frame_of_the_finish_waits_with_it() -> None:
    playing = relay()
    last = said("a", finish="stop")
    assert playing.feed(last) == ()
    assert not playing.said
    assert playing.end() == (last,)
    assert playing.said
    message = playing.reply().message
    assert message is not None
    assert message.text == "a"


def test_usage_that_the_client_did_not_ask_for_is_kept_for_us() -> None:
    playing = relay(usage=False)
    playing.feed(said("a", finish="stop"))
    playing.feed(counted(7, 2))
    assert [type(event) for event in playing.end()] == [Said]
    assert playing.usage == Usage(input=7, output=2)


def test_usage_inside_a_frame_with_a_choice_is_read() -> None:
    playing = relay()
    playing.feed(said("a", usage=Usage(input=1, output=1)))
    playing.feed(said(finish="stop", usage=Usage(input=3, output=4)))
    assert playing.usage == Usage(input=3, output=4)


def test_comments_errors_and_end_marks_are_no_part_of_the_answer() -> None:
    playing = relay()
    for event in (Remark(raw=b": hi\n\n"), Ended(), Broke(status=500, body=b"{}")):
        assert playing.feed(event) == ()
    assert not playing.complete
    assert playing.reply().message is None


def test_a_data_frame_that_says_nothing_to_us_may_say_something_to_a_client() -> None:
    playing = relay(own=OWN)
    filtered = Remark(raw=b'data: {"choices":[],"prompt_filter_results":[]}\n\n', told=True)
    assert playing.feed(filtered) == (filtered,)
    assert not playing.said
    playing.feed(said(calls=(call(0, "load_skill", "{}"),), finish="tool_calls"))
    playing.next_round()
    assert playing.feed(filtered) == ()  # the answer has begun


def test_a_reply_is_put_together_from_its_pieces() -> None:
    playing = relay()
    for event in (
        said(reasoning="h"),
        said(reasoning="m"),
        said("a"),
        said("b"),
        said(calls=(call(1, "g", "", "y"),)),
        said(calls=(call(0, "f", "{", "x"), call(1, "", "[", "z"))),
        said(calls=(call(0, "", "}"),)),
        said(finish="tool_calls"),
    ):
        playing.feed(event)
    reply = playing.reply()
    assert reply.message is not None
    assert reply.message.blocks == (
        Reasoning(text="hm"),
        Text(text="ab"),
        ToolCall(id="x", name="f", arguments="{}"),
        ToolCall(id="y", name="g", arguments="["),
    )
    assert reply.finish == playing.finish == "tool_calls"


def test_a_stream_is_whole_only_when_every_choice_has_ended() -> None:
    playing = relay()
    assert not playing.complete
    playing.feed(said("a"))
    playing.feed(said("b", choice=1))
    playing.feed(said(finish="stop"))
    assert not playing.complete
    playing.feed(said(choice=1, finish="length"))
    assert playing.complete
    assert playing.finish == "stop"
    assert playing.reply().message is None
    assert len(playing.end()) == 2


def test_several_choices_in_one_frame_all_count() -> None:
    playing = relay()
    both = said("a", others=((1, None),))
    assert playing.feed(both) == (both,)
    first_ends = said("b", finish="stop", others=((1, None),))
    assert playing.feed(first_ends) == (first_ends,)  # the other one still speaks
    assert not playing.complete
    last = said(finish="stop", others=((1, "stop"),))
    assert playing.feed(last) == ()
    assert playing.complete
    assert playing.end() == (last,)


def test_a_stream_that_breaks_off_is_not_whole() -> None:
    playing = relay()
    playing.feed(said("a"))
    assert not playing.complete
    assert playing.finish is None
    playing.feed(counted(1, 1))
    assert not playing.complete


def test_calls_of_ours_are_held_back_and_rounds_make_one_message() -> None:
    playing = relay(own=OWN)
    text = said("let me see")
    assert playing.feed(text) == (text,)
    assert playing.feed(said(calls=(call(0, "load_skill", "", "s1"),))) == ()
    assert playing.feed(said(calls=(call(0, "", '{"n":1}'),))) == ()
    assert playing.feed(said(finish="tool_calls")) == ()
    assert playing.feed(counted(10, 5)) == ()
    asked = playing.reply().message
    assert asked is not None
    assert asked.calls == (ToolCall(id="s1", name="load_skill", arguments='{"n":1}'),)
    assert playing.next_round() == ()
    assert not playing.complete
    assert playing.feed(said()) == ()  # a second role would begin a second message
    (answer,) = playing.feed(said("done"))
    assert answer == Said(raw=None, text="\n\ndone")
    more = said(".")
    assert playing.feed(more) == (more,)
    finish = said(finish="stop")
    playing.feed(finish)
    playing.feed(counted(30, 7))
    summed = Counted(raw=None, usage=Usage(input=30, output=12), rounds=2, read=40)
    assert playing.end() == (finish, summed)
    assert playing.usage == Usage(input=30, output=7)
    message = playing.reply().message
    assert message is not None
    assert message.text == "done."


def test_text_beside_our_call_is_still_said() -> None:
    playing = relay(own=OWN)
    (shown,) = playing.feed(said("wait", calls=(call(0, "load_skill"),)))
    assert shown == Said(raw=None, text="wait", calls=())
    (thought,) = playing.feed(said(reasoning="hm", calls=(call(1, "load_skill"),)))
    assert isinstance(thought, Said)
    assert (thought.reasoning, thought.calls) == ("hm", ())


def test_what_the_last_frame_of_our_round_says_is_not_lost() -> None:
    playing = relay(own=OWN)
    playing.feed(said("and", calls=(call(0, "load_skill"),), finish="tool_calls"))
    (shown,) = playing.next_round()
    assert shown == Said(raw=None, text="and", calls=())
    assert not playing.said  # of the round that follows


def test_a_mixed_reply_hands_over_the_clients_calls_numbered_from_nought() -> None:
    playing = relay(own=OWN)
    assert playing.feed(said(calls=(call(0, "load_skill", "", "s"),))) == ()
    (shown,) = playing.feed(said(calls=(call(1, "grep", "", "g"),)))
    assert isinstance(shown, Said)
    assert shown.raw is None
    assert shown.calls == (call(0, "grep", "", "g"),)
    (more,) = playing.feed(said(calls=(call(0, "", "{}"), call(1, "", "{}"))))
    assert isinstance(more, Said)
    assert more.calls == (call(0, "", "{}"),)
    message = playing.reply().message
    assert message is not None
    assert [each.name for each in message.calls] == ["load_skill", "grep"]


def test_a_call_is_shown_whole_once_its_name_says_whose_it_is() -> None:
    playing = relay(own=OWN)
    ids = said(calls=(CallDelta(index=0, id="w"), CallDelta(index=1, id="g", arguments="{")))
    assert playing.feed(ids) == ()
    assert not playing.said
    assert playing.feed(said(calls=(call(0, "load_skill", "{}"),))) == ()
    (shown,) = playing.feed(said(calls=(call(1, "grep", "}"),)))
    assert isinstance(shown, Said)
    assert shown.calls == (CallDelta(index=0, id="g", name="grep", arguments="{}"),)
    plain = relay()
    assert plain.feed(ids) == (ids,), "where none of ours are offered all are the client's"


def test_calls_of_a_later_round_stand_behind_the_earlier_ones() -> None:
    playing = relay(own=OWN)
    first = said(calls=(call(0, "grep", "", "g"),))
    assert playing.feed(first) == (first,)
    playing.feed(said(calls=(call(1, "load_skill", "", "s"),)))
    playing.feed(said(finish="tool_calls"))
    playing.next_round()
    (shown,) = playing.feed(said(calls=(call(0, "find", "", "f"),)))
    assert isinstance(shown, Said)
    assert shown.calls == (call(1, "find", "", "f"),)


def test_who_called_none_of_the_clients_tools_has_stopped() -> None:
    playing = relay(own=OWN)
    playing.feed(said(calls=(call(0, "load_skill"),), finish="tool_calls"))
    (shown,) = playing.end()
    assert isinstance(shown, Said)
    assert (shown.raw, shown.calls, shown.finish) == (None, (), "stop")


def test_usage_in_the_last_frame_of_a_later_round_is_told_apart_with_the_sum() -> None:
    playing = relay(own=OWN)
    playing.feed(said(calls=(call(0, "load_skill"),), finish="tool_calls", usage=Usage(input=10, output=5)))
    playing.next_round()
    playing.feed(said("done", finish="stop", usage=Usage(input=30, output=7)))
    ended, summed = playing.end()
    assert ended == Said(raw=None, text="done", finish="stop")
    assert summed == Counted(raw=None, usage=Usage(input=30, output=12), rounds=2, read=40)


def test_usage_in_a_last_frame_that_holds_a_call_of_ours_is_told_apart() -> None:
    playing = relay(own=OWN)
    calls = (call(0, "load_skill"), call(1, "grep", "", "g"))
    playing.feed(said(calls=calls, finish="tool_calls", usage=Usage(input=10, output=5)))
    ended, counts = playing.end()
    assert ended == Said(raw=None, calls=(call(0, "grep", "", "g"),), finish="tool_calls")
    assert counts == Counted(raw=None, usage=Usage(input=10, output=5))
    silent = relay(usage=False, own=OWN)
    silent.feed(said(calls=calls, finish="tool_calls", usage=Usage(input=10, output=5)))
    assert silent.end() == (ended,)


def test_what_earlier_rounds_thought_is_counted_with_what_they_wrote() -> None:
    playing = relay(own=OWN)
    playing.feed(said(calls=(call(0, "load_skill"),), finish="tool_calls"))
    playing.feed(Counted(raw=b"u", usage=Usage(input=10, output=5, reasoning=4)))
    playing.next_round()
    playing.feed(said("done", finish="stop"))
    playing.feed(Counted(raw=b"u", usage=Usage(input=30, output=7, reasoning=2)))
    _, summed = playing.end()
    assert isinstance(summed, Counted)
    assert (summed.usage.output, summed.usage.reasoning) == (12, 6)


def test_usage_that_comes_twice_in_a_later_round_is_told_once() -> None:
    playing = relay(own=OWN)
    playing.feed(said(calls=(call(0, "load_skill"),), finish="tool_calls"))
    playing.next_round()
    playing.feed(said(finish="stop", usage=Usage(input=30, output=7)))
    playing.feed(counted(30, 7))
    assert [type(event) for event in playing.end()] == [Said, Counted]


def test_usage_of_later_rounds_stays_ours_where_the_client_did_not_ask() -> None:
    playing = relay(usage=False, own=OWN)
    playing.feed(said(calls=(call(0, "load_skill"),), finish="tool_calls"))
    playing.next_round()
    playing.feed(said(finish="stop", usage=Usage(input=30, output=7)))
    assert playing.end() == (Said(raw=None, finish="stop"),)


def test_a_round_that_is_asked_for_again_begins_anew_and_the_earlier_ones_stay() -> None:
    playing = relay(own=OWN)
    playing.feed(said("see"))
    playing.feed(said(calls=(call(0, "grep", "", "g"), call(1, "load_skill", "", "s")), finish="tool_calls"))
    playing.feed(counted(10, 5))
    playing.next_round()
    playing.feed(said(calls=(call(0, "load_skill", "{", "x"),)))
    playing.feed(counted(20, 9))
    playing.again()
    assert (playing.reply().message, playing.usage, playing.finish, playing.complete) == (None, None, None, False)
    (text,) = playing.feed(said("done"))
    assert text == Said(raw=None, text="\n\ndone")
    (find,) = playing.feed(said(calls=(call(0, "find", "", "f"),)))
    assert isinstance(find, Said)
    assert find.calls == (call(1, "find", "", "f"),)
    finish = said(finish="tool_calls")
    playing.feed(finish)
    playing.feed(counted(30, 7))
    assert playing.end() == (finish, Counted(raw=None, usage=Usage(input=30, output=12), rounds=2, read=40))


def test_a_round_without_text_sets_nothing_apart() -> None:
    playing = relay(own=OWN)
    playing.feed(said(calls=(call(0, "load_skill"),), finish="tool_calls"))
    playing.next_round()
    text = said("done")
    assert playing.feed(text) == (text,)
    playing.feed(said(calls=(call(0, "load_skill"),), finish="tool_calls"))
    playing.next_round()
    (more,) = playing.feed(said("more"))
    assert more == Said(raw=None, text="\n\nmore")


def test_calls_of_another_choice_are_never_taken_for_ours() -> None:
    playing = relay(own=OWN)
    other = said(choice=1, calls=(call(0, "load_skill"),))
    assert playing.feed(other) == (other,)


PAUSE = Clarification(id="q1", question="Which?")


def test_what_the_user_is_asked_stands_before_the_finish_and_apart_from_what_was_said() -> None:
    asks = call(0, "ask_user", "{}", "q1")
    for words in ("", "Hm."):
        playing = relay(own=OWN | {"ask_user"})
        if words:
            playing.feed(said(words))
        playing.feed(said(calls=(asks,)))
        playing.feed(said(finish="tool_calls"))
        playing.feed(counted(7, 2))
        question, finish, usage = playing.end(PAUSE)
        assert question == Said(raw=None, text="\n\nWhich?" if words else "Which?", pause=PAUSE)
        assert isinstance(finish, Said)
        assert (finish.raw, finish.finish, finish.calls) == (None, "stop", ())
        assert usage == counted(7, 2)
        assert playing.said


def test_it_stands_behind_what_the_frame_of_the_finish_says_and_keeps_its_usage() -> None:
    asks = call(0, "ask_user", "{}", "q1")
    for finish in ("tool_calls", "stop"):
        playing = relay(own=OWN | {"ask_user"})
        playing.feed(said("Hm.", calls=(asks,), finish=finish, usage=Usage(input=7, output=2)))
        words, question, end, usage = playing.end(PAUSE)
        assert isinstance(words, Said) and isinstance(question, Said) and isinstance(end, Said)
        assert (words.text, words.calls, words.finish) == ("Hm.", (), None)
        assert question.text == "\n\nWhich?"
        assert (end.text, end.finish, end.usage) == ("", "stop", None)
        assert usage == Counted(raw=None, usage=Usage(input=7, output=2))


EVENTS = st.one_of(
    st.builds(lambda text: said(text), st.text("ab", max_size=3)),
    st.builds(lambda index: said(calls=(call(index, "grep", "x"),)), st.integers(0, 2)),
    st.builds(lambda finish: said(finish=finish), st.sampled_from(["stop", "length"])),
    st.just(counted(5, 1)),
)


@given(st.lists(EVENTS, max_size=12))
def test_without_tools_of_ours_every_frame_of_a_round_reaches_the_client_as_it_came(events: list[Event]) -> None:
    playing = relay()
    shown = [each for event in events for each in playing.feed(event)]
    assert all(isinstance(event, Said) and event.finish is None for event in shown)
    shown.extend(playing.end())
    assert sorted(map(repr, shown)) == sorted(map(repr, events))


@given(st.lists(EVENTS, max_size=12))
def test_said_is_true_once_a_reader_could_have_seen_something(events: list[Event]) -> None:
    playing = relay()
    shown = [each for event in events for each in playing.feed(event)]
    assert playing.said == any(isinstance(event, Said) and not event.blank for event in shown)
