"""Taking secrets out of text that somebody else wrote, before it is shown or logged.

Providers echo keys in their error messages (research/reliability.md I-18). Shapes only: what looks like a credential
goes, whatever it was.
"""

from __future__ import annotations

import re
from typing import Final

REDACTED: Final = "***"
_SHAPES: Final = re.compile(
    # After a scheme: a digit, padding, mixed case or sheer length, for "basic information" is no password.
    r"\b(?i:bearer|basic)\s+(?=[\w.~+/-]*(?:[\d=]|[a-z][A-Z])|[\w.~+/-]{20})[\w.~+/=-]{6,}"
    # With the prefix of a known issuer; masked ones too.
    r"|\b(?:sk|pk|rk|gsk|xai|key|wg|gh[a-z]|github_pat|glpat|hf|r8|xox[a-z])[-_]"
    r"(?=[\w*-]*(?:[\d*]|[A-Za-z]{16}))[\w*-]{8,}"
    r"|\bAKIA[0-9A-Z]{12,}|\bAIza[\w-]{20,}"
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"
    # Long and random: letters and digits with at least one unbroken run; names of models and UUIDs have none.
    r"|(?<![\w-])(?=[\w-]*\d)(?=[\w-]*[A-Za-z])(?=[\w-]*[A-Za-z0-9]{16})[\w-]{32,}"
)


def redacted(text: str, most: int = 400) -> str:
    """`text` without anything shaped like a credential, at most `most` characters, on one line."""
    line = " ".join(text[: most * 4].split())
    shown = _SHAPES.sub(REDACTED, line)
    return shown if len(shown) <= most else shown[: most - 3] + "..."
