"""A summary request in the chat completions dialect: the members that `core.summary.FIELDS` allows, and no others."""

from __future__ import annotations

import re
from typing import Final

from proxy.core.conversation import Message
from proxy.core.steps import Call, Caller

_REASONING: Final = re.compile(r"(?:^|/)(?:o[1-9]|gpt-5)")
"""OpenAI's reasoning models refuse `max_tokens` (API reference, chat completions); everybody else understands it."""


def summary_call(
    caller: Caller, model: str, messages: tuple[Message, ...], most: int, *, output_field: str | None = None
) -> Call:
    """The call that asks `model` for a summary of at most `most` tokens, as a stream. `output_field` is the member in
    which a client of this very model states its limit, where it does."""
    field = output_field or ("max_completion_tokens" if _REASONING.search(model) else "max_tokens")
    return Call(
        caller=caller,
        model=model,
        messages=messages,
        fields={"model": b"", "messages": b"", field: b"%d" % most, "stream": b"true"},
        body=b"",
        stream=True,
        max_output=most,
        output_field=field,
    )
