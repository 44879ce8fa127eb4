"""A user who speaks while the model works: what he said is told before its next call, and the turn goes on.

The history gets longer by his words, and the rounds before them are told before them: a history like any other, that
was interrupted where he spoke. Only a conversation that the gateway keeps can be spoken into; another's client would
have to be told.
"""

from __future__ import annotations

import msgspec

from proxy.core.branch import Branch
from proxy.core.conversation import Message
from proxy.core.hidden import Behind, Said, packed
from proxy.core.steps import Flow, Hidden, Remember


def spoken_into(branch: Branch, rounds: tuple[Said, ...], said: tuple[Message, ...]) -> Flow[Branch]:
    """The history of `branch` with `said` behind it, before which our tools answered `rounds`."""
    known = branch.shown if not branch.repaired else None
    call = msgspec.structs.replace(branch.call, messages=(*branch.call.messages, *said), known=known)
    spoken = Branch(call, branch.snap)
    payload = packed(Behind(ahead=rounds, spoken=len(said)))
    assert payload is not None
    place = spoken.chain.last
    yield from Remember(
        scope=branch.snap.scope,
        agent=branch.snap.agent,
        conversation=branch.conversation,
        label=call.label,
        request=place,
        hidden=Hidden(digest=place, label=call.label, payload=payload),
    )
    return spoken
