"""`load_skill`: what a model is told of it, and what it gets for what it asks."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.agent import Shelf, Skill
from proxy.tools.skills_tool import Answer, answer, spec


def skill(slug: str, users: tuple[str, ...] = ("*",), *, published: bool = True, offered: bool = True) -> Skill:
    return Skill(
        id=f"acme/{slug}",
        slug=slug,
        when=f"For {slug}.",
        text=f"<text of {slug}>",
        users=users,
        published=published,
        offered=offered,
    )


SHELF: Shelf = {
    each.slug: each
    for each in (
        skill("tone"),
        skill("refund-policy"),
        skill("secret", ("kim",)),
        skill("draft", published=False),
        skill("by-name", offered=False),
        skill("beside"),
    )
}
CATALOGUE = ("refund-policy", "tone", "secret", "draft", "by-name", "gone")
CHOICE = "The skills are: refund-policy, tone."


def asked(arguments: str, user: str | None = None, loaded: tuple[str, ...] = ()) -> Answer:
    return answer(arguments, SHELF, user, CATALOGUE, frozenset(loaded))


def test_the_tool_names_the_skills_of_the_catalogue_in_its_order() -> None:
    made = spec(("tone", "refund-policy"))
    assert made.name == "load_skill" and made.description
    assert json.loads(made.parameters) == {
        "type": "object",
        "properties": {
            "name": {"type": "string", "enum": ["tone", "refund-policy"], "description": "The skill to load."}
        },
        "required": ["name"],
        "additionalProperties": False,
    }
    assert made.parameters == spec(["tone", "refund-policy"]).parameters


def test_without_skills_there_is_no_tool() -> None:
    with pytest.raises(ValueError, match="empty"):
        spec(())


@pytest.mark.parametrize(
    "arguments", ['{"name": "tone"}', '{"name":"/tone","why":[1]}', '{"name": " tone\\n"}', '"tone"', '"/tone"']
)
def test_a_skill_is_loaded_whole(arguments: str) -> None:
    assert asked(arguments) == Answer(text="<text of tone>", skill="acme/tone")


def test_a_second_load_says_that_it_is_there_already() -> None:
    again = asked('{"name": "tone"}', loaded=("acme/tone",))
    assert again == Answer(text='The skill "tone" is loaded already above; follow it.')
    assert asked('{"name": "tone"}', loaded=("shared/tone",)).skill == "acme/tone", "another one of the same slug"


def test_a_selected_skill_that_left_the_catalogue_is_there_already() -> None:
    assert "loaded already" in asked('{"name": "beside"}', loaded=("acme/beside",)).text
    assert "loaded already" in asked('{"name": "by-name"}', loaded=("acme/by-name",)).text


@pytest.mark.parametrize("name", ["secret", "never-was", "gone", "beside", "by-name"])
def test_unknown_invisible_and_not_offered_are_told_in_the_same_words(name: str) -> None:
    for loaded in ((), ("acme/secret",)):
        made = asked(json.dumps({"name": name}), user="eve", loaded=loaded)
        assert made == Answer(text=f'Nothing was loaded: there is no skill "{name}". {CHOICE}')


def test_who_may_see_it_gets_it_and_is_told_of_it() -> None:
    assert asked('{"name": "secret"}', user="kim").skill == "acme/secret"
    assert asked('{"name": "x"}', user="kim").text.endswith("The skills are: refund-policy, tone, secret.")


def test_one_that_is_not_published_says_so_to_who_may_see_it() -> None:
    assert asked('{"name": "draft"}') == Answer(
        text=f'Nothing was loaded: the skill "draft" is not published at present. {CHOICE}'
    )


@pytest.mark.parametrize("name", ["Tone", "tone\u200b", "tоne", "../tone", "</skill_content>", "x" * 5000, "", "a b"])
def test_a_name_that_is_no_slug_is_not_repeated(name: str) -> None:
    made = asked(json.dumps({"name": name}))
    assert made == Answer(text=f"Nothing was loaded: there is no skill of this name. {CHOICE}")


@pytest.mark.parametrize(
    "arguments",
    ["", "{}", "null", "[]", "7", "{", '{"name": null}', '{"name": 7}', '{"name": ["tone"]}', '{"skill": "tone"}'],
)
def test_arguments_of_another_form_are_answered_with_the_right_one(arguments: str) -> None:
    assert asked(arguments) == Answer(
        text=f'Nothing was loaded: the arguments must be a JSON object such as {{"name": ...}}. {CHOICE}'
    )


@pytest.mark.parametrize(
    "arguments", ["[" * 200_000, '{"a":' * 100_000, '{"name": "\ud800"}', '{"name": "\\ud800"}', "\0"]
)
def test_arguments_made_to_break_a_reader_do_not(arguments: str) -> None:
    assert asked(arguments).skill is None


def test_an_empty_shelf_says_that_there_is_nothing() -> None:
    assert answer('{"name": "tone"}', {}, None, CATALOGUE, frozenset()).text == (
        'Nothing was loaded: there is no skill "tone". There is no skill to load at present.'
    )


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from([*SHELF, "gone"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.just("name") | st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.text() | VALUES.map(json.dumps), st.sampled_from([None, "kim", "eve"]))
def test_whatever_a_model_writes_only_what_its_user_may_load_is_loaded(arguments: str, user: str | None) -> None:
    made = asked(arguments, user)
    allowed = {"acme/tone", "acme/refund-policy"} | ({"acme/secret"} if user == "kim" else set())
    assert made.skill is None or made.skill in allowed
    assert (made.skill is None) == made.text.startswith("Nothing was loaded")
    assert user == "kim" or "<text of secret>" not in made.text
    assert len(made.text) < 400
