"""What the user typed is told from what clients put around it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.boilerplate import Spoken, spoken


@pytest.mark.parametrize(
    ("text", "typed"),
    [
        ("fix the tests", "fix the tests"),
        ("<system-reminder>\nThe date changed.\n</system-reminder>\nfix the tests", "fix the tests"),
        ("fix the tests\n<environment_details>\n# Mode\nACT\n</environment_details>", "fix the tests"),
        ("<task>\nfix the tests\n</task>\n\n<environment_details>x</environment_details>", "fix the tests"),
        ("<user_query>fix the tests</user_query>", "fix the tests"),
        ("first question?\n\nTo suggest changes to a file you MUST return the entire file.", "first question?"),
        ("<local-command-stdout>Bye!</local-command-stdout>", ""),
        ("<command-name>/model</command-name>\n  <command-message>model</command-message>", ""),
        ('<task-notification id="7">\n<task-id>x</task-id>\n</task-notification>', ""),
        ("[Request interrupted by user for tool use]", ""),
        ("This session is being continued from a previous conversation that ran out of context. Summary: x", ""),
        ("The conversation history before this point was compacted into the following summary:\n\n<summary>x", ""),
        ("<environment_context>\n  <cwd>/x</cwd>\n</environment_context>", ""),
        ('<conversation-notes id="abcd">\nNotes on turn 1', ""),
        ("<system-reminder>x</system-reminder>\n[Request interrupted by user]", ""),
        ("# AGENTS.md instructions for x\n\n<INSTRUCTIONS>be brief</INSTRUCTIONS>", ""),
        ("a <b>bold</b> word and <details>more</details>", "a <b>bold</b> word and <details>more</details>"),
        ("an <open-tag> that is never closed", "an <open-tag> that is never closed"),
        ("<a-b><a-b>in</a-b>out</a-b>", "out</a-b>"),
        ("", ""),
    ],
)
def test_only_what_was_typed_is_spoken(text: str, typed: str) -> None:
    assert spoken(text) == Spoken(text=typed)


@pytest.mark.parametrize(
    ("text", "typed"),
    [
        ('look\n<file_content path="a.py">\nx = 1\n</file_content>', "look"),
        ("<attached-files>a.py</attached-files>look", "look"),
        ("[Image #5]\n\nlook", "look"),
        ("look\n[Image: source: /tmp/a b.png]", "look"),
        ("<image-data>zz</image-data>look", "look"),
    ],
)
def test_files_beside_the_words_are_noticed(text: str, typed: str) -> None:
    assert spoken(text) == Spoken(text=typed, files=True)


@given(st.text(alphabet="<>/ab-_ \n[]#", max_size=300))
def test_nothing_is_invented(text: str) -> None:
    said = spoken(text).text
    assert len(said) <= len(text)
    assert not set(said) - set(text)


def test_a_hostile_text_takes_no_time() -> None:
    assert spoken("<a-b>" * 60_000).text
    assert spoken("".join(f"<a-{number}>" for number in range(30_000))).text
