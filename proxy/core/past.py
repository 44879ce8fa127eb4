"""What is known of a history: its identities, and what is asked of it at every call.

Values only; `chain` and `recognition` make them. They are kept between calls: a client sends its whole history with
each, and all of it but the end was worked out before.
"""

from __future__ import annotations

from bisect import bisect_left

import msgspec

from proxy.core.conversation import Message


class Chain(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The identities along a history. `after[i]` is the digest behind message i, `counted[i]` how many messages up to
    and including i have an identity; `start` is the digest before all of them."""

    start: bytes
    after: tuple[bytes, ...]
    counted: tuple[int, ...]

    @property
    def last(self) -> bytes:
        return self.after[-1] if self.after else self.start

    def behind(self, counted: int) -> int:
        """Index just behind the `counted`-th chained message; 0 for none."""
        return bisect_left(self.counted, counted) + 1 if counted else 0

    def holds(self, digest: bytes, counted: int) -> bool:
        """Whether the first `counted` chained messages end in `digest`."""
        if counted == 0:
            return digest == self.start
        place = self.behind(counted) - 1
        return place < len(self.after) and self.counted[place] == counted and self.after[place] == digest


class Past(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A history. `places` are the digests of its boundaries, newest first, with the beginning as the last; `tokens` its
    estimated size, `system` the digests of its system messages, joined; `answered` whether an assistant spoke in it,
    `media` whether it holds any; `sound` whether it can be sent without repair; `wire` the bytes it takes on the wire.
    `quiet` are the indices of commands to the gateway and of its lines that answered them: told to no model.
    """

    messages: tuple[Message, ...]
    chain: Chain
    places: tuple[bytes, ...]
    tokens: int
    system: bytes
    answered: bool
    media: bool
    sound: bool
    wire: int
    quiet: frozenset[int] = frozenset()
