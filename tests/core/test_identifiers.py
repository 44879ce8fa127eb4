from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.identifiers import LONGEST, ends, identifiers, kind_of, subpaths


def found(text: str) -> list[tuple[str, str]]:
    return list(identifiers(text))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("path", "./main.go"),
        ("path", "../../config.js"),
        ("path", "/usr/local/bin"),
        ("path", "~/.config/app.yaml"),
        ("path", "src/app/main.py"),
        ("path", "encoding/json"),
        ("path", "@scope/package"),
        ("path", "C:\\Users\\me\\notes.txt"),
        ("path", "README.md"),
        ("path", "main.go:12"),
        ("path", ".env/local"),
        ("id", "ABC-123"),
        ("id", "gpt-3.5-turbo"),
        ("id", "v2.0.1"),
        ("id", "2026-01-07T14:05:04.000Z"),
        ("id", "550e8400-e29b-41d4-a716-446655440000"),
        ("id", "someone@example.com"),
        ("id", "#12"),
        ("id", "0x1f"),
        ("id", "日本語7"),
        ("number", "4711"),
        ("number", "$1,250.00"),
        ("number", "45%"),
        ("number", "3.1.4"),
        ("number", "12:30"),
        ("number", "12/30"),
        ("number", "300ms"),
        ("name", "run_tests"),
        ("name", "time.Now"),
    ],
)
def test_what_looks_like_an_identifier_is_found_whole_between_words_and_marks(kind: str, text: str) -> None:
    for around in ("see {} now", "({}), or", '"{}"', "`{}`", "{}.", "x={},"):
        assert (kind, text) in found(around.format(text)), around


@pytest.mark.parametrize(
    "text", ["word", "a", "7", "...", "//", "--", "@handle", "_", "__", "=", "//comment", "a@b@c", "#"]
)
def test_words_and_noise_are_no_identifiers(text: str) -> None:
    assert found(text) == []
    assert kind_of(text) == ""


def test_an_address_ends_where_prose_goes_on() -> None:
    text = "See https://example.com/a?b=1&c=2), and (http://x.io/y)."
    assert [name for kind, name in found(text) if kind == "url"] == ["https://example.com/a?b=1&c=2", "http://x.io/y"]


def test_settings_and_test_names_come_apart() -> None:
    assert found("--path=src/a.py") == [("path", "src/a.py")]
    assert found("tests/test_a.py::test_b") == [("path", "tests/test_a.py"), ("name", "test_b")]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (r'grep -n "QueueMode\|queue_mode\|WP14\|WP11"', [("name", "queue_mode"), ("id", "WP14"), ("id", "WP11")]),
        (r"src/a.py\nsrc/b.py\n\n256 lines\n", [("path", "src/a.py"), ("path", "src/b.py"), ("number", "256")]),
        (r"\bfoo\.start\b, sessions\.db", [("path", "sessions.db"), ("name", "foo.start")]),
        (r"condu\xe7\xe3o \\\\n2", []),
        (r"src\memory\__init__.py", [("path", r"src\memory\__init__.py")]),
        (r".\src\main.py:12", [("path", r".\src\main.py:12")]),
        (r"path=C:\Users\me", [("path", r"C:\Users\me")]),
        (r"App\Models\User", [("path", r"App\Models\User")]),
    ],
)
def test_a_backslash_is_part_of_a_path_or_parts_what_it_escapes(text: str, names: list[tuple[str, str]]) -> None:
    assert sorted(found(text)) == sorted(names)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("pkg/tui.go:360:func main() {", [("path", "pkg/tui.go"), ("line", "360")]),
        ("pkg/tui.go:36:\tport", [("path", "pkg/tui.go"), ("line", "36")]),
        ("pkg/tui.go-50-\tport", [("path", "pkg/tui.go"), ("line", "50")]),
        ("src/a.ts:import_all", [("path", "src/a.ts"), ("name", "import_all")]),
        ("559:run_tests", [("line", "559"), ("name", "run_tests")]),
        ("main.go:12:5: undefined", [("path", "main.go:12:5")]),
        ("localhost:8080", [("id", "localhost:8080")]),
        ("file-2-name.py", [("path", "file-2-name.py")]),
        ("12:30", [("number", "12:30")]),
    ],
)
def test_the_hits_of_a_search_come_apart(text: str, names: list[tuple[str, str]]) -> None:
    assert found(text) == names


@pytest.mark.parametrize("mark", ["\t", "\u2192", "|", " |", "\u2502"])
def test_line_numbers_of_a_listing_are_told_from_numbers(mark: str) -> None:
    text = f"  7{mark}start\n  41{mark}port = 8400\n 42{mark}\n"
    assert found(text) == [("number", "8400"), ("line", "41"), ("line", "42")]


def test_blobs_are_left_out_and_long_texts_are_read_at_both_ends() -> None:
    assert found("a1" * LONGEST) == []
    text = "first/path.py " + "word " * 80_000 + "last/path.py"
    assert len(ends(text)) < 200_010
    assert found(text) == [("path", "first/path.py"), ("path", "last/path.py")]


def test_the_paths_inside_a_path_are_its_tails_and_its_folders() -> None:
    assert set(subpaths("a/b/c.py")) == {"a", "b/c.py", "a/b", "c.py"}
    assert list(subpaths("plain")) == []
    assert len(list(subpaths("/".join("x" * 10_000)))) == 26


@given(st.text(alphabet="ab1/._-@#:=\\,& \n$€日\ud800", max_size=400))
def test_every_identifier_stands_in_the_text_word_for_word(text: str) -> None:
    for kind, name in found(text):
        assert name in text
        assert kind
        assert 2 <= len(name) <= 420


@pytest.mark.parametrize(
    "piece", ["a", "1", "/", ".", "a.", "1,", "1.", "a@", "-", "http://", "::", "a/b.", "\\", "=a&", "#1"]
)
def test_no_run_of_anything_takes_more_than_linear_time(piece: str) -> None:
    """Twice the text costs about twice the steps: measured in matches tried, never in seconds."""
    import time

    def cost(size: int) -> float:
        text = piece * (size // len(piece))
        best = 1e9
        for _ in range(3):
            begun = time.process_time()
            found(text)
            best = min(best, time.process_time() - begun)
        return best

    assert cost(40_000) < 40 * max(cost(4_000), 0.0005)
