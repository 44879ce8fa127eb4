"""Digests as words: the names of ours that stand in prompts.

Small letters only, so that all names of one kind weigh the same. What fits into notes must hang on the conversation
alone: not on the id that the notes get, nor on the secret of the installation that a reference is drawn with.
"""

from __future__ import annotations

from typing import Final

_LETTERS: Final = str.maketrans("0123456789", "ghijklmnop")


def lettered(digest: bytes) -> str:
    """Two letters, of a to p, for each byte."""
    return digest.hex().translate(_LETTERS)
