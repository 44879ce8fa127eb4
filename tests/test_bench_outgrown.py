"""What `benchmarks/outgrown.py` says of a gateway can be trusted: its provider is strict, and it counts what it saw.

No figure of speed is looked at here.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.outgrown import ARMS, WINDOW, Score, alike, measure, report, summary
from proxy.core.fence import SECTIONS
from tests.data import Conversation

TALK = Conversation("talk", [], None, {})


def talk(turns: int, size: int) -> Conversation:
    messages: list[dict[str, Any]] = []
    for turn in range(turns):
        messages.append({"role": "user", "content": f"Request {turn}, about gate {turn}. " + "word " * size + "there."})
        messages.append({"role": "assistant", "content": f"Gate {turn} stands open. " + "word " * size + "there."})
    return TALK._replace(messages=messages)


def measured(name: str, row: Conversation) -> Score:
    return measure(name, ARMS[0], [row], lambda line: None)


def test_without_a_gateway_a_conversation_ends_at_its_window_and_through_ours_it_goes_on() -> None:
    row = talk(30, WINDOW // 25)
    direct, ours = measured("direct", row), measured("weirgate", row)
    assert direct.calls == ours.calls and direct.upstream == direct.calls
    assert 0 < direct.answered < direct.calls and direct.overflows == direct.calls - direct.answered
    assert not direct.facts[True] and not direct.requests[True]
    assert (ours.answered, ours.overflows, ours.malformed) == (ours.calls, 0, 0)
    assert ours.upstream - ours.summaries >= ours.calls and ours.summaries > 0
    assert ours.rules[False] == 0 and ours.requests[True] > ours.requests[False]


def test_a_conversation_that_fits_is_told_whole() -> None:
    row = talk(12, WINDOW // 100)
    direct, ours = measured("direct", row), measured("weirgate", row)
    for score in (direct, ours):
        assert score.answered == score.calls > 0 and score.summaries == 0
        assert score.kept == score.shown and not (score.facts[False] or score.rules[False] or score.requests[False])
    assert direct.read == ours.read
    assert f"| direct | {direct.answered} of {direct.calls} | 0 | 0 | 0 |" in report(
        {(ARMS[0], "direct"): direct}, [row]
    )


@given(st.text("ab", max_size=12), st.text("ab", max_size=12))
def test_what_two_prompts_begin_with_alike(one: str, other: str) -> None:
    length = alike(one, other)
    assert one[:length] == other[:length]
    assert length == min(len(one), len(other)) or one[length] != other[length]


def test_the_summary_model_keeps_what_is_wanted_in_the_form_that_is_asked_for() -> None:
    text = "Nothing here. The code is SLUICE-1234. More.\nref=SLUICE-9 state=ok"
    plain = summary(text, ["SLUICE-1234", "SLUICE-9"])
    assert "- The code is SLUICE-1234." in plain and "ref=SLUICE-9" in plain and "Nothing here" not in plain
    ours = summary(" ".join([*SECTIONS, text]), ["SLUICE-1234"])
    assert all(f"## {title}" in ours for title in SECTIONS) and "SLUICE-1234" in ours
