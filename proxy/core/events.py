"""What an upstream says while it answers, one increment at a time.

A dialect reads wire frames into these; `relay` decides what of them the client may see. `raw` is the frame's
bytes as they arrived, ready to be sent on; None for a frame that the gateway makes and a dialect renders.
"""

from __future__ import annotations

import msgspec

from proxy.core.conversation import Approval, Clarification
from proxy.core.usage import Usage


class CallDelta(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A piece of a tool call: `index` says which call of the message it belongs to; `extra` see `ToolCall`."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""
    extra: bytes = b""


class Said(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A data frame with a choice. `blank` is True while it carries nothing a reader would see (a role alone).

    `others` are the further choices of the same frame, each with its finish; `pause` is what the text asks the user,
    where the gateway put it there.
    """

    raw: bytes | None
    choice: int = 0
    text: str = ""
    reasoning: str = ""
    calls: tuple[CallDelta, ...] = ()
    finish: str | None = None
    usage: Usage | None = None
    blank: bool = False
    others: tuple[tuple[int, str | None], ...] = ()
    pause: Clarification | Approval | None = None


class Counted(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A data frame without choices that carries the usage. Of several `rounds`, `read` is what all their prompts took
    together."""

    raw: bytes | None
    usage: Usage
    rounds: int = 1
    read: int = 0


class Broke(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An error inside the stream. `body` is its JSON as sent, for `overflow.recognise`."""

    status: int
    body: bytes


class Ended(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The dialect's end mark (`[DONE]`)."""


class Remark(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A comment or anything else that means nothing to us. `told`: a data frame that may mean something to a client
    (Azure's first one holds the results of its filter), and is forwarded."""

    raw: bytes
    told: bool = False


Event = Said | Counted | Broke | Ended | Remark
