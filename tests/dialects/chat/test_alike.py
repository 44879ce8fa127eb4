"""A frame is read as if it were the first of its stream, however many like it came before."""

from __future__ import annotations

from itertools import product

import pytest

from proxy.core.errors import InvalidReply
from proxy.core.events import Event, Said
from proxy.dialects.chat.alike import likeness
from proxy.dialects.chat.reply import Frames
from proxy.dialects.sse import SseEvent, frame
from tests.clients import recorded

SHAPES = (
    b'{"id":"i","choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]}',
    b'{"id": "i", "choices": [{"index": 1, "delta": {"role": "assistant", "content": "%b"}}], "usage": null}',
    b'{"id":"i","choices":[{"delta":{"content":"%b"},"x":{"content":"a"}}],"note":"a"}',
    b'{"id":"i","note":"%b","choices":[{"delta":{"content":"a"}}]}',
    b'{"id":"i","choices":[{"delta":{"content":"a","content":"%b"}}]}',
    b'{"id":"i","choices":[{"delta":{"reasoning_content":"%b"}}]}',
    b'{"id":"i","choices":[{"delta":{"content":"a","reasoning":"%b"}}]}',
    b'{"id":"i","choices":[{"delta":{"content":"%b"},"finish_reason":"stop"}]}',
    b'{"id":"i","choices":[{"delta":{"content":"a"}}],"error":"%b"}',
    b'{"id":"i","choices":[{"delta":{"content":"%b"}}],"usage":null,"obfuscation":"%b"}',
    b'{"id":"i","choices":[{"delta":{"content":"z"}}],"usage":null,"obfuscation":"%b"}',
    b'{"id":"i","choices":[{"delta":{"content":"%b"}}],"obfuscation":"a","usage":null}',
    b'{"id":"i","choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]} x',
    b'{"id":"i","choices":[],"usage":{"prompt_tokens":3,"note":"%b"}}',
    b'{"%b":"a","choices":[{"delta":{"content":"%%"}}]}',
)
WORDS = (
    b"a",
    b"b",
    b" word",
    b"content",
    b"delta",
    b"0",
    b"1",
    "\u1ea5".encode(),
    b"",
    b'","x":"',
    b",",
    b"\\n",
    b'\\"',
    b"\x01",
    b"\xff",
)


def event(data: bytes) -> SseEvent:
    return SseEvent(raw=frame(data), data=data)


def read_or_refused(frames: Frames, data: bytes) -> Event | str:
    try:
        return frames.read(event(data))
    except InvalidReply as refused:
        return refused.message


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("other", SHAPES[:4])
def test_a_frame_is_read_alike_whatever_came_before_it(shape: bytes, other: bytes) -> None:
    for first, then in product(WORDS, WORDS):
        frames = Frames("m")
        for words in (shape.replace(b"%b", first), other.replace(b"%b", then), shape.replace(b"%b", then)):
            assert read_or_refused(frames, words) == read_or_refused(Frames("m"), words), words


@pytest.mark.data
def test_recorded_frames_are_read_alike_whatever_came_before_them() -> None:
    for recording in recorded.streams().values():
        frames = Frames("m")
        assert [frames.read(event(payload)) for payload in recording.payloads] == [
            Frames("m").read(event(payload)) for payload in recording.payloads
        ]


def test_what_was_learned_from_one_frame_tells_the_next_without_reading_it() -> None:
    said = Said(raw=b"r", text="a")
    like = likeness(said, b'{"content":"a"}', lambda raw, data: Said(raw=raw, text=data[12:-2].decode()))
    assert like is not None
    assert like.read(b"s", b'{"content":"\\"b\\n"}') == Said(raw=b"s", text='"b\n')
    assert like.read(b"s", b'{"content":"\\u0041"}') == Said(raw=b"s", text="A")
    assert like.read(b"s", b'{"content":"\\ud800"}') is None
    assert like.read(b"s", b'{"content":""}') is None
