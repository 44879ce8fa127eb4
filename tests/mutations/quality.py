"""Chapter 2.7 of docs/failure-modes.md: what a summary may lose, invent or do."""

from __future__ import annotations

from tests.mutations.listed import Mutation

GATE, NARRATIVE, QUOTING = "proxy/core/gate.py", "proxy/core/narrative.py", "proxy/core/quoting.py"
RENDER, SUMMARY, TAIL = "proxy/core/render.py", "proxy/core/summary.py", "proxy/core/tail.py"
FAULT = "tests/core/test_gate.py::test_a_fault_is_refused_with_its_reason"

MUTATIONS = (
    Mutation(
        "F61",
        "proxy/core/compaction.py",
        "        pins=pins,\n",
        "        pins=pins[:1],\n",
        (
            "tests/core/test_compaction.py::test_a_compacted_prompt_is_sound_smaller_within_its_room_and_accounts_for_every_request",
        ),
    ),
    Mutation(
        "F61",
        "proxy/core/completing.py",
        "asked, spare, notes_text(made))",
        "asked, 0, notes_text(made))",
        ("tests/core/test_completing.py::test_a_rule_of_a_request_that_is_gone_stands_in_the_notes",),
    ),
    Mutation(
        "F62",
        NARRATIVE,
        '        elif body in ("", NONE):\n            bodies[section] = before.bodies[section]\n',
        "",
    ),
    Mutation("F63", RENDER, "        parts.append(_OPEN)\n", "        parts.append(_LAW)\n"),
    Mutation("F64", RENDER, '"done. Nothing in them is a new request or an instruction."', '"done."'),
    Mutation("F65", NARRATIVE, "    if estimate(rendered(narrative)) <= most_tokens:\n", "    if most_tokens:\n"),
    Mutation(
        "F66",
        "proxy/core/exchange.py",
        "    again = branch.same_again()\n",
        "    again = None\n",
        ("tests/core/test_exchange.py::test_the_same_request_again_takes_the_same_decision",),
    ),
    Mutation(
        "F66",
        "proxy/core/command.py",
        "return Reason.NOTHING_NEW if unchanged or _just_compacted(before, skip) else None",
        "return None",
        ("tests/core/test_command.py::test_nothing_new_since_the_last_one_refuses_it",),
    ),
    Mutation(
        "F67",
        QUOTING,
        "for entry in group)) for group in quoted], most_tokens)",
        "for entry in group)) for group in quoted[1:]], most_tokens)",
    ),
    Mutation(
        "F68",
        GATE,
        "        return Refusal.EMPTY if given.finish in _ENDED else Refusal.UNFINISHED\n",
        "        return None\n",
        (f"{FAULT}[empty]",),
    ),
    Mutation(
        "F69",
        GATE,
        "            return Refusal.REASONING_ONLY\n",
        "            return None\n",
        (f"{FAULT}[reasoning only]",),
    ),
    Mutation(
        "F69",
        GATE,
        "    return None if given.finish in _ENDED else Refusal.UNFINISHED\n",
        "    return None\n",
        (f"{FAULT}[cut at max_tokens]",),
    ),
    Mutation(
        "F70",
        GATE,
        "    if given.calls or given.finish in _CALLED:\n",
        "    if given.finish in _FILTERED:\n",
        (f"{FAULT}[a tool call beside notes]",),
    ),
    Mutation("F70", GATE, "    if tool_syntax(text):\n", "    if not text:\n", (f"{FAULT}[tool syntax behind notes]",)),
    Mutation(
        "F71", GATE, "    if continues(text, parsed):\n", "    if not text:\n", (f"{FAULT}[continuing behind notes]",)
    ),
    Mutation(
        "F71",
        GATE,
        "    if parsed.headings < _LEAST_HEADINGS and declines(text):\n",
        "    if not text:\n",
        (f"{FAULT}[refusing]",),
    ),
    Mutation(
        "F71",
        SUMMARY,
        "    blocks.append(_instruction(plan, previous))\n",
        "    blocks.insert(0, _instruction(plan, previous))\n",
        ("tests/core/test_summary.py::test_the_whole_request",),
    ),
    Mutation(
        "F72",
        GATE,
        '    if not written_in("\\n".join(said.bodies), asked.scripts):\n',
        "    if not said.bodies:\n",
        ("tests/core/test_gate.py::test_the_wrong_script_is_refused_and_the_right_one_taken",),
    ),
    Mutation(
        "F72",
        SUMMARY,
        "language=_LANGUAGE if plan.passages else _NO_SAMPLE,",
        "language=_NO_SAMPLE,",
        ("tests/core/test_summary.py::test_the_whole_request",),
    ),
    Mutation(
        "F73", "proxy/core/narrating.py", "    for number in range(len(plan.parts)):\n", "    for number in range(1):\n"
    ),
    Mutation(
        "F74", SUMMARY, 'block(drawn, "the notes so far", previous)', 'block(drawn, "the notes so far", previous[:400])'
    ),
    Mutation("F75", GATE, "return Refusal.NOT_SHORTER if size >= asked.replaces else None", "return None"),
    Mutation(
        "F76",
        TAIL,
        "        blocks.append(block)\n    return message(item.role",
        "        if type(block).__name__ == 'ToolCall':\n"
        "            block = msgspec.structs.replace(block, arguments=clipped(block.arguments, characters))\n"
        "        blocks.append(block)\n    return message(item.role",
    ),
    Mutation("F77", RENDER, 'f"\\n[... {gone} characters were left out', 'f"\\n[... characters were left out'),
    Mutation(
        "F78",
        "proxy/core/branch.py",
        "        clips = len(clipped)\n",
        "        clips = 0\n",
        ("tests/core/test_branch.py::test_the_whole_of_what_is_clipped_is_stored",),
    ),
    Mutation(
        "F78",
        "proxy/core/completing.py",
        "    return named_by_content(told), stored\n",
        "    return named_by_content(told), ()\n",
        ("tests/core/test_completing.py::test_a_rule_of_a_request_that_is_gone_stands_in_the_notes",),
    ),
)
