"""An operator's YAML: values and lines, and everything that must be refused before it is understood."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.configfile import MAX_BYTES, ConfigError, Document, Problem, did_you_mean, merge, parse, read


def doc(text: str) -> Document:
    return parse(text.encode(), "f.yaml")


def problems(text: str | bytes) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(text if isinstance(text, bytes) else text.encode(), "f.yaml")
    return [str(problem) for problem in caught.value.problems]


def test_values_come_with_the_line_they_stand_on() -> None:
    read_ = doc("a: 1\nb:\n  - x\n  - c: {d: 2}\n")
    assert read_.values == {"a": 1, "b": ["x", {"c": {"d": 2}}]}
    assert [read_.line(place) for place in (("a",), ("b", 1, "c"), ("b", 1, "c", "gone", 3), ("nowhere",))] == [
        1,
        4,
        4,
        1,
    ]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("off", "off"),
        ("no", "no"),
        ("Yes", "Yes"),
        ("true", True),
        ("False", False),
        ("~", None),
        ("", None),
        ("12:30", "12:30"),
        ("2024-01-01", "2024-01-01"),
        ("017", 17),
        ("0x10", 16),
        ("200_000", 200_000),
        ("-3", -3),
        ("1e3", 1000.0),
        ("0.85", 0.85),
        (".5", 0.5),
        (".inf", ".inf"),
        ('"5"', "5"),
        ("!!str 5", "5"),
        ("9" * 4000, "9" * 4000),
    ],
)
def test_a_plain_value_is_what_it_looks_like(text: str, value: object) -> None:
    assert doc(f"a: {text}").values == {"a": value}


def test_aliases_and_merge_keys_share_a_value() -> None:
    text = "base: &b {x: 1, y: 2}\none: {<<: *b, y: 3}\ntwo: *b\nthree: {<<: [*b, {z: 4}]}\n"
    values = doc(text).values
    assert values["one"] == {"x": 1, "y": 3}
    assert values["two"] == {"x": 1, "y": 2}
    assert values["three"] == {"x": 1, "y": 2, "z": 4}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: 2\na: 3\n", "f.yaml:3: a: is stated twice (first on line 1)"),
        ("a: {b: 1, b: 2}", "f.yaml:1: a.b: is stated twice (first on line 1)"),
        ("a: b: c", "f.yaml:1: is not valid YAML: mapping values are not allowed in this context"),
        ("x: 1\ny: [1, 2\n", "f.yaml:3: is not valid YAML: did not find expected ',' or ']'"),
        ("- 1", "f.yaml:1: must be a mapping of keys at its top level"),
        ("a: 1\n---\nb: 2", "f.yaml:2: holds more than one YAML document"),
        (
            "a: !!python/object/apply:os.system [x]",
            "f.yaml:1: YAML tags are not allowed (tag:yaml.org,2002:python/object/apply:os.system)",
        ),
        ("a: !env X", "f.yaml:1: a: YAML tags are not allowed (!env)"),
        ("? [a]\n: 1", "f.yaml:1: a key must be plain text"),
        ("a: *nobody", 'f.yaml:1: unknown alias "*nobody"'),
        ("a: &a [*a]", 'f.yaml:1: unknown alias "*a"'),
        ("a:\n  <<: 3", 'f.yaml:2: a: only a mapping can be merged with "<<"'),
        (b"a: 1\nb: \xff", "f.yaml:2: is not UTF-8 text"),
        (b"a: \x00", "f.yaml: is not valid YAML: it holds control characters"),
        ("a: " + "[" * 40 + "]" * 40, "f.yaml:1: is nested more than 32 levels deep"),
    ],
)
def test_what_is_not_plain_yaml_is_refused_with_its_line(text: str | bytes, said: str) -> None:
    assert problems(text) == [said]


def test_an_alias_bomb_is_counted_as_if_it_had_gone_off() -> None:
    bomb = "a: &a [1,1,1,1,1,1,1,1,1,1]\n"
    for name, before in zip("bcdefgh", "abcdefg", strict=True):
        bomb += f"{name}: &{name} [{','.join(['*' + before] * 10)}]\n"
    assert problems(bomb) == ["f.yaml:5: holds more than 50000 values once its aliases are followed"]


@pytest.mark.parametrize("opening", ["[", "{a: ", "- "])
def test_deep_nesting_neither_recurses_nor_crashes(opening: str) -> None:
    assert len(problems("x:\n" + opening * 200_000)) == 1


def test_a_file_is_bounded_and_must_be_a_file(tmp_path: Path) -> None:
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * (MAX_BYTES + 1))
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    for path, message in [(large, "is larger than"), (pipe, "is not a file"), (tmp_path / "gone", "does not exist")]:
        with pytest.raises(ConfigError, match=message):
            read(path)


def test_a_byte_order_mark_and_an_empty_file_are_fine() -> None:
    assert parse(b"\xef\xbb\xbfa: 1", "f").values == {"a": 1}
    assert doc("# nothing\n").values == {}


@given(st.binary(max_size=200))
def test_any_bytes_are_a_document_or_problems(data: bytes) -> None:
    try:
        assert isinstance(parse(data, "f").values, dict)
    except ConfigError as error:
        assert error.problems


tree = st.recursive(st.integers(), lambda inner: st.dictionaries(st.sampled_from("abc"), inner), max_leaves=8)
mapping = st.dictionaries(st.sampled_from("abc"), tree)


@given(mapping, mapping)
def test_merging_keeps_every_stated_key_and_changes_neither_side(
    over: dict[str, object], under: dict[str, object]
) -> None:
    copies = repr(over), repr(under)
    merged = merge(over, under)
    assert merged.keys() == over.keys() | under.keys()
    assert merge(over, merged) == merged
    assert (repr(over), repr(under)) == copies


def test_only_a_near_word_is_suggested() -> None:
    assert did_you_mean("prot", ["port", "host"]) == '; did you mean "port"?'
    assert did_you_mean("zzz", ["port", "host"]) == ""


def test_a_problem_names_what_it_knows() -> None:
    assert str(Problem(file="f", line=3, key="a.b", message="m")) == "f:3: a.b: m"
    assert str(Problem(file="f", message="m")) == "f: m"
