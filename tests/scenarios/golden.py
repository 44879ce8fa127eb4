"""Reviewed bodies: what goes upstream, byte for byte, in files that people can read and compare.

A file holds the bodies of one scenario, each behind a line `~~~~ call N` that says what was asked. For the eye alone a
body is broken into lines: before each member and message, and behind each escaped line end. Without its line breaks it
is the body, exactly.

    WEIRGATE_WRITE_GOLDEN=1 .venv/bin/python -m pytest tests/scenarios/test_golden_layers.py

writes the files again, and every test whose file it changed fails, so that nobody does it unawares; in CI it is
refused. Read each changed file against the design before it is committed.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from tests.conftest import IN_CI

FOLDER = Path(__file__).parent.parent / "golden" / "layers"
WRITE = "WEIRGATE_WRITE_GOLDEN"
_ENDS = re.compile(rb"((?<!\\)(?:\\\\)*(?:\\n)+)(?=[^\"])")


def laid_out(body: bytes) -> list[str]:
    """`body` in lines; joined they are the body."""
    assert b"\n" not in body, "a raw line end in the body would be lost in the file"
    members = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    cuts: list[bytes] = []
    if "messages" in members:
        cuts += map(bytes, msgspec.json.decode(members["messages"], type=list[msgspec.Raw]))
    cuts += (json.dumps(name).encode() + b":" for name in members)
    starts = {0, len(body)}
    at = 0
    for cut in cuts[: len(cuts) - len(members)]:
        at = body.index(cut, at)
        starts.add(at)
        at += len(cut)
    starts |= {body.index(cut) for cut in cuts[len(cuts) - len(members) :]}
    starts |= {found.end() for found in _ENDS.finditer(body)}
    places = sorted(starts)
    lines = [body[start:end].decode() for start, end in pairwise(places)]
    assert "".join(lines).encode() == body
    return lines


def written(says: str, bodies: Sequence[tuple[str, bytes]]) -> list[str]:
    """The lines of a file."""
    lines = [f"~~~~ {says}"]
    for number, (asked, body) in enumerate(bodies, 1):
        lines += [f"~~~~ call {number}: {asked}", *laid_out(body)]
    return lines


def compare(name: str, says: str, bodies: Sequence[tuple[str, bytes]]) -> None:
    """Fail, with a diff, where the bodies are not those of the reviewed file."""
    path = FOLDER / f"{name}.body"
    made = written(says, bodies)
    known = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    if known == made:
        return
    if os.environ.get(WRITE):
        assert not IN_CI, f"{WRITE} is not for CI: what is written there nobody reviews"
        path.write_text("\n".join([*made, ""]), encoding="utf-8")
        pytest.fail(f"{path.name} was written; read it, then run without {WRITE}", pytrace=False)
    diff = difflib.unified_diff(known, made, f"reviewed: {path.name}", "made", lineterm="", n=2)
    pytest.fail("\n".join(["what goes upstream is not what was reviewed", *diff]), pytrace=False)
