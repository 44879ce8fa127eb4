"""Recognise a provider's "too long" and say what it teaches. Pure judgement over values; sends and stores nothing.

Here stands the order of decision; where a text is found is `overflow_evidence`, the words are `overflow_phrases`, the
figures `overflow_numbers`. Codes speak before vetoes, vetoes before words, because the same words are used for rates,
credit, bytes, images and output caps. The content of a success is never searched: people talk about these errors.
Words and figures are imported where they are asked for: their hundred patterns take longer to compile than the rest of
the core to import, and a provider that never fails needs none.
Source: research/overflow_errors.md, research/compaction.md 2.4.
"""

from __future__ import annotations

import re

from proxy.core.errors import Overflow
from proxy.core.overflow_evidence import Evidence, gather
from proxy.core.steps import Limits
from proxy.core.usage import Usage

NEAR = 0.9
"""Share of the window above which our own estimate turns an opaque refusal into an overflow."""
_OPAQUE_STATUSES = frozenset({400, 413, 422, 500})
_WINDOW_FINISHES = frozenset({"model_context_window_exceeded", "context_length_exceeded", "context_window_exceeded"})
_LENGTH_FINISHES = frozenset({"length", "max_tokens", "max_output_tokens", "incomplete"})
_FULL = 0.99
_TINY = 1000
_CUT = 0.6
_STEP = 512
_SAME = 4
_GROWN = 64
_WORD = re.compile(r"[a-z_][a-z_0-9]*|[^\x00-\x7f]+")


def recognise(status: int, body: bytes, *, projected: int | None = None, window: int | None = None) -> Overflow | None:
    """The overflow that a reply of `status` (0: none known) states in `body`, else None. Never raises.

    `body` is a whole body, an SSE frame with its prefix, or the JSON of one frame; with a status below 400 only the
    places where errors are reported count. `projected` is our own size of the prompt and `window` its limit, in tokens:
    they decide where the provider refused without a reason.
    """
    failed = status >= 400 or status <= 0
    evidence = gather(body, failed=failed)
    if _overflows(status, evidence):
        from proxy.core.overflow_numbers import measure

        return measure(evidence.text, evidence.numbers)
    if failed and _refused(status, evidence) and projected is not None and window and projected >= NEAR * window:
        return Overflow(kind="unknown", exact=False)
    return None


def _overflows(status: int, evidence: Evidence) -> bool:
    from proxy.core.overflow_phrases import CODES, EARLY, EARLY_CODES, PHRASES, VETO

    if EARLY_CODES & evidence.codes:
        return True
    if _vetoed(status, evidence):
        return False
    if EARLY.search(evidence.text):
        return True
    if VETO.search(evidence.text):
        return False
    return bool(CODES & evidence.codes) or PHRASES.search(evidence.text) is not None


def _vetoed(status: int, evidence: Evidence) -> bool:
    from proxy.core.overflow_phrases import VETO_CODES, VETO_STATUSES

    if status in VETO_STATUSES or VETO_STATUSES & evidence.statuses:
        return True
    return any(VETO_CODES.search(code) for code in evidence.codes)


def _refused(status: int, evidence: Evidence) -> bool:
    """Refused without a reason, or with one that only our own estimate can explain."""
    from proxy.core.overflow_phrases import GENERIC, SUSPECT, VETO

    if status not in _OPAQUE_STATUSES or _vetoed(status, evidence) or VETO.search(evidence.text):
        return False
    if SUSPECT.search(evidence.text):
        return True
    words = {word for word in _WORD.findall(evidence.text) if word not in GENERIC}
    return len(words) <= 2


def recognise_finish(finish: str | None, usage: Usage | None, window: int | None) -> Overflow | None:
    """The overflow that a finished answer shows: by its reason, or by ending for length with nothing to show.

    `window` is the known limit in tokens. The kind is always `input`: a lower output limit would mend neither. What the
    model said until then is valid; whether anything was said is for the caller to know. Sources: Anthropic and Z.ai
    (`model_context_window_exceeded`), MiMo (`length` without output), research/compaction.md F40.
    """
    if finish is None:
        return None
    reported = usage if usage is not None and not usage.estimated else None
    if finish.lower() in _WINDOW_FINISHES:
        total = reported.input + reported.output if reported is not None else 0
        return Overflow(
            kind="input",
            requested=total or None,
            exact=False,
            input=reported.input if reported is not None else None,
            output=reported.output if reported is not None else None,
        )
    if finish.lower() not in _LENGTH_FINISHES or reported is None or reported.output > reported.reasoning:
        return None
    total = reported.input + reported.output
    full = total >= _FULL * window if window else reported.output == 0 and reported.input >= _TINY
    if not full:
        return None
    return Overflow(kind="input", requested=total, exact=False, input=reported.input, output=reported.output)


def truncated(usage_input: int, estimate: int, window: int | None, before: int | None = None) -> int | None:
    """The limit at which a provider silently cut the prompt, or None where nothing speaks for a cut.

    `usage_input` is what it reports to have read, cached tokens included; `estimate` our size of what was sent;
    `before` what it reported for a beginning of this very prompt (None: `estimate` was never held against a report,
    and may be far off for tools and images); all tokens. Ollama cuts the front and answers 200: the report stands at
    its window or just above half of it. Otherwise only a report that is far below a calibrated estimate, or does not
    grow with the prompt, shows a cut. An unknown window is taken from the report, never above twice of it.
    """
    if before is not None and _TINY <= before <= estimate - _GROWN and abs(usage_input - before) <= _SAME:
        return before
    if usage_input < _STEP // 2 or estimate - usage_input < _STEP:
        return None
    if window and estimate > window and min(abs(usage_input - window), abs(usage_input - window // 2)) <= _SAME:
        return window
    if before is not None and max(usage_input, _TINY) <= before <= estimate - _STEP:
        return before
    if usage_input >= _CUT * estimate:
        return None
    above = usage_input % _STEP
    doubled = 2 * (usage_input - above)
    if 1 <= above <= _SAME and (not window or doubled < window) and doubled < estimate:
        return doubled
    return None if before is None or usage_input < _TINY else usage_input


def learnable(overflow: Overflow, *, window: int | None = None) -> Limits | None:
    """The limit to keep for this upstream and model, or None.

    A stated limit is the truth even where the request beside it is a lower bound or a guess (vLLM, OpenRouter): `exact`
    is about the request. A limit under 1,000 tokens is believed only where `window`, the one configured, is that small;
    a limit that the request does not exceed is a misreading. Input and total limits stay apart.
    """
    limit = overflow.limit
    if limit is None or limit <= 0:
        return None
    if limit < _TINY and (window is None or window >= 2 * _TINY):
        return None
    if overflow.limit_of == "input":
        return Limits(input=limit, source="learned")
    return Limits(total=limit, source="learned")


def final_text(requested: int | None, limit: int | None) -> str:
    """What the client is told when nothing can make the prompt fit: the one text that all clients recognise.

    Each part is some client's pattern (research/real-parts.md 5.4); it goes out with the code
    `context_length_exceeded` and status 400. A number that is unknown, or that contradicts the other, is left out.
    """
    if requested is not None and (requested <= 0 or (limit is not None and requested <= limit)):
        requested = None
    if limit is None and requested is None:
        numbers = "prompt is too long."
    elif limit is None:
        numbers = f"prompt is too long: {requested} tokens."
    elif requested is None:
        numbers = f"prompt is too long: {limit} tokens maximum. This model's maximum context length is {limit} tokens."
    else:
        numbers = (
            f"prompt is too long: {requested} tokens > {limit} maximum. This model's maximum context length is {limit}"
            f" tokens, however your messages resulted in {requested} tokens."
        )
    return (
        f"{numbers} Your input exceeds the context window of this model (context_length_exceeded)."
        " Please reduce the length of the messages."
    )
