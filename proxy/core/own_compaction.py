"""A client's own compaction request: the call in which an agent asks the model to summarise the conversation.

It reads the whole history where that fits, or the agent's notes would be notes of our notes. Recognised by what the
agents known today open it with; a request that is not recognised is served like any other, only told compacted.
Seen on the wire or in the sources named in research/real-parts.md 5.2, 5.4 and compaction.md F93.
"""

from __future__ import annotations

import re
from typing import Final

from proxy.core.conversation import Message

_SEARCHED: Final = 4000
_OPENINGS: Final = re.compile(
    r"context checkpoint compaction"
    r"|create a (?:detailed |comprehensive |structured |anchored )*summary of (?:the|our|this) (?:conversation|session)"
    r"|(?:provide|write|give) (?:me |us )?a (?:detailed |comprehensive |concise )*"
    r"(?:summary|prompt for continuing|handoff)(?: of)? (?:the |our |this )?(?:conversation|session|above)"
    r"|summari[sz]e (?:the|our|this) (?:entire |whole |above )?(?:conversation|chat|session)(?: history| so far)?"
    r"|compact (?:the|this|our) conversation"
    r"|(?:state_snapshot|compress(?:ion)? (?:of )?the (?:chat|conversation) history)",
    re.IGNORECASE,
)


def asks_for_summary(messages: tuple[Message, ...]) -> bool:
    """Whether the newest message is an agent's order to summarise the conversation."""
    last = messages[-1] if messages else None
    if last is None or last.role != "user" or len(messages) < 3:
        return False
    text = last.text
    return _OPENINGS.search(text[:_SEARCHED]) is not None
