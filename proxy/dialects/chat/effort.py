"""How an upstream is told a level of reasoning effort: the members of a chat completions body, per provider.

Belongs here: what each way of telling (`core.effort.Means`) writes. Never: which way is the upstream's (catalogue and
policy say so), and no level of its own. A member in which the client itself speaks its provider's language is left as
it came; a model that has no level, or an upstream nobody knows, gets nothing that it could refuse.

    reasoning_effort       OpenAI (learn.microsoft.com, ReasoningEffort: values by model), Google
                           (ai.google.dev/gemini-api/docs/openai), Mistral (docs.mistral.ai, reasoning/adjustable: none
                           or high), xAI (docs.x.ai, reasoning), Groq (console.groq.com/docs/reasoning), Ollama
                           (docs.ollama.com/api/openai-compatibility), vLLM and llama.cpp for gpt-oss
    reasoning              OpenRouter: {"effort": ..} (openrouter.ai/docs/use-cases/reasoning-tokens)
    thinking               DeepSeek: {"type": "enabled" | "disabled"}, and reasoning_effort low, high
                           (api-docs.deepseek.com/guides/thinking_mode); Z.ai the same without grades
    thinking_budget        Anthropic up to Claude 4.6: {"type": "enabled", "budget_tokens": ..}; its compatible API
                           ignores reasoning_effort (platform.claude.com/docs/en/api/openai-sdk)
    thinking_adaptive      Anthropic from Claude 4.6: {"type": "adaptive"} and output_config.effort; a budget is
                           refused from 4.7 on (platform.claude.com/docs/en/build-with-claude/adaptive-thinking)
    enable_thinking        Alibaba Model Studio (alibabacloud.com/help/en/model-studio/deep-thinking)
    chat_template_kwargs   vLLM, SGLang, llama.cpp: variables of the chat template, `enable_thinking` of Qwen3 and most
                           others, `thinking` of DeepSeek-V3.1 and Granite (docs.vllm.ai, features/reasoning_outputs); a
                           template leaves aside what it does not know, so both are set
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, assert_never

import msgspec

from proxy.core.effort import Effort, effort_of, nearest
from proxy.core.policy import ModelCard, Policy
from proxy.core.stack import UNCHANGED, Members

_EFFORT: Final = "reasoning_effort"
_LEVELS: Final = (_EFFORT, "reasoning")
"""Members in which a client states a level."""
_SWITCHES: Final = ("enable_thinking", "thinking")
_BUDGETS: Final[Mapping[Effort, int]] = MappingProxyType(
    {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16_384, "xhigh": 32_768}
)
"""Tokens of thought. Anthropic names no levels for them; the steps are those of other providers' own tables."""
_LEAST_BUDGET: Final = 1024
_UNSTATED_BUDGET: Final = 2000
"""Where the request states no limit for its answer: the budget of Anthropic's own example without one."""


def stated_effort(fields: Mapping[str, bytes]) -> Effort | None:
    """The level that a request asks for, as OpenAI's clients or OpenRouter's state it; None: none that we know."""
    if _EFFORT not in fields and "reasoning" not in fields:
        return None
    return effort_of(_value(fields.get(_EFFORT))) or effort_of((_members_of(fields, "reasoning") or {}).get("effort"))


def effort_members(
    level: Effort | None, card: ModelCard, policy: Policy, fields: Mapping[str, bytes], max_output: int | None = None
) -> Members:
    """The members that tell the upstream `level`; None takes one out. `fields` are the request's own, `max_output` the
    limit that it states for the answer, in tokens."""
    if level is None:
        return UNCHANGED
    means = policy.effort_member if policy.effort_member != "auto" else card.means or policy.effort_elsewhere
    levels = card.efforts if policy.effort_levels is None else policy.effort_levels
    if means == "none" or levels == ():
        return _without(fields, _LEVELS)
    if means is None or (levels is None and policy.effort_member == "auto" and means == card.means != "reasoning"):
        return UNCHANGED  # nobody knows what it would be; OpenRouter leaves out what a model does not take
    if means == "thinking_budget" and policy.effort_levels is None and level != "none":
        levels = None  # a budget comes in any size, whatever its levels are called; only off is not always to be had
    asked = level if levels is None else nearest(level, levels) or level
    match means:
        case "reasoning_effort":
            return _translated(fields) | {_EFFORT: _raw(asked)}
        case "reasoning":
            return _reasoning(asked, fields)
        case "thinking":
            graded = sum(each != "none" for each in levels or ()) > 1 and asked != "none"
            return _thinking({"type": _switch(asked)}, fields) | ({_EFFORT: _raw(asked)} if graded else {})
        case "thinking_budget":
            return _budgeted(asked, fields, max_output)
        case "thinking_adaptive":
            return _adaptive(asked, fields)
        case "enable_thinking":
            own = {} if _stated(fields, means) else {means: _raw(asked != "none")}
            return _translated(fields) | own
        case "chat_template_kwargs":
            return _template(asked, fields)
    assert_never(means)


def _reasoning(asked: Effort, fields: Mapping[str, bytes]) -> dict[str, bytes | None]:
    """OpenRouter takes an effort or a budget, not both; what else the client put there stays."""
    stated = _members_of(fields, "reasoning")
    taken = _without(fields, (_EFFORT,))
    if stated is None or "max_tokens" in stated or stated.get("enabled") is False:
        return taken
    return {**taken, "reasoning": _raw({**stated, "effort": asked})}


def _thinking(value: Mapping[str, object], fields: Mapping[str, bytes]) -> dict[str, bytes | None]:
    own = {} if _stated(fields, "thinking") else {"thinking": _raw(value)}
    return _translated(fields) | own


def _budgeted(asked: Effort, fields: Mapping[str, bytes], max_output: int | None) -> dict[str, bytes | None]:
    """A budget is at least 1024 tokens and leaves half of the answer's limit; where thought and request exclude each
    other, the request goes as it came. With tools it does: the next call of the loop would have to bring back the
    signed thought, which the compatible API does not hand out."""
    if asked == "none":
        return _thinking({"type": "disabled"}, fields)
    room = _UNSTATED_BUDGET if max_output is None else max_output // 2
    if room < _LEAST_BUDGET or _stated(fields, "tools") or _excludes_thought(fields):
        return _translated(fields)
    return _thinking({"type": "enabled", "budget_tokens": min(_BUDGETS[asked], room)}, fields)


def _adaptive(asked: Effort, fields: Mapping[str, bytes]) -> dict[str, bytes | None]:
    if asked == "none":
        return _thinking({"type": "disabled"}, fields)
    stated = _members_of(fields, "output_config")
    if stated is None or _stated(fields, "thinking") or _excludes_thought(fields):
        return _translated(fields)
    return {**_thinking({"type": "adaptive"}, fields), "output_config": _raw({**stated, "effort": asked})}


def _template(asked: Effort, fields: Mapping[str, bytes]) -> dict[str, bytes | None]:
    stated = _members_of(fields, "chat_template_kwargs")
    taken = _translated(fields)
    if stated is None or any(name in stated for name in _SWITCHES):
        return taken
    variables = {**stated, **dict.fromkeys(_SWITCHES, asked != "none")}
    return {**taken, "chat_template_kwargs": _raw(variables)}


def _excludes_thought(fields: Mapping[str, bytes]) -> bool:
    """Anthropic refuses thinking beside another temperature or top_p than 1, top_k, or a tool that must be called
    (platform.claude.com/docs/en/build-with-claude/extended-thinking)."""
    sampled = (_value(fields.get(name)) for name in ("temperature", "top_p"))
    if any(value not in (None, 1) for value in sampled) or _stated(fields, "top_k"):
        return True
    return _value(fields.get("tool_choice")) not in (None, "auto", "none")


def _switch(asked: Effort) -> str:
    return "disabled" if asked == "none" else "enabled"


def _translated(fields: Mapping[str, bytes]) -> dict[str, bytes | None]:
    """Takes out where the client stated a level that is told otherwise; both together are an error at some gateways."""
    found = _without(fields, (_EFFORT,))
    return found | {"reasoning": None} if "effort" in (_members_of(fields, "reasoning") or {}) else found


def _without(fields: Mapping[str, bytes], names: Iterable[str]) -> dict[str, bytes | None]:
    return {name: None for name in names if name in fields}


def _stated(fields: Mapping[str, bytes], name: str) -> bool:
    return fields.get(name, b"null") != b"null"


def _members_of(fields: Mapping[str, bytes], name: str) -> dict[str, object] | None:
    """What stands in an object of the client's; None where it is no object that we could write again."""
    if not _stated(fields, name):
        return {}
    value = _value(fields[name])
    return value if isinstance(value, dict) else None


def _value(raw: bytes | None) -> object:
    """What a member says; None where it is absent, or nothing that could be read (a lone surrogate, a huge number)."""
    try:
        return None if raw is None else msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None


def _raw(value: object) -> bytes:
    return msgspec.json.encode(value)
