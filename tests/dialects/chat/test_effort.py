"""How each provider is told an effort; that nothing is sent which a model could refuse, and nothing of the client's is
overruled."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.catalogue import Catalogue
from proxy.core.effort import LEVELS, Effort, Means
from proxy.core.policy import ModelCard, Policy
from proxy.dialects.chat.effort import effort_members, stated_effort
from proxy.policies import load, shipped

USUAL: tuple[Effort, ...] = ("low", "medium", "high")


def told(
    level: Effort | None,
    means: Means | None,
    efforts: tuple[Effort, ...] | None = LEVELS,
    *,
    policy: Policy | None = None,
    max_output: int | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """What is set, decoded; a member that is taken out is ...."""
    raw = {name: json.dumps(value).encode() for name, value in fields.items()}
    card = ModelCard(name="m", efforts=efforts, means=means)
    found = effort_members(level, card, policy or Policy(), raw, max_output)
    return {name: ... if value is None else json.loads(value) for name, value in found.items()}


# -- each way of telling ---------------------------------------------------------------------------------------------


def test_openai_is_told_by_its_own_member() -> None:
    assert told("high", "reasoning_effort") == {"reasoning_effort": "high"}
    assert told("none", "reasoning_effort", USUAL) == {"reasoning_effort": "low"}
    assert told("high", "reasoning_effort", reasoning_effort="low") == {"reasoning_effort": "high"}


def test_openrouter_is_told_by_an_object_and_keeps_what_else_stands_in_it() -> None:
    assert told("low", "reasoning") == {"reasoning": {"effort": "low"}}
    assert told("low", "reasoning", reasoning={"exclude": True, "effort": "high"}, reasoning_effort="high") == {
        "reasoning_effort": ...,
        "reasoning": {"exclude": True, "effort": "low"},
    }


@pytest.mark.parametrize("stated", [{"max_tokens": 2000}, {"enabled": False}])
def test_a_budget_of_the_clients_own_is_left_to_openrouter(stated: dict[str, Any]) -> None:
    assert told("low", "reasoning", reasoning=stated) == {}


def test_deepseek_is_switched_and_graded() -> None:
    levels: tuple[Effort, ...] = ("none", "low", "high")
    assert told("medium", "thinking", levels) == {"thinking": {"type": "enabled"}, "reasoning_effort": "high"}
    assert told("none", "thinking", levels, reasoning_effort="none") == {
        "thinking": {"type": "disabled"},
        "reasoning_effort": ...,
    }


def test_a_model_that_is_only_on_or_off_is_only_switched() -> None:
    assert told("low", "thinking", ("none", "high")) == {"thinking": {"type": "enabled"}}
    assert told("minimal", "thinking", ("none", "high")) == {"thinking": {"type": "disabled"}}


def test_claude_gets_a_budget_that_leaves_half_of_the_answer() -> None:
    def budget(level: Effort, limit: int | None) -> Any:
        found = told(level, "thinking_budget", max_output=limit)
        return found and found["thinking"].get("budget_tokens", "off")

    assert [budget(level, 100_000) for level in LEVELS] == ["off", 1024, 2048, 8192, 16_384, 32_768]
    assert [budget("xhigh", limit) for limit in (None, 8000, 2048, 2047, 16)] == [2000, 4000, 1024, {}, {}]
    assert told("xhigh", "thinking_budget", USUAL, max_output=100_000)["thinking"]["budget_tokens"] == 32_768
    low = Policy(effort_levels=("low",))
    assert told("xhigh", "thinking_budget", policy=low, max_output=100_000)["thinking"]["budget_tokens"] == 2048
    assert told("none", "thinking_budget", reasoning_effort="none") == {
        "thinking": {"type": "disabled"},
        "reasoning_effort": ...,
    }


def test_newer_claude_thinks_as_it_sees_fit_and_is_told_how_hard() -> None:
    assert told("high", "thinking_adaptive", output_config={"format": {"type": "x"}}) == {
        "thinking": {"type": "adaptive"},
        "output_config": {"format": {"type": "x"}, "effort": "high"},
    }
    assert told("none", "thinking_adaptive") == {"thinking": {"type": "disabled"}}
    assert told("none", "thinking_adaptive", USUAL)["output_config"] == {"effort": "low"}, "one that is always on"


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0},
        {"top_p": 0.9},
        {"top_k": 5},
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "f"}}},
    ],
)
def test_claude_is_not_told_to_think_where_it_would_refuse_the_request(fields: dict[str, Any]) -> None:
    for means in ("thinking_budget", "thinking_adaptive"):
        assert told("high", means, max_output=9000, reasoning_effort="high", **fields) == {"reasoning_effort": ...}


@pytest.mark.parametrize(
    "fields", [{"temperature": 1}, {"temperature": None}, {"tool_choice": "auto"}, {"top_k": None}]
)
def test_what_claude_allows_beside_thinking_does_not_stop_it(fields: dict[str, Any]) -> None:
    for means in ("thinking_budget", "thinking_adaptive"):
        assert "thinking" in told("high", means, max_output=9000, **fields)


def test_a_budget_is_not_combined_with_tools_whose_loop_could_not_go_on() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert told("high", "thinking_budget", max_output=9000, tools=tools) == {}
    assert "thinking" in told("high", "thinking_adaptive", tools=tools)


def test_alibaba_is_switched() -> None:
    assert told("high", "enable_thinking", reasoning_effort="high") == {
        "enable_thinking": True,
        "reasoning_effort": ...,
    }
    assert told("none", "enable_thinking") == {"enable_thinking": False}


def test_a_server_of_ones_own_is_told_by_variables_of_the_chat_template() -> None:
    assert told("low", "chat_template_kwargs", None, policy=Policy(effort_member="chat_template_kwargs")) == {
        "chat_template_kwargs": {"enable_thinking": True, "thinking": True}
    }
    assert told("none", "chat_template_kwargs", chat_template_kwargs={"preserve_thinking": False}) == {
        "chat_template_kwargs": {"preserve_thinking": False, "enable_thinking": False, "thinking": False}
    }


# -- what is left alone ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("means", "fields"),
    [
        ("thinking", {"thinking": {"type": "disabled"}}),
        ("thinking_budget", {"thinking": {"type": "enabled", "budget_tokens": 5000}}),
        ("thinking_adaptive", {"thinking": {"type": "adaptive", "display": "summarized"}}),
        ("enable_thinking", {"enable_thinking": False}),
        ("chat_template_kwargs", {"chat_template_kwargs": {"thinking": True}}),
        ("chat_template_kwargs", {"chat_template_kwargs": {"enable_thinking": False}}),
    ],
)
def test_a_client_that_speaks_its_providers_language_is_not_overruled(means: Means, fields: dict[str, Any]) -> None:
    assert told("high", means, ("none", "high"), max_output=9000, **fields) == {}
    assert told("high", means, ("none", "high"), reasoning_effort="low", **fields) == {"reasoning_effort": ...}


@pytest.mark.parametrize("means", ["reasoning_effort", "reasoning", "thinking", "none"])
def test_a_model_that_cannot_reason_is_sent_no_effort_and_the_clients_is_taken_out(means: Means) -> None:
    assert told("high", means, ()) == {}
    assert told("high", means, (), reasoning_effort="high", reasoning={"effort": "high"}, temperature=0) == {
        "reasoning_effort": ...,
        "reasoning": ...,
    }


def test_where_nobody_knows_the_client_is_taken_at_its_word_and_nothing_is_added() -> None:
    unknown = Policy(effort_elsewhere=None)
    assert told("high", None, None, policy=unknown, reasoning_effort="high") == {}
    assert told("high", None, USUAL, policy=unknown, reasoning_effort="high") == {}
    assert told("high", "reasoning_effort", None, reasoning_effort="high") == {}, "a model its provider's list lacks"


def test_openrouter_leaves_out_what_a_model_does_not_take() -> None:
    assert told("high", "reasoning", None) == {"reasoning": {"effort": "high"}}


def test_where_no_level_is_stated_nothing_is_changed() -> None:
    for means in ("reasoning_effort", "thinking_budget", "none"):
        assert told(None, means, temperature=0, reasoning_effort="whatever") == {}


def test_the_policy_beats_the_catalogue() -> None:
    low = Policy(effort_levels=("low",))
    assert told("high", "reasoning_effort", LEVELS, policy=low) == {"reasoning_effort": "low"}
    assert told("high", "reasoning_effort", None, policy=low) == {"reasoning_effort": "low"}
    assert told("high", "reasoning_effort", (), policy=low) == {"reasoning_effort": "low"}
    assert told("high", "reasoning_effort", policy=Policy(effort_levels=())) == {}
    assert told("high", "reasoning", None, policy=Policy(effort_member="reasoning_effort")) == {
        "reasoning_effort": "high"
    }
    assert told("high", "reasoning", policy=Policy(effort_member="none"), reasoning_effort="high") == {
        "reasoning_effort": ...
    }


def test_elsewhere_is_for_addresses_that_nobody_knows() -> None:
    assert told("high", None, None) == {"reasoning_effort": "high"}, "which is what the API that they imitate has"
    assert told("xhigh", None, USUAL) == {"reasoning_effort": "high"}
    policy = Policy(effort_elsewhere="chat_template_kwargs")
    assert [*told("high", None, None, policy=policy)] == ["chat_template_kwargs"]
    assert [*told("high", "reasoning_effort", policy=policy)] == ["reasoning_effort"]
    assert told("high", None, (), policy=policy) == {}
    assert told("high", None, None, policy=Policy(effort_elsewhere="none"), reasoning_effort="high") == {
        "reasoning_effort": ...
    }


@given(
    st.sampled_from((None, *LEVELS)),
    st.sampled_from(get_args(Means)),
    st.none() | st.lists(st.sampled_from(LEVELS), unique=True).map(tuple),
    st.none() | st.integers(0, 10**6),
    st.dictionaries(
        st.sampled_from(
            ["reasoning", "thinking", "chat_template_kwargs", "temperature", "tool_choice", "output_config"]
        ),
        st.none()
        | st.booleans()
        | st.text(max_size=3)
        | st.lists(st.none(), max_size=1)
        | st.dictionaries(st.sampled_from(["effort", "enabled", "thinking"]), st.none() | st.text(max_size=2)),
    ),
)
def test_whatever_a_client_wrote_there_is_no_error_and_equal_calls_get_equal_bytes(
    level: Effort | None, means: Any, levels: Any, limit: int | None, fields: dict[str, Any]
) -> None:
    raw = {name: json.dumps(value).encode() for name, value in fields.items()}
    card = ModelCard(name="m", efforts=levels, means=means)
    found = effort_members(level, card, Policy(effort_member=means), raw, limit)
    assert found == effort_members(level, card, Policy(effort_member=means), dict(raw), limit)
    for value in found.values():
        assert value is None or json.loads(value) is not ...


@pytest.mark.parametrize("means", ["reasoning_effort", "thinking", "thinking_adaptive", "enable_thinking"])
def test_a_level_stated_as_openrouter_has_it_is_told_once_and_in_one_way(means: Means) -> None:
    found = told("high", means, reasoning={"effort": "high"})
    assert found["reasoning"] is ... and len(found) > 1
    assert "reasoning" not in told("high", means, reasoning={"exclude": True}), "which says nothing of a level"


def test_a_member_that_cannot_be_read_is_left_as_it_is() -> None:
    card = ModelCard(name="m", efforts=LEVELS, means="chat_template_kwargs")
    half = {"chat_template_kwargs": b'{"a":"\\ud800"}', "temperature": b"1e999"}
    assert effort_members("low", card, Policy(), half) == {}


# -- what a request states -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "level"),
    [
        ({"reasoning_effort": b'"low"'}, "low"),
        ({"reasoning_effort": b'"max"'}, "xhigh"),
        ({"reasoning_effort": b"null"}, None),
        ({"reasoning_effort": b'"default"'}, None),
        ({"reasoning_effort": b"7"}, None),
        ({"reasoning_effort": b'"\\ud800"'}, None),
        ({"reasoning": b'{"effort":"high"}'}, "high"),
        ({"reasoning": b'{"effort":"high"}', "reasoning_effort": b'"low"'}, "low"),
        ({"reasoning": b'{"max_tokens":5}'}, None),
        ({"reasoning": b'"high"'}, None),
        ({}, None),
    ],
)
def test_a_level_is_read_where_clients_state_it(fields: dict[str, bytes], level: Effort | None) -> None:
    assert stated_effort(fields) == level


# -- the shipped data ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "host", "expected"),
    [
        ("gpt-5.1", "api.openai.com", {"reasoning_effort": "medium"}),
        ("gpt-5.1", "gateway.example.com", {"reasoning_effort": "medium"}),
        ("gpt-4o", "api.openai.com", {}),
        ("openai/gpt-5", "openrouter.ai", {"reasoning": {"effort": "medium"}}),
        ("anthropic/claude-sonnet-4.5", "openrouter.ai", {"reasoning": {"effort": "medium"}}),
        ("claude-sonnet-4-5", "api.anthropic.com", {"thinking": {"type": "enabled", "budget_tokens": 8192}}),
        (
            "claude-opus-4-8",
            "api.anthropic.com",
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "medium"}},
        ),
        ("deepseek-v4-flash", "api.deepseek.com", {"thinking": {"type": "enabled"}, "reasoning_effort": "high"}),
        (
            "deepseek-ai/DeepSeek-V3.1",
            "127.0.0.1",
            {"chat_template_kwargs": {"enable_thinking": True, "thinking": True}},
        ),
        ("Qwen/Qwen3-32B", "127.0.0.1", {"chat_template_kwargs": {"enable_thinking": True, "thinking": True}}),
        ("qwen-plus", "dashscope.aliyuncs.com", {"enable_thinking": True}),
        ("mistral-small-latest", "api.mistral.ai", {"reasoning_effort": "high"}),
        ("magistral-medium-latest", "api.mistral.ai", {}),
        ("gemini-3.5-flash", "generativelanguage.googleapis.com", {"reasoning_effort": "medium"}),
        ("grok-4.5", "api.x.ai", {"reasoning_effort": "medium"}),
        ("openai/gpt-oss-120b", "api.groq.com", {"reasoning_effort": "medium"}),
        ("gpt-oss-20b", "127.0.0.1", {"reasoning_effort": "medium"}),
        ("meta-llama/Llama-3.3-70B-Instruct", "127.0.0.1", {}),
        ("nobody-knows", "127.0.0.1", {"reasoning_effort": "medium"}),
        ("nobody-knows", "api.openai.com", {}),
        ("claude-sonnet-4-5", "gateway.example.com", {"reasoning_effort": "medium"}),
    ],
)
def test_each_provider_is_told_medium_as_it_documents(model: str, host: str, expected: dict[str, Any]) -> None:
    catalogue = Catalogue()
    card = catalogue.card(model, host=host) or ModelCard(name=model, means=catalogue.means(host))
    found = effort_members("medium", card, load(shipped()).for_model(model), {}, 20_000)
    assert {name: json.loads(value) for name, value in found.items() if value is not None} == expected
