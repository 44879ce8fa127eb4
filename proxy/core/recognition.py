"""What a history is, worked out in one pass; a longer one, by going on from what is known.

Belongs here: identities, sizes and soundness of messages as they came. Never: what is told instead of them. Whoever
remembers a `Past` pays for what is new in the next call.
"""

from __future__ import annotations

import msgspec

from proxy.core import chain
from proxy.core.command import answers, pairs
from proxy.core.conversation import SYSTEM, Message
from proxy.core.groups import sound
from proxy.core.past import Chain, Past


def nothing(start: bytes) -> Past:
    """The past of a conversation that has not begun; `start` is the digest before all its messages."""
    return Past(
        messages=(),
        chain=Chain(start=start, after=(), counted=()),
        places=(start,),
        tokens=0,
        system=b"",
        answered=False,
        media=False,
        sound=True,
        wire=0,
    )


def recognise(start: bytes, messages: tuple[Message, ...], known: Past | None = None) -> Past:
    """The past that `messages` are, from the digest `start` on. `known` is that of a beginning of them, if it is known;
    where another caller's identities are in it, it is of no use."""
    if known is None or known.chain.start != start:
        known = nothing(start)
    first = len(known.messages)
    line = chain.extend(known.chain, messages)
    after = line.after
    places: list[bytes] = []
    tokens, system, wire = known.tokens, known.system, known.wire
    answered, media, commanded = known.answered, known.media, False
    for index, item in enumerate(messages[first:], first):
        tokens += item.tokens
        if item.wire is not None:
            wire += len(item.wire)
        if item.media:
            media = True
        role = item.role
        if role in SYSTEM:
            system += item.digest
        else:
            places.append(after[index])
            if role == "assistant":
                answered = True
                commanded = commanded or answers(item)
    places.reverse()
    return Past(
        messages=messages,
        chain=line,
        places=(*places, *known.places),
        tokens=tokens,
        system=system,
        answered=answered,
        media=media,
        sound=sound(messages, first if known.sound else 0),
        wire=wire,
        quiet=pairs(messages) if commanded else known.quiet,
    )


def told(past: Past) -> Past:
    """`past` as models are told it: without what was said to the gateway alone. Its identities are still those of the
    history as it is shown."""
    if not past.quiet:
        return past
    kept = [index for index in range(len(past.messages)) if index not in past.quiet]
    line = past.chain
    return msgspec.structs.replace(
        past,
        messages=tuple([past.messages[index] for index in kept]),
        chain=Chain(
            start=line.start,
            after=tuple([line.after[index] for index in kept]),
            counted=tuple([line.counted[index] for index in kept]),
        ),
        tokens=past.tokens - sum([past.messages[index].tokens for index in past.quiet]),
        quiet=frozenset(),
    )


def beginning(known: Past, length: int) -> Past:
    """The past of the first `length` messages of `known`: an edit or a rewind keeps what lies before it.

    It counts as sound if `known` does, though its last call may still wait for an answer: `groups.sound` looks at a
    group that is cut in two from its call on.
    """
    if length == len(known.messages):
        return known
    kept, left = known.messages[:length], known.messages[length:]
    line = known.chain
    counted = line.counted[length - 1] if length else 0
    named = sum([item.role in SYSTEM for item in left]) * chain.SIZE
    return Past(
        messages=kept,
        chain=Chain(start=line.start, after=line.after[:length], counted=line.counted[:length]),
        places=known.places[len(known.places) - 1 - counted :],
        tokens=known.tokens - sum([item.tokens for item in left]),
        system=known.system[: len(known.system) - named],
        answered=known.answered and any(item.role == "assistant" for item in kept),
        media=known.media and any(item.media for item in kept),
        sound=known.sound,
        wire=known.wire - sum([len(item.wire or b"") for item in left]),
        quiet=pairs(kept) if known.quiet else known.quiet,
    )
