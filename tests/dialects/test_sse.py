"""Event streams are read alike wherever they are cut, whatever ends their lines, and in bounded memory."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects.sse import DONE, LineTooLong, SseEvent, SseReader, comment, frame

BOM = b"\xef\xbb\xbf"
ENDS = (b"\n", b"\r\n", b"\r")


def events(*chunks: bytes) -> list[SseEvent]:
    reader = SseReader()
    found = [event for chunk in chunks for event in reader.feed(chunk)]
    return [*found, *reader.finish()]


def data(*chunks: bytes) -> list[bytes | None]:
    return [event.data for event in events(*chunks)]


def cuts(body: bytes, places: list[int]) -> list[bytes]:
    bounds = [0, *sorted(place % (len(body) + 1) for place in places), len(body)]
    return [body[start:end] for start, end in pairwise(bounds)]


def by_the_book(body: bytes) -> list[bytes]:
    """The data of each event, by the steps of the standard: lines first, then fields."""
    lines = body.removeprefix(BOM).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    found: list[bytes] = []
    held: list[bytes] = []
    for line in lines:
        if not line:
            if held:
                found.append(b"\n".join(held))
            held = []
            continue
        name, colon, value = line.partition(b":")
        if name == b"data":
            held.append(value.removeprefix(b" ") if colon else b"")
    return found


PIECES = st.sampled_from(
    [b"data: a", b"data:b", b"data", b"data:  c", b"dataset: x", b": note", b"event: e", b"id: 1", b'data: {"a": 1}']
)
STREAMS = st.lists(st.tuples(PIECES, st.sampled_from(ENDS), st.sampled_from([b"", *ENDS])), max_size=12).map(
    lambda lines: b"".join(line + end + blank for line, end, blank in lines)
)


@given(body=STREAMS, bom=st.booleans(), places=st.lists(st.integers(0, 400), max_size=12))
def test_the_same_events_come_out_wherever_the_stream_is_cut(body: bytes, bom: bool, places: list[int]) -> None:
    body = (BOM if bom else b"") + body + b"\n\n"
    found = events(*cuts(body, places))
    assert found == events(body)
    assert [event.data for event in found if event.data is not None] == by_the_book(body)


@given(body=STREAMS, places=st.lists(st.integers(0, 400), max_size=12))
def test_the_raw_bytes_of_all_events_are_the_stream(body: bytes, places: list[int]) -> None:
    reader = SseReader()
    raw = b"".join(event.raw for chunk in cuts(body, places) for event in reader.feed(chunk))
    rest = b"".join(event.raw for event in reader.finish())
    assert body.startswith(raw)
    assert (raw + rest).rstrip(b"\r\n") == body.rstrip(b"\r\n")


@pytest.mark.parametrize("first", ENDS)
@pytest.mark.parametrize("second", ENDS)
def test_any_two_line_ends_end_an_event(first: bytes, second: bytes) -> None:
    if first + second == b"\r\n":  # that is one line end
        return
    body = b"data: a" + first + second + b"data: b" + first + second
    assert data(body) == [b"a", b"b"]
    assert data(*(bytes((byte,)) for byte in body)) == [b"a", b"b"]


def test_an_event_is_given_out_as_soon_as_its_end_is_certain() -> None:
    reader = SseReader()
    assert [event.data for event in reader.feed(b"data: a\n\n")] == [b"a"]
    assert [event.data for event in reader.feed(b"data: b\r\n\r\n")] == [b"b"]
    assert reader.feed(b"data: c\r\r") == []
    assert [event.data for event in reader.feed(b"data: d\r\r.")] == [b"c", b"d"]


def test_a_byte_order_mark_is_skipped_even_when_it_is_cut() -> None:
    body = BOM + b"data: a\n\n"
    for place in range(len(body)):
        assert data(body[:place], body[place:]) == [b"a"]
    assert data(b"", b"", body) == [b"a"]
    assert data(*(bytes((byte,)) for byte in body)) == [b"a"]


def test_an_end_right_behind_a_mark_that_was_cut_is_seen() -> None:
    reader = SseReader()
    assert reader.feed(b"\xef\xbb") == []
    assert [event.raw for event in reader.feed(b"\xbf\n\n")] == [b"\n\n"]


def test_a_second_byte_order_mark_is_content() -> None:
    assert data(BOM + b"data: a\n\n" + BOM + b"data: b\n\n") == [b"a", None]


def test_a_stream_that_is_no_more_than_half_a_mark_ends_quietly() -> None:
    assert data(BOM[:2]) == [None]
    assert data(BOM) == []


def test_several_data_lines_are_one_value() -> None:
    assert data(b"data: a\ndata:\ndata: b\n\n") == [b"a\n\nb"]
    assert data(b"data\n\n") == [b""]


def test_only_one_blank_behind_the_colon_is_eaten() -> None:
    assert data(b"data:  a\n\n", b"data:b\n\n") == [b" a", b"b"]


def test_a_comment_has_no_data_and_keeps_its_bytes() -> None:
    found = events(b": ping\n\n" + b"event: x\ndata: a\n\n")
    assert found[0] == SseEvent(raw=b": ping\n\n", data=None)
    assert found[1] == SseEvent(raw=b"event: x\ndata: a\n\n", data=b"a", name="x")


def test_an_event_without_its_end_is_read_when_the_stream_closes() -> None:
    assert events(b"data: a") == [SseEvent(raw=b"data: a\n\n", data=b"a")]
    assert events(b"data: a\r\n") == [SseEvent(raw=b"data: a\n\n", data=b"a")]
    assert events(b"data: a\n\n\n") == [SseEvent(raw=b"data: a\n\n", data=b"a")]


def test_one_event_is_bounded() -> None:
    reader = SseReader(most=100)
    assert reader.feed(b"data: " + b"a" * 90) == []
    with pytest.raises(LineTooLong):
        reader.feed(b"a" * 10)


def test_many_small_events_do_not_touch_the_bound() -> None:
    reader = SseReader(most=20)
    assert sum(len(reader.feed(b"data: abc\n\n" * 3)) for _ in range(100)) == 300


@pytest.mark.parametrize("line", [b"a\r", b"a\n"])
def test_the_work_on_an_event_in_many_pieces_grows_with_its_size(line: bytes) -> None:
    """Looked at once, not once per piece: four times the pieces may cost some more than four times, never sixteen."""

    def seconds(pieces: int) -> float:
        reader = SseReader()
        began = time.process_time()
        for _ in range(pieces):
            reader.feed(line * 100)
        return time.process_time() - began

    few = min(seconds(400) for _ in range(3))
    assert min(seconds(1600) for _ in range(3)) < 12 * few + 0.02


def test_our_own_frames_are_read_back() -> None:
    assert data(frame(b'{"a":1}'), comment("x"), frame(DONE)) == [b'{"a":1}', None, b"[DONE]"]
