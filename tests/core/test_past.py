"""The values that a history is known by: places in a chain are found by count and by digest."""

from __future__ import annotations

from hypothesis import given

from proxy.core import chain
from proxy.core.conversation import Message
from tests.core.histories import START, conversations


@given(conversations())
def test_the_message_behind_a_count_is_found_again(said: tuple[Message, ...]) -> None:
    links = chain.follow(START, said)
    assert links.behind(0) == 0
    for place, (item, counted) in enumerate(zip(said, links.counted, strict=True)):
        if item.role != "system":
            assert links.behind(counted) == place + 1
    assert not links.holds(b"?" * chain.SIZE, len(said) + 1)
    assert not links.holds(b"?" * chain.SIZE, 0)
