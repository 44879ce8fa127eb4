"""`read_tool_result`: how a model asks for what was cut of an earlier result, and what it is answered.

Belongs here: the tool's definition and its answer, a function of the arguments and of the text that the store has under
the reference. Never: making references or storing what they name (`core`). One that never was, one that was deleted and
one of another caller are answered in the same words.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from proxy.core.agent import Spec
from proxy.core.replayed import READ_TOOL_RESULT

PIECE: Final = 8_000
"""Characters that are given where the call does not say how many."""
MOST: Final = 20_000
"""Most characters of one answer."""
_NAME: Final = re.compile(r"[A-Za-z0-9_]{1,64}")
"""What may be a reference; anything else is not told back."""
_TOLD: Final = (
    "Read the whole of an earlier tool result that is shown cut, or of a text that notes refer to. A reference is res_ "
    "and letters. Long texts come in pieces: each answer says how many characters are left, and where they begin."
)


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a call asks for."""

    reference: str
    offset: int = 0
    limit: int = PIECE


_ASKED: Final = msgspec.json.Decoder(Asked, strict=False)
"""Not strict: models write numbers as strings, too."""


def spec() -> Spec:
    limit = f"The most characters to read; {PIECE} unless stated."
    properties = {
        "reference": {"type": "string", "description": "The reference that stands in the cut result or in the notes."},
        "offset": {"type": "integer", "minimum": 0, "description": "The character to begin at; 0 is the first."},
        "limit": {"type": "integer", "minimum": 1, "maximum": MOST, "description": limit},
    }
    schema = {"type": "object", "properties": properties, "required": ["reference"], "additionalProperties": False}
    return Spec(name=READ_TOOL_RESULT, description=_TOLD, parameters=msgspec.json.encode(schema))


def asked(arguments: str) -> Asked | None:
    """What a call with these arguments asks for; None where that cannot be told."""
    try:
        return _ASKED.decode(arguments)
    except (ValueError, RecursionError):  # no JSON, none of this form, a lone surrogate; too deep
        return None


def answer(what: Asked | None, text: str | None) -> str:
    """The answer to a call; `text` is what the store has for this caller under its reference (None: nothing). Never
    raises."""
    if what is None:
        return 'Nothing was read: the arguments must be a JSON object such as {"reference": "res_..."}.'
    if text is None:
        named = f" {what.reference}" if _NAME.fullmatch(what.reference) else " of this name"
        return f"Nothing was read: no result{named} is kept here. The call that it came from can be made again."
    start = max(0, what.offset)
    stop = min(len(text), start + min(max(1, what.limit), MOST))
    if start >= len(text):
        return f"Nothing was read: the text has {len(text)} characters, and offset {what.offset} lies behind them."
    left = len(text) - stop
    head = f"[characters {start} to {stop} of {len(text)}"
    if left:
        return f"{head}; {left} are left, from offset {stop}]\n{text[start:stop]}"
    return f"{head}; this is the end]\n{text[start:stop]}"
