"""A model's notes are read in whatever style it writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core import narrative
from proxy.core.fence import SECTIONS
from proxy.core.headings import parse, thoughtless
from proxy.core.narrative import CONSTRAINTS, DECISIONS, FACTS, NEXT, NONE, OPEN, REQUESTS, WORK, Narrative
from tests.core.narratives import BODIES, GOOD, texts

STYLES = {
    "hashes": "## {}\n{body}\n",
    "one hash": "# {}\n\n{body}\n\n",
    "deep": "#### {}\n{body}\n",
    "hashes and colon": "## {}:\n{body}\n",
    "closed hashes": "## {} ##\n{body}\n",
    "hashes and number": "### {n}. {}\n{body}\n",
    "bold": "**{}**\n{body}\n",
    "bold and colon": "**{}:**\n{body}\n",
    "bold, colon outside": "**{}**:\n{body}\n",
    "bold beside": "**{}:** {body}\n",
    "bold number": "**{n}. {}**\n{body}\n",
    "underlined": "__{}__\n{body}\n",
    "numbered": "{n}. {}:\n{body}\n",
    "numbered, bold": "{n}. **{}**:\n{body}\n",
    "bracket number": "({n}) {}\n{body}\n",
    "bare with colon": "{}:\n{body}\n",
    "bare": "{}\n{body}\n",
    "bullet": "- **{}**\n{body}\n",
    "hint": "## {} (paths, ids)\n{body}\n",
    "full-width colon": "## {}\uff1a\n{body}\n",
    "no blank": "##{}\n{body}\n",
}


def written(style: str, narrative: Narrative = BODIES) -> str:
    rows = zip(SECTIONS, narrative.bodies, strict=True)
    return "".join(STYLES[style].format(title, n=n, body=body) for n, (title, body) in enumerate(rows, 1))


@pytest.mark.parametrize("style", STYLES)
def test_every_style_of_heading_is_read(style: str) -> None:
    parsed = parse(written(style))
    assert parsed.headings == 7
    assert parsed.narrative == BODIES


@pytest.mark.parametrize(
    "wrapped",
    [
        "Here are the notes you asked for:\n\n{}",
        "<think>\n## Facts\n- wrong\n</think>\n{}",
        "<analysis>Let me see.</analysis>\n<thinking>Hm.</thinking>\n{}",
        "<summary>\n{}\n</summary>",
        "```markdown\n{}\n```",
        "Sure!\n```\n{}\n```\n",
        "{}\n\n---\n",
        "{}\n",
        "<conversation-notes>\n{}\n</conversation-notes>",
    ],
)
def test_what_is_around_the_notes_is_dropped(wrapped: str) -> None:
    assert parse(wrapped.format(GOOD)).narrative == BODIES


def test_sections_may_come_in_any_order_and_twice() -> None:
    parsed = parse("## Facts\n- one\n## Constraints\n- rule\n## Facts\n- two\n")
    assert parsed.headings == 2
    assert parsed.narrative.bodies[FACTS] == "- one\n- two"
    assert parsed.narrative.bodies[CONSTRAINTS] == "- rule"


@pytest.mark.parametrize(
    ("title", "section"),
    [
        ("Requests & intent", REQUESTS),
        ("REQUESTS AND INTENT", REQUESTS),
        ("Decisions", DECISIONS),
        ("Completed work", WORK),
        ("Open work", OPEN),
        ("Task list", OPEN),
        ("Key facts", FACTS),
        ("Next steps", NEXT),
    ],
)
def test_few_other_wordings_are_understood(title: str, section: int) -> None:
    assert parse(f"## {title}\n- x").narrative.bodies[section] == "- x"


@pytest.mark.parametrize(
    "line", ["Facts are few", "## Facts of life", "## Fakten", "Next step is to paint", "a Facts:"]
)
def test_a_line_that_only_begins_like_a_title_is_none(line: str) -> None:
    assert parse(f"{line}\n- x").headings == 0


def test_the_clearest_style_decides_what_a_heading_is() -> None:
    text = (
        "## Facts\n- one\n**Constraints:** quoted in a fact\n## Work done\n- Facts: many\n## Next step\nFacts\n- paint"
    )
    parsed = parse(text)
    assert parsed.headings == 3
    assert parsed.narrative.bodies[FACTS] == "- one\n**Constraints:** quoted in a fact"
    assert parsed.narrative.bodies[WORK] == "- Facts: many"
    assert parsed.narrative.bodies[NEXT] == "Facts\n- paint"


def test_headings_inside_code_are_code() -> None:
    parsed = parse("## Facts\n```\n## Constraints\nnone here\n```\n## Next step\n- go")
    assert parsed.headings == 2
    assert "none here" in parsed.narrative.bodies[FACTS]
    assert parsed.narrative.bodies[CONSTRAINTS] == ""
    assert narrative.read(narrative.rendered(parsed.narrative)) == parsed.narrative, "and stay code when written"


def test_half_a_code_fence_hides_nothing() -> None:
    parsed = parse("## Facts\n```\nmake test\n## Next step\n- go")
    assert parsed.headings == 2
    assert parsed.narrative.bodies[FACTS] == "make test"


@pytest.mark.parametrize("nothing", ["None", "- None.", "(none)", "N/A", "_Nothing._", "无", "なし", "Нет."])
def test_a_section_that_says_nothing_is_known_from_one_that_is_missing(nothing: str) -> None:
    parsed = parse(f"## Constraints\n{nothing}\n## Facts\n\n## Next step\n- None of the tests pass yet.")
    assert parsed.narrative.bodies[CONSTRAINTS] == NONE
    assert parsed.narrative.bodies[FACTS] == ""
    assert parsed.narrative.bodies[NEXT] == "- None of the tests pass yet."


@pytest.mark.parametrize("blank", ["-", "...", "\u2022", "---", "[]", "**"])
def test_marks_alone_say_nothing_at_all(blank: str) -> None:
    assert parse(f"## Constraints\n{blank}\n## Facts\n- x").narrative.bodies[CONSTRAINTS] == ""


def test_the_preamble_is_measured() -> None:
    assert parse("abc\ndef\n## Facts\n- x").preamble == 8
    assert parse(GOOD).preamble == 0
    assert parse("no headings").preamble == len("no headings")
    assert parse("") == parse("<think>never ends")


def test_thoughts_in_front_are_taken_off() -> None:
    assert thoughtless("<think>a</think>b") == "b"
    assert thoughtless("b <think>a</think>") == "b <think>a</think>"
    assert thoughtless("<think>a") is None
    assert thoughtless("<think></think>" * 20 + "x") is not None


@given(texts())
def test_what_was_read_is_written_and_read_again_as_it_is(text: str) -> None:
    parsed = parse(text).narrative
    said = Narrative(bodies=tuple("" if body == NONE else body for body in parsed.bodies))
    assert narrative.read(narrative.rendered(parsed)) == said


@given(st.text(max_size=400))
def test_any_text_can_be_read(text: str) -> None:
    parsed = parse(text)
    assert len(parsed.narrative.bodies) == 7
    assert sum(map(len, parsed.narrative.bodies)) <= 3 * len(text) + 7 * len(NONE)
