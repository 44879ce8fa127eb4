"""Chapter 2.6 of docs/failure-modes.md: compactions that only lead to the next one."""

from __future__ import annotations

from tests.mutations.listed import Mutation

COMPACTION, GUARDS = "proxy/core/compaction.py", "proxy/core/guards.py"

MUTATIONS = (
    Mutation(
        "F54",
        GUARDS,
        "pause=Pause.STILL_ABOVE, awaiting",
        "pause=None, awaiting",
        ("tests/core/test_guards.py::test_a_compaction_that_did_not_help_pauses_too",),
    ),
    Mutation(
        "F54",
        "proxy/core/exchange.py",
        'compacted(branch, room, branch.smallest(whole).report.tokens, "auto")',
        'compacted(branch, room, whole.report.tokens, "auto")',
        ("tests/core/test_exchange_next.py::test_a_compaction_that_did_not_help_is_not_made_again_at_every_call",),
    ),
    Mutation("F55", COMPACTION, "    if after >= before:\n        return None\n", ""),
    Mutation(
        "F56",
        "proxy/core/chain.py",
        '        elif type(block) is ToolCall:\n            _put(parts, b"C", block.name)\n',
        '        elif type(block) is ToolCall:\n            _put(parts, b"C", block.id + block.name)\n',
    ),
    Mutation("F57", "proxy/core/narrating.py", "            tries -= 1\n", ""),
    Mutation(
        "F58",
        "proxy/calibration.py",
        "        if what.learned is not None:\n",
        "        if what.learned is not None and now < 0:\n",
    ),
    Mutation("F60", "proxy/core/measure.py", "target=min(int(policy.target * window), trigger)", "target=trigger"),
)
