"""How hard a model should think: the levels, their order, and what a model that knows only some of them is asked for.

Belongs here: the scale. Never: which member of a request carries a level (the dialect's), which levels a model has (the
catalogue's and the policy's), or which of several statements holds (the agent's, the message's, the turn's).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, get_args

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]

LEVELS: Final[tuple[Effort, ...]] = get_args(Effort)
"""From not at all to as hard as it can."""

Means = Literal[
    "reasoning_effort",
    "reasoning",
    "thinking",
    "thinking_budget",
    "thinking_adaptive",
    "enable_thinking",
    "chat_template_kwargs",
    "none",
]
"""How an upstream is told a level (what each writes stands in `dialects.chat.effort`); none: it cannot be told."""


def nearest(level: Effort, supported: Sequence[Effort]) -> Effort | None:
    """The level of `supported` that is nearest to `level`; of two as near, the higher. None where none is supported.

    Up, because too little thought costs the answer and too much only tokens.
    """
    wanted = LEVELS.index(level)
    return min(supported, key=lambda each: (abs(LEVELS.index(each) - wanted), -LEVELS.index(each)), default=None)


def effort_of(stated: object) -> Effort | None:
    """The level that a request states, None where it states none that we know.

    "max" (DeepSeek, Anthropic, OpenRouter) is the end of the scale, as "xhigh" is.
    """
    if stated == "max":
        return "xhigh"
    return next((level for level in LEVELS if level == stated), None)
