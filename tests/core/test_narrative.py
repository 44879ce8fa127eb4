"""Narratives lose nothing to a careless summariser and never grow."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.core.fence import SECTIONS
from proxy.core.headings import parse
from proxy.core.measure import estimate
from proxy.core.narrative import (
    CONSTRAINTS,
    DECISIONS,
    FACTS,
    NEXT,
    NONE,
    OPEN,
    WORK,
    Narrative,
    carried,
    display,
    fitted,
    known_only,
    read,
    references,
    rendered,
    updated,
)
from tests.core.narratives import BODIES, GOOD, OTHER, REFERENCE, texts

EMPTY = Narrative()


def but(narrative: Narrative, **bodies: str) -> Narrative:
    """`narrative` with other bodies, by the first word of the title in small letters."""
    named = {title.split()[0].casefold(): place for place, title in enumerate(SECTIONS)}
    made = list(narrative.bodies)
    for name, body in bodies.items():
        made[named[name]] = body
    return Narrative(bodies=tuple(made))


def test_a_narrative_is_written_under_its_titles_and_read_again() -> None:
    assert rendered(BODIES) == GOOD
    assert read(GOOD) == BODIES
    assert rendered(EMPTY) == ""
    assert read("") == EMPTY
    assert read("no title\n## Facts of life\nx") == EMPTY
    assert rendered(but(EMPTY, facts="- x", next=NONE)) == "## Facts\n- x"


# -- updating --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("section", range(7))
def test_a_section_that_was_left_out_stays_as_it_was(section: int) -> None:
    bodies = ["- new"] * 7
    bodies[section] = ""
    made = updated(BODIES, Narrative(bodies=tuple(bodies)))
    assert made.bodies[section] == BODIES.bodies[section]
    assert [body for place, body in enumerate(made.bodies) if place != section] == ["- new"] * 6


def test_only_open_work_and_the_next_step_may_be_said_to_be_none_and_only_after_work() -> None:
    nothing = Narrative(bodies=(NONE,) * 7)
    assert updated(BODIES, nothing) == BODIES
    done = updated(BODIES, but(nothing, work="- Painted it too."))
    assert done.bodies[OPEN] == done.bodies[NEXT] == ""
    assert done.bodies[CONSTRAINTS] == BODIES.bodies[CONSTRAINTS]
    assert updated(BODIES, but(nothing, work=BODIES.bodies[WORK])) == BODIES


@given(texts(), texts())
def test_no_section_is_emptied_by_silence(first: str, second: str) -> None:
    before, after = parse(first).narrative, parse(second).narrative
    before = read(rendered(before))
    made = updated(before, after)
    for section, body in enumerate(made.bodies):
        assert body or not before.bodies[section] or after.bodies[section] == NONE
        assert body != NONE or before.bodies[section] == NONE


# -- identifiers that vanished ---------------------------------------------------------------------------------------


def test_identifiers_that_vanished_are_named_once() -> None:
    after = but(BODIES, work="- Built it.", facts="- All is well.")
    made = carried(BODIES, after, 2048)
    line = made.bodies[FACTS].splitlines()[-1]
    assert line == (
        f"Named in earlier notes: src/weir.py, tests/test_weir.py, ABC-17, https://example.com/weir, {REFERENCE}"
    )
    assert carried(made, made, 2048) == made
    assert carried(made, but(made, facts="- All is well."), 2048) == made
    back = but(made, work="- Built src/weir.py, tests/test_weir.py for ABC-17")
    assert "src/weir.py" not in carried(made, back, 2048).bodies[FACTS]
    assert carried(BODIES, BODIES, 2048) == BODIES
    assert carried(EMPTY, after, 2048) == after


def test_what_stands_elsewhere_in_the_prompt_is_not_carried() -> None:
    present = frozenset({"src/weir.py", "tests/test_weir.py", "ABC-17", "https://example.com/weir"})
    made = carried(BODIES, but(BODIES, work="x y", facts=""), 2048, present)
    assert made.bodies[FACTS] == f"Named in earlier notes: {REFERENCE}"


def test_where_room_is_short_references_and_the_newest_are_carried() -> None:
    many = but(BODIES, work=" ".join(f"src/part_{number}.py" for number in range(200)))
    made = carried(many, but(many, work="- Built it.", facts="- ok"), 1024)
    line = made.bodies[FACTS].splitlines()[-1]
    assert REFERENCE in line
    assert "src/part_199.py" in line
    assert "src/part_0.py" not in line
    assert estimate(line) <= 0.06 * 1024
    assert carried(many, but(many, work="- Built it.", facts="- ok"), 60).bodies[FACTS] == "- ok"


# -- bounds ----------------------------------------------------------------------------------------------------------


def long(lines: int, mark: str) -> str:
    return "\n".join(f"- {mark} number {number} was seen and is kept" for number in range(lines))


def test_what_fits_comes_back_as_it_is() -> None:
    assert fitted(BODIES, estimate(GOOD)) is BODIES
    assert fitted(EMPTY, 0) is EMPTY


def test_each_section_is_trimmed_to_its_share_and_the_newest_lines_stay() -> None:
    full = Narrative(bodies=tuple(long(200, f"s{place}") for place in range(7)))
    made = fitted(full, 1000)
    assert estimate(rendered(made)) <= 1000
    for place, body in enumerate(made.bodies):
        lines = body.splitlines()
        assert lines[-1] == f"- s{place} number 199 was seen and is kept"
        assert set(lines) <= set(full.bodies[place].splitlines()), "cut at ends of lines only"
    sizes = [estimate(body) for body in made.bodies]
    assert sizes[WORK] > sizes[NEXT] * 2
    assert sum(sizes) > 800, "the room is used"


def test_a_token_too_many_costs_little() -> None:
    for most in range(estimate(GOOD) - 12, estimate(GOOD)):
        made = fitted(BODIES, most)
        assert 0.6 * most < estimate(rendered(made)) <= most


def test_what_others_leave_is_lent() -> None:
    made = fitted(but(BODIES, facts=long(300, "f")), 1000)
    assert estimate(made.bodies[FACTS]) > 600
    assert made.bodies[CONSTRAINTS] == BODIES.bodies[CONSTRAINTS]


def test_a_line_that_is_too_long_alone_keeps_its_beginning() -> None:
    made = fitted(but(EMPTY, facts="- begin " + "and on " * 4000), 200)
    assert made.bodies[FACTS].startswith("- begin and on")
    assert made.bodies[FACTS].endswith(" ...")
    assert estimate(rendered(made)) <= 200


def test_what_continues_a_line_that_is_gone_goes_with_it() -> None:
    item = "- item with a name\n  and a second line that goes on and on\n\n  and a third one"
    made = fitted(but(EMPTY, facts="\n".join([item] * 30)), 200)
    assert made.bodies[FACTS].startswith("- item")
    fenced = "```\n" + long(60, "code") + "\n```"
    assert fitted(but(EMPTY, facts=fenced), 200).bodies[FACTS].count("```") == 0


@given(texts(), st.integers(0, 400))
def test_a_fitted_narrative_fits_and_fits_again(text: str, most: int) -> None:
    made = fitted(read(rendered(parse(text).narrative)), most)
    assert estimate(rendered(made)) <= most
    assert fitted(made, most) is made


@settings(max_examples=15)
@given(st.lists(texts(), min_size=1, max_size=6), st.integers(80, 600))
def test_a_hundred_passes_are_no_longer_than_one(said: list[str], most: int) -> None:
    now = EMPTY
    sizes: list[int] = []
    for number in range(100):
        new = parse(said[number % len(said)]).narrative
        now = read(rendered(fitted(carried(now, updated(now, new), most), most)))
        sizes.append(estimate(rendered(now)))
    assert max(sizes) <= most
    # Once the same texts have come round, nothing more is added.
    assert max(sizes[50:]) <= max(sizes[:50])


def test_a_hundred_empty_passes_change_nothing() -> None:
    now = BODIES
    for said in ("", "## Facts\n", "## Facts\nNone\n## Work done\nNone", "nothing to say") * 25:
        now = fitted(carried(now, updated(now, parse(said).narrative), 1024), 1024)
    assert now == BODIES


def test_a_hundred_growing_passes_stay_flat_and_keep_rules_and_references() -> None:
    now = fitted(BODIES, 700)
    sizes = []
    for number in range(100):
        grown = but(now, work=now.bodies[WORK] + f"\n- Changed src/part_{number}.py in step {number}.")
        now = fitted(carried(now, updated(now, grown), 700), 700)
        sizes.append(estimate(rendered(now)))
    assert max(sizes) <= 700
    assert max(sizes[60:]) - min(sizes[60:]) < 70
    assert now.bodies[CONSTRAINTS] == BODIES.bodies[CONSTRAINTS]
    assert now.bodies[DECISIONS] == BODIES.bodies[DECISIONS]
    assert REFERENCE in rendered(now)
    assert "src/part_99.py" in now.bodies[WORK]


# -- references ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"The gauge reads 4711 mm [{REFERENCE}].", "The gauge reads 4711 mm."),
        (f"Read ({REFERENCE}, {OTHER}) twice", "Read twice"),
        (f"Read [see {REFERENCE}] it", "Read it"),
        (f"水位 4711【{REFERENCE}】。", "水位 4711。"),
        (f"bare {REFERENCE} too", "bare too"),
        ("no res_12 here [1]", "no res_12 here [1]"),
    ],
)
def test_people_see_no_references(text: str, shown: str) -> None:
    assert display(text) == shown


def test_references_are_found_in_order_each_once() -> None:
    assert references(f"{OTHER} and {REFERENCE}, {OTHER}") == (OTHER, REFERENCE)


def test_a_reference_that_nobody_gave_is_taken_out() -> None:
    text = f"a [{REFERENCE}], b [{REFERENCE}, {OTHER}], c [{OTHER}]."
    assert known_only(text, (REFERENCE,)) == f"a [{REFERENCE}], b [{REFERENCE}], c."
    assert known_only(text, (REFERENCE, OTHER)) == text
    assert known_only(text, ()) == "a, b, c."
