"""Taking secrets out of text that somebody else wrote, before it is stored, summarised, shown or logged.

`redact` is for what is kept: it takes what is known to be a credential and leaves everything else as it is, so that
ids, digests and paths survive. `redacted` is for a line of an error: what looks like a credential goes, whatever it was
(providers echo keys in their messages, research/reliability.md I-18).
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


def redact(text: str) -> str:
    """`text` with each secret replaced by `[redacted: kind]`; the same string where there is none.

    Linear in its length. What was redacted once is not changed again.
    """
    # What stood beside a secret may be one itself once that is gone. Each pass leaves less that could be.
    while (shown := _replaced(text, "[redacted: {}]")) is not text:
        text = shown
    return text


def redacted(text: str, most: int = 400) -> str:
    """`text` without anything shaped like a credential, at most `most` characters, on one line."""
    line = " ".join(text[: most * 4].split())
    shown = _replaced(_SHAPES.sub(REDACTED, line), REDACTED)
    return shown if len(shown) <= most else shown[: most - 3] + "..."


def _replaced(text: str, mark: str) -> str:
    # At the first compaction or failure: the shapes take longer to compile than most of a start.
    from proxy.core.credentials import secrets

    parts: list[str] = []
    behind = 0
    # Of two that overlap, the one that begins first is told; what the other one holds beyond it goes too.
    for start, end, kind in sorted(secrets(text), key=lambda found: (found[0], -found[1])):
        if start >= behind:
            parts += (text[behind:start], mark.format(kind))
        behind = max(behind, end)
    return "".join((*parts, text[behind:])) if parts else text
