"""References are followed once, at load; what cannot be followed is a problem and never an empty value."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.configfile import Document, parse
from proxy.configfile.references import is_reference, resolve

ENVIRON = {"KEY": "sk-1", "EMPTY": "", "HOST": "api.example.com"}


def document(text: str, file: str = "w.yaml") -> Document:
    return parse(text.encode(), file)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${env:KEY}", "sk-1"),
        ("os.environ/KEY", "sk-1"),
        ("https://${env:HOST}/v1", "https://api.example.com/v1"),
        ("${env:NOPE:-fallback}", "fallback"),
        ("${env:EMPTY:-}", ""),
        ("$${env:KEY}", "${env:KEY}"),
        ("$5 {env:KEY}", "$5 {env:KEY}"),
    ],
)
def test_a_reference_becomes_what_it_names(text: str, value: str) -> None:
    assert resolve(document(f'a: ["{text}"]'), ENVIRON) == ({"a": [value]}, {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("${env:NOPE}", "environment variable NOPE is not set"),
        ("${env:EMPTY}", "environment variable EMPTY is empty"),
        ("os.environ/NOPE", "environment variable NOPE is not set"),
        ("${env:}", "a reference to the environment needs the name of a variable"),
        ("${evn:KEY}", 'unknown reference "evn:"; did you mean "env"?'),
        ("${file:/nowhere/at/all}", "file /nowhere/at/all does not exist"),
        ("${file:/" + "x" * 300 + "}", f"file /{'x' * 300} cannot be read: File name too long"),
    ],
)
def test_a_reference_to_nothing_is_a_problem_with_its_line_and_key(text: str, message: str) -> None:
    _, problems = resolve(document(f'\n\nkeys: [{{secret: "{text}"}}]'), ENVIRON)
    found = {place: str(problem) for place, problem in problems.items()}
    assert found == {("keys", 0, "secret"): f"w.yaml:3: keys[0].secret: {message}"}


def test_a_file_is_read_without_its_last_line_end_and_beside_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("s3cret\n")
    (tmp_path / "hollow").write_text("\n")
    (tmp_path / "large").write_bytes(b"x" * 70_000)
    (tmp_path / "binary").write_bytes(b"\xff")
    names = (f"{tmp_path}/key", "key", "hollow", "large", "binary")
    text = "\n".join(f'{letter}: "${{file:{name}}}"' for letter, name in zip("abcde", names, strict=True))
    values, problems = resolve(document(text, str(tmp_path / "w.yaml")), {})
    assert (values["a"], values["b"]) == ("s3cret", "s3cret")
    assert [problem.key for problem in problems.values()] == ["c", "d", "e"]


def test_values_that_are_followed_are_not_read_again_as_references() -> None:
    assert resolve(document('a: "${env:A}"'), {"A": "${env:B}", "B": "x"}) == ({"a": "${env:B}"}, {})


def test_a_literal_is_told_from_a_reference() -> None:
    assert is_reference("${env:A}") and is_reference("x${file:/a}") and is_reference("os.environ/A")
    assert not is_reference("sk-123") and not is_reference("$${env:A}")
