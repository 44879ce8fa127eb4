"""Chapter 2.9 of docs/failure-modes.md: the provider's cache, money and secrets."""

from __future__ import annotations

from tests.mutations.listed import Mutation

SUMMARY, GATEWAY = "proxy/core/summary.py", "proxy/gateway.py"

MUTATIONS = (
    Mutation("F97", "proxy/core/exchange.py", "    known = branch.compacted_before(bound)\n", "    known = None\n"),
    Mutation(
        "F98",
        "proxy/core/compaction.py",
        "    return chain.behind(compaction.covers) or _lead(messages)\n",
        "    return max(chain.behind(compaction.covers) or _lead(messages), len(messages) - 4)\n",
    ),
    Mutation(
        "F99",
        "proxy/core/render.py",
        'f"Notes on {covered(notes)} of this',
        'f"Notes {id(compaction)} on {covered(notes)} of this',
    ),
    Mutation("F100", GATEWAY, "            self._closing.append(gateway.closing.close_row(calling.row))\n", ""),
    Mutation(
        "F101",
        "proxy/summarising.py",
        "return self.authorization if self.target.upstream is self.served.upstream else None",
        "return self.authorization",
        ("tests/scenarios/test_summaries.py::test_the_clients_own_key_goes_to_no_other_upstream",),
    ),
    Mutation(
        "F101",
        "proxy/server/endpoints.py",
        "    if model is None or not keys.allowed(caller, model):\n        return None\n",
        "    if model is None:\n        return None\n",
        ("tests/scenarios/test_summaries.py::test_the_summary_model_then_the_own_one_then_nobody[not allowed]",),
    ),
    Mutation(
        "F102",
        SUMMARY,
        "previous = _lean(redact(matter.previous), max_tokens)",
        "previous = _lean(matter.previous, max_tokens)",
        ("tests/core/test_summary.py::test_secrets_are_taken_out_everywhere",),
    ),
    Mutation(
        "F102",
        "proxy/core/gate.py",
        'known_only(redact(text or ""), asked.known)',
        'known_only(text or "", asked.known)',
        ("tests/core/test_gate.py::test_secrets_of_an_answer_are_taken_out",),
    ),
    Mutation(
        "F102",
        "proxy/core/compaction.py",
        "history.redact(_words(history.messages, index))",
        "_words(history.messages, index)",
        ("tests/scenarios/test_secrets.py::test_what_is_stored_summarised_logged_and_measured_holds_no_secret",),
    ),
    Mutation(
        "F102",
        "proxy/core/redaction.py",
        "if start >= behind:",
        "if start > len(text):",
        ("tests/core/test_credentials.py::test_a_secret_goes_and_its_kind_is_told",),
    ),
    Mutation(
        "F103",
        "proxy/core/quoting.py",
        "text=defused(entry.text)) for entry in part)",
        "text=entry.text) for entry in part)",
        ("tests/core/test_quoting.py::test_an_injection_in_a_result_a_call_or_a_name_makes_no_entry",),
    ),
    Mutation(
        "F103",
        "proxy/core/completing.py",
        "text=sealed(pin.text)",
        "text=pin.text",
        ("tests/scenarios/test_injections.py::test_what_others_write_stays_in_its_fence",),
    ),
    Mutation("F105", "proxy/dialects/chat/summary.py", '"stream": b"true"}', '"stream": b"true", "tools": b"[]"}'),
)
