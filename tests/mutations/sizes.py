"""Chapters 2.3 and 2.5 of docs/failure-modes.md: limits, what fits them, and how sizes are told."""

from __future__ import annotations

from tests.mutations.listed import Mutation

MEASURE, TELLING, SUMMARY = "proxy/core/measure.py", "proxy/core/telling.py", "proxy/core/summary.py"

MUTATIONS = (
    Mutation("F27", SUMMARY, "made = parts(quoted, room)", "made = parts(quoted, 1 << 40)"),
    Mutation(
        "F28",
        "proxy/core/tail.py",
        "self._cut(self._results(range(self.start, len(messages))), over)",
        "self._cut([], over)",
    ),
    Mutation(
        "F29",
        "proxy/core/compacting.py",
        "        branch.move(guards.NoNotes(manual=manual))\n",
        "",
        (
            "tests/core/test_exchange_next.py::"
            "test_where_what_must_stay_is_over_the_trigger_no_model_is_asked_and_the_next_call_says_so",
        ),
    ),
    Mutation(
        "F29",
        "proxy/commands/compact.py",
        'for name in ("system", "tools") if name in sizes',
        "for name in () if name in sizes",
        ("tests/commands/test_compact.py::test_where_nothing_can_be_gained_the_parts_that_are_too_large_are_named",),
    ),
    Mutation(
        "F30",
        MEASURE,
        "limits.total - max(reserve(policy, limits, max_output), LEAST_OUTPUT) - margin)",
        "limits.total - LEAST_OUTPUT - margin)",
    ),
    Mutation(
        "F31",
        "proxy/calibration.py",
        "total=min(policy.window, learned.total or",
        "total=max(policy.window, learned.total or",
    ),
    Mutation("F32", MEASURE, "window = limits.total or limits.input\n", "window = limits.total or 8192\n"),
    Mutation(
        "F33",
        "scripts/catalogue.py",
        "    if window and given and given * 10 >= window * 9:\n        given = None\n",
        "",
    ),
    Mutation(
        "F34",
        TELLING,
        "fits = room is None or prompt.report.tokens < room.window",
        "fits = room is None or prompt.report.tokens > 0",
    ),
    Mutation("F35", "proxy/core/narrating.py", "    window = summariser.window\n", "    window = None\n"),
    Mutation(
        "F36",
        "proxy/core/overflow.py",
        "    if VETO.search(evidence.text):\n        return False\n    return bool(CODES",
        "    return bool(CODES",
    ),
    Mutation("F37", "proxy/core/quoting.py", '"".join(f"\\n[{_named(each)}]" for each in media)', '""'),
    Mutation(
        "F38",
        MEASURE,
        "return estimate(block.text) + (sum(map(media_tokens, block.media)) if block.media else 0)",
        "return estimate(block.text)",
        ("tests/core/test_measure.py::test_every_kind_of_block_that_a_model_reads_is_counted",),
    ),
    Mutation(
        "F38",
        "proxy/core/compaction.py",
        'parts.extend(f"[{media.kind}]" for media in block.media)',
        "parts.extend(media.wire.decode() for media in block.media)",
        (
            "tests/scenarios/test_prompt_shapes.py::"
            "test_an_image_in_the_tail_is_kept_with_all_its_members_and_one_that_is_covered_is_named",
        ),
    ),
    Mutation("F39", MEASURE, 'if media.kind != "image":', "if media.kind:"),
    Mutation(
        "F48",
        TELLING,
        "return measure.PROMPT_OVERHEAD + self._tools_tokens + self.past.tokens",
        "return measure.PROMPT_OVERHEAD + self.past.tokens",
    ),
    Mutation(
        "F49",
        MEASURE,
        "_PER_TRAIL: Final = 0.33",
        "_PER_TRAIL: Final = 0.08",
        ("tests/core/test_measure.py::test_estimates_stay_within_their_recorded_bounds",),
    ),
    Mutation(
        "F49",
        MEASURE,
        "weight = 1.0 / min(ratio.samples + 1, _MEMORY)",
        "weight = 0.0",
        ("tests/core/test_measure.py::test_the_ratio_converges_and_forgets_and_is_bounded",),
    ),
    Mutation(
        "F50",
        "proxy/core/compaction.py",
        "after = history.fixed + tail.tokens + history.scaled(notes)",
        "after = history.fixed + tail.tokens + notes",
    ),
    Mutation("F51", TELLING, "if anchor is not None and anchor.shape == shape:", "if anchor is not None:"),
    Mutation("F52", "proxy/dialects/chat/reply.py", '    if "prompt_tokens" not in value:', "    if value:"),
    Mutation(
        "F53",
        MEASURE,
        "return max(0, anchor.reported + round((estimated - anchor.estimated) * ratio.value))",
        "return round(estimated * ratio.value)",
    ),
)
