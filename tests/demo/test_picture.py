"""The picture is well-formed, speaks to those who cannot see it, and is drawn from the data beside it."""

from __future__ import annotations

from xml.etree import ElementTree

import msgspec

from demo import picture
from demo.talk import Spoken

SVG = "{http://www.w3.org/2000/svg}"


def _spoken(number: int, tokens: int, answered: bool = True, compaction: str = "none") -> Spoken:
    return Spoken(
        number=number, answered=answered, tokens=tokens, window=2048, compaction=compaction,
        prompt=tokens, completion=1, seconds=0.1, answer="",
    )  # fmt: skip


RUN = picture.Run(
    model="<small & real>",
    window=2048,
    turns=4,
    direct=(_spoken(1, 900), _spoken(2, 1900), _spoken(3, 2100, False), _spoken(4, 2110, False)),
    weirgate=(_spoken(1, 900), _spoken(2, 1700), _spoken(3, 1000, compaction="auto"), _spoken(4, 1100)),
)


def _parsed(run: picture.Run) -> ElementTree.Element:
    return ElementTree.fromstring(picture.draw(run))


def test_the_picture_has_a_title_and_a_description_with_the_figures() -> None:
    root = _parsed(RUN)
    named = {part.get("id"): part.text or "" for part in (*root.iter(f"{SVG}title"), *root.iter(f"{SVG}desc"))}
    assert set((root.get("aria-labelledby") or "").split()) == named.keys()
    assert "<small & real>" in named["desc"]
    assert "from turn 3 on the model refuses it; 2 of 4" in named["desc"]
    assert "compacted at turn 3" in named["desc"] and "4 of 4" in named["desc"]


def test_every_refused_turn_and_every_compaction_has_its_mark() -> None:
    marks = [part.get("class") for part in _parsed(RUN).iter(f"{SVG}path")]
    assert (marks.count("lost"), marks.count("drop")) == (2, 1)


def test_nothing_is_drawn_outside_the_panel() -> None:
    for line in _parsed(RUN).iter(f"{SVG}polyline"):
        for point in (line.get("points") or "").split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= picture.WIDTH and 0 <= y <= picture.HEIGHT


def test_no_words_run_out_of_the_panel_even_where_the_last_turn_was_compacted() -> None:
    late = (*RUN.weirgate[:3], _spoken(4, 600, compaction="auto"))
    for words in _parsed(msgspec.structs.replace(RUN, weirgate=late)).iter(f"{SVG}text"):
        x, half = float(words.get("x") or 0), 4.5 * len(words.text or "")
        left = {"start": 0.0, "middle": half, "end": 2 * half}[words.get("text-anchor") or "start"]
        assert x - left >= 0 and x - left + 2 * half <= picture.WIDTH, words.text


def test_it_changes_with_a_dark_page_and_needs_nothing_from_elsewhere() -> None:
    text = picture.draw(RUN)
    assert "prefers-color-scheme: dark" in text
    assert "href" not in text and "url(" not in text and "<script" not in text


def test_the_committed_picture_is_the_one_that_the_committed_data_give() -> None:
    assert picture.draw(picture.load(picture.DATA)) == picture.PICTURE.read_text(encoding="utf-8")
