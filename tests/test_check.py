"""`weirgate check`: problems stop a start, warnings say what is probably not meant; both with their place."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.catalogue import Catalogue
from proxy.check import Report, check
from proxy.tools.skills import load as read_skills

GOOD = """\
upstreams: {main: {base_url: "https://api.openai.com/v1", api_key: "${env:KEY}"}}
models: {"*": {upstream: main}, gpt-4o: {upstream: main}}
"""


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return Catalogue()


def run(folder: Path, text: str, catalogue: Catalogue, **policies: str) -> Report:
    (folder / "weirgate.yaml").write_text(text)
    for name, content in policies.items():
        (folder / "policies").mkdir(exist_ok=True)
        (folder / "policies" / f"{name}.yaml").write_text(content)
    return check(folder / "weirgate.yaml", {"KEY": "k"}, catalogue=catalogue)


def warnings(folder: Path, text: str, catalogue: Catalogue, **policies: str) -> list[str]:
    report = run(folder, text, catalogue, **policies)
    assert report.problems == ()
    return [str(warning).removeprefix(f"{folder}/") for warning in report.warnings]


def test_a_good_configuration_has_nothing_to_say(tmp_path: Path, catalogue: Catalogue) -> None:
    assert run(tmp_path, GOOD, catalogue) == Report(problems=(), warnings=())
    flags = {"upstreams.main.base_url": "http://127.0.0.1:1/v1"}
    assert check(None, {}, flags, catalogue=catalogue) == Report(problems=(), warnings=())


def test_settings_and_policies_are_both_told_even_if_both_are_wrong(tmp_path: Path, catalogue: Catalogue) -> None:
    report = run(tmp_path, GOOD + "policies: policies\nserver: {prot: 1}", catalogue, default="targt: 1")
    assert not report.ok
    assert [str(problem).removeprefix(f"{tmp_path}/") for problem in report.problems] == [
        'weirgate.yaml:4: server.prot: unknown key; did you mean "port"?',
        'policies/default.yaml:1: targt: unknown key; did you mean "target"?',
    ]


@pytest.mark.parametrize("text", ["a: [", "", "policies: 5", "policies: gone"])
def test_a_hopeless_file_is_problems_and_no_exception(tmp_path: Path, catalogue: Catalogue, text: str) -> None:
    assert not run(tmp_path, text, catalogue).ok


def test_a_missing_file_is_a_problem(tmp_path: Path, catalogue: Catalogue) -> None:
    report = check(tmp_path / "none.yaml", {}, catalogue=catalogue)
    assert [problem.message for problem in report.problems] == ["does not exist"]


def test_models_without_window_or_price_are_named(tmp_path: Path, catalogue: Catalogue) -> None:
    text = """\
upstreams: {main: {base_url: "https://llm.example.com/v1"}}
models:
  "x-*": {upstream: main}
  mine: {upstream: main}
"""
    assert warnings(tmp_path, text, catalogue) == [
        "weirgate.yaml:4: models.mine: the window of mine is not known: "
        "it is compacted only after the provider refuses",
        "weirgate.yaml:4: models.mine: no price is known for mine: its usage rows are marked unpriced",
    ]
    stated = warnings(tmp_path, text + "policies: policies", catalogue, default="window: 8192")
    assert [line for line in stated if "window" in line] == []


def test_a_window_above_the_catalogues_is_doubted(tmp_path: Path, catalogue: Catalogue) -> None:
    found = warnings(tmp_path, GOOD + "policies: policies", catalogue, default="window: 512000")
    assert found == [
        "weirgate.yaml:2: models.gpt-4o: its policy (default) states a window of 512000, the catalogue 128000"
    ]


def test_what_others_could_reach_or_read_is_warned_of(tmp_path: Path, catalogue: Catalogue) -> None:
    text = """\
upstreams: {main: {base_url: "http://llm.example.com/v1", api_key: sk-in-clear}}
keys: [{id: a, tenant: t, secret: "${env:KEY}", models: ["*"]}]
server: {host: 0.0.0.0}
"""
    assert warnings(tmp_path, text, catalogue) == [
        "weirgate.yaml:1: upstreams.main.api_key: holds a secret in clear; write ${env:NAME} or ${file:/path}",
        "weirgate.yaml:2: keys[0].secret: is shorter than 16 characters and can be guessed",
        "weirgate.yaml:1: upstreams.main.base_url: sends its key over plain http",
    ]
    (open_,) = warnings(tmp_path, GOOD + "server: {host: 0.0.0.0}", catalogue)
    assert open_.startswith(
        "weirgate.yaml:3: server.host: unless keys were made with `weirgate keys add`, this is refused"
    )


def test_what_nothing_uses_is_named(tmp_path: Path, catalogue: Catalogue) -> None:
    text = """\
upstreams: {main: {base_url: "https://api.openai.com/v1"}, idle: {base_url: "https://api.openai.com/v1"}}
models: {gpt-4o: {upstream: main}}
keys: [{id: a, tenant: t, secret: "0123456789abcdef-${env:KEY}", models: ["gpt-*", "claude-*"]}]
"""
    assert warnings(tmp_path, text, catalogue) == [
        "weirgate.yaml:1: upstreams.idle: no model uses this upstream",
        'weirgate.yaml:3: keys[0].models: "claude-*" fits no entry of models and no agent',
    ]


def test_a_policy_that_would_compact_again_at_once_is_doubted(tmp_path: Path, catalogue: Catalogue) -> None:
    found = warnings(tmp_path, GOOD + "policies: policies", catalogue, default="target: 0.8\nreserve_max_share: 0.25")
    assert len(found) == 1 and found[0].startswith("policies/default.yaml: target: target 0.8 is not below")


AGENTS = """\
upstreams: {main: {base_url: "https://api.openai.com/v1", api_key: "${env:KEY}"}}
models: {"*": {upstream: main}, gpt-4o: {upstream: main}, gpt-5.1: {upstream: main}}
"""


def test_agents_are_checked_with_everything_else(tmp_path: Path, catalogue: Catalogue) -> None:
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "b.yaml").write_text("modle: gpt-4o\nmodel: gpt-4o")
    text = AGENTS + "agents:\n  a: {model: gpt-4o, instructions: {file: gone.md}}\n"
    report = run(tmp_path, text, catalogue)
    assert [str(problem).removeprefix(f"{tmp_path}/") for problem in report.problems] == [
        'agents/b.yaml:1: modle: unknown key; did you mean "model"?',
        "weirgate.yaml:4: agents.a.instructions.file: gone.md does not exist",
    ]
    broken = run(tmp_path, text + "server: {prot: 1}\n", catalogue)
    assert [problem.key for problem in broken.problems] == ["server.prot", "modle"], "what can be judged, is"


def test_limits_of_memory_that_do_not_do_what_they_seem_to_are_named(tmp_path: Path, catalogue: Catalogue) -> None:
    text = """\
upstreams: {main: {base_url: "https://api.openai.com/v1"}}
models: {"gpt*": {upstream: main}, "mine*": {upstream: main}}
agents:
  plain: {model: gpt-4o}
  off: {model: gpt-4o, memory: off}
  often: {model: gpt-4o, memory: {step: 1}}
  seldom: {model: gpt-4o, memory: {step: 20}}
  uncached: {model: mine-1, memory: {step: 1}}
  more: {model: gpt-4o, memory: {turns: 2, result_turns: 3}}
  none: {model: gpt-4o, memory: {calls: 0}}
"""
    said = [line for line in warnings(tmp_path, text, catalogue) if ".memory" in line]
    assert said == [
        "weirgate.yaml:9: agents.more.memory: result_turns 3 is more than turns: 2 turns are told in all",
        "weirgate.yaml:10: agents.none.memory: calls is 0: no result is told, whatever result_turns says",
        "weirgate.yaml:6: agents.often.memory: with a step of 1 what gpt-4o's provider has cached is read as new every "
        "1 turns; without one, only when that pays",
    ]


def test_an_effort_that_the_model_would_not_hear_of_is_named(tmp_path: Path, catalogue: Catalogue) -> None:
    text = (
        AGENTS
        + """\
agents:
  thinks: {model: gpt-5.1, effort: low}
  cannot: {model: gpt-4o, effort: low}
  unknown: {model: mine, effort: low}
  silent: {model: gpt-4o}
"""
    )
    found = warnings(tmp_path, text, catalogue)
    said = "is not known to take one, so it is left out; if it does, its policy can say how"
    assert found == [
        f"weirgate.yaml:5: agents.cannot.effort: gpt-4o {said}",
        f"weirgate.yaml:6: agents.unknown.effort: mine {said}",
    ]
    stated = warnings(tmp_path, text + "policies: policies", catalogue, default="effort: {levels: [low, high]}")
    assert stated == []


def test_skills_that_an_agent_cannot_have_are_named(tmp_path: Path, catalogue: Catalogue) -> None:
    text = AGENTS + "agents: {a: {model: gpt-4o, skills: [tone, gone-*], tools: []}}\n"
    assert warnings(tmp_path, text, catalogue) == [
        "weirgate.yaml:3: agents.a.skills: there are no skills: skills.folders names no folder"
    ]
    (tmp_path / "skills" / "shared" / "tone").mkdir(parents=True)
    (tmp_path / "skills" / "shared" / "tone" / "SKILL.md").write_text("---\nname: tone\ndescription: Always.\n---\nHi.")
    (tmp_path / "weirgate.yaml").write_text(text + "skills: {folders: skills}\n")
    report = check(tmp_path / "weirgate.yaml", {"KEY": "k"}, catalogue=catalogue, skills=read_skills)
    assert report.problems == ()
    assert [str(warning).removeprefix(f"{tmp_path}/") for warning in report.warnings] == [
        "weirgate.yaml:3: agents.a.tools: without load_skill its skills can only be selected, "
        "never loaded by the model",
        'weirgate.yaml:3: agents.a.skills: "gone-*" fits no skill',
    ]
    (tmp_path / "weirgate.yaml").write_text(text + "skills: {folders: gone}\n")
    gone = check(tmp_path / "weirgate.yaml", {"KEY": "k"}, catalogue=catalogue, skills=read_skills)
    assert not gone.ok and "gone" in gone.problems[0].file


def test_what_an_agent_is_given_in_vain_is_named(tmp_path: Path, catalogue: Catalogue) -> None:
    asks = "tools: [load_skill, read_tool_result, ask_user, request_approval]"
    text = AGENTS + f"agents: {{a: {{model: gpt-4o, {asks}, visible_to: {{tenants: []}}}}}}\n"
    assert warnings(tmp_path, text, catalogue) == [
        "weirgate.yaml:3: agents.a.visible_to: nobody may know of this agent",
    ]


def test_a_key_may_name_an_agent(tmp_path: Path, catalogue: Catalogue) -> None:
    text = """\
upstreams: {main: {base_url: "https://api.openai.com/v1"}}
models: {gpt-4o: {upstream: main}}
agents: {support: {model: gpt-4o}}
keys: [{id: a, tenant: t, secret: "0123456789abcdef-${env:KEY}", models: [support]}]
"""
    assert warnings(tmp_path, text, catalogue) == []
