"""What at the start of a message selects a skill, and what only looks like it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.chain import message
from proxy.core.conversation import Text
from proxy.core.slugs import LONGEST, RESERVED, WORDS, selected
from tests.core.histories import PICTURE, model, system, user


@pytest.mark.parametrize(
    ("text", "slugs"),
    [
        ("/tone", ("tone",)),
        ("/tone Write.", ("tone",)),
        ("  \n/tone\tWrite.", ("tone",)),
        ("/tone /refund-policy How?", ("tone", "refund-policy")),
        ("/tone\n/refund-policy\nHow?", ("tone", "refund-policy")),
        ("/tone /tone /a /tone", ("tone", "a")),
        ("/tone/refund-policy", ()),
        ("/tone, write", ()),
        ("/tone How /a is it?", ("tone",)),
        ("How /tone", ()),
        ("/", ()),
        ("//tone", ()),
        ("/Tone", ()),
        ("/to_ne x", ()),
        ("/usr/bin is full", ()),
        ("/2024-11-30", ("2024-11-30",)),
        ("", ()),
        ("   ", ()),
    ],
)
def test_slugs_stand_in_a_row_at_the_start(text: str, slugs: tuple[str, ...]) -> None:
    assert selected(text) == slugs


def test_the_gateways_own_command_is_no_skill_and_ends_the_row() -> None:
    assert "compact" in RESERVED
    assert selected("/compact keep the plan") == ()
    assert selected("/tone /compact /a") == ("tone",)


@pytest.mark.parametrize(
    "word",
    [
        "t\u043ene",
        "\uff54one",
        "tone\u0301",
        "\u0442one",
        "ton\u1d07",
        "t\u00f6ne",
        "1\u0661",
        "to\u200bne",
        "tone\ufeff",
        "refund\u2010policy",
    ],
)
def test_a_word_of_two_scripts_is_given_back_as_it_stands(word: str) -> None:
    assert selected(f"/{word} Hello") == (word,)
    assert selected(f"/a /{word}") == ("a", word)


@pytest.mark.parametrize("word", ["\u0442\u043e\u043d", "\u8bed\u6c14", "t\u043ene.", "\u00c4rger!"])
def test_what_nobody_would_take_for_a_slug_is_plain_text(word: str) -> None:
    assert selected(f"/{word} Hello") == ()


def test_a_row_is_read_as_far_as_people_write_one() -> None:
    """What is read does not grow with the message: each message of a history is looked at in each call."""
    assert selected("/tone " * 100_000 + "/nobody") == ("tone",)
    assert len(selected(" ".join(f"/a{number}" for number in range(100_000)))) == WORDS


@pytest.mark.parametrize("word", ["a" * 100_000, "t\u043ene" * 30_000])
def test_of_a_word_that_is_too_long_for_a_slug_its_beginning_is_given_back(word: str) -> None:
    assert selected(f"/{word}") == selected(f"/{word} Hello") == (word[: LONGEST - 1],)
    assert selected(f"/tone /{word} /a")[:2] == ("tone", word[: LONGEST - 1])


def test_the_first_words_of_a_users_message_count_whatever_media_stand_before_them() -> None:
    assert user("/tone Hello").slugs == ("tone",)
    assert message("user", (Text(text="", media=(PICTURE,)), Text(text="/tone Look."))).slugs == ("tone",)
    assert message("user", (Text(text=" \n"), Text(text="/tone"), Text(text="/a"))).slugs == ("tone",)
    assert message("user", (Text(text="", media=(PICTURE,)),)).slugs == ()
    assert message("user", ()).slugs == ()


def test_nobody_but_a_user_selects() -> None:
    assert model("/tone").slugs == ()
    assert system("/tone").slugs == ()


@given(
    st.lists(st.from_regex(r"\A[a-z0-9-]{1,8}\Z"), min_size=1, max_size=5), st.sampled_from([" ", "\n", "\t", "  \n"])
)
def test_any_row_of_slugs_is_read_and_what_follows_is_left(slugs: list[str], gap: str) -> None:
    wanted = tuple(dict.fromkeys(slug for slug in slugs if slug not in RESERVED))
    text = gap.join(f"/{slug}" for slug in slugs if slug not in RESERVED)
    assert selected(f"{text}{gap}Hello /later") == wanted


@given(st.text(max_size=60))
def test_whatever_is_written_each_slug_is_a_word_of_the_text(text: str) -> None:
    for slug in selected(text):
        assert f"/{slug}" in text
        assert not any(each.isspace() for each in slug)
