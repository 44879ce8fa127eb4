"""Taking secrets out of text that somebody else wrote, before it is shown or logged.

Providers echo keys in their error messages (research/reliability.md I-18). Shapes only: what looks like a credential
goes, whatever it was.
"""

from __future__ import annotations

import re
from typing import Final

REDACTED: Final = "***"
_SHAPES: Final = re.compile(
    r"(?i)\b(?:bearer|basic)\s+[\w.~+/=-]{6,}"
    r"|\b(?:sk|pk|rk|gsk|xai|key|wg|ghp|gho|glpat|hf|r8|AKIA|AIza)[-_]?[A-Za-z0-9_*-]{8,}"
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"
    r"|(?<=[\"'\s:=(])[A-Za-z0-9_-]*(?=[A-Za-z0-9_-]*\d)(?=[A-Za-z0-9_-]*[A-Za-z])[A-Za-z0-9_-]{32,}"
)


def redacted(text: str, most: int = 400) -> str:
    """`text` without anything shaped like a credential, at most `most` characters, on one line."""
    line = " ".join(text[: most * 4].split())
    shown = _SHAPES.sub(REDACTED, line)
    return shown if len(shown) <= most else shown[: most - 3] + "..."
