"""Agents: two places to write them, every mistake told with its line, and files that may change while all runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from proxy import agents
from proxy.agents import Agents, Given, remark
from proxy.agents.keys import MAX_TEXT, AgentSettings
from proxy.agents.watch import AgentWatch
from proxy.configfile import ConfigError
from proxy.core.agent import Agent, MemoryLimits
from proxy.core.effort import LEVELS
from proxy.settings import agents_of, load
from tests.data import ROOT
from tests.test_readme import examples, execute

PAGE = ROOT / "docs" / "agents.md"

HEAD = """\
upstreams: {main: {base_url: "http://127.0.0.1:1/v1"}}
models: {fast: {upstream: main}, "big-*": {upstream: main}}
"""
ISSUE = """\
agents:
  support:
    model: fast
    instructions: {file: prompts/support.md}
    client_system: after
    skills: [refund-policy, tone]
    skills_place: system
    effort: medium
    tools: [load_skill, read_tool_result, ask_user, request_approval]
    visible_to: {tenants: [acme], users: ["*"]}
base_prompt: {file: prompts/base.md}
skills: {folders: [skills]}
"""


def write(folder: Path, text: str, **files: str) -> Path:
    """weirgate.yaml with HEAD before `text`, and agents/NAME.yaml for each of `files`."""
    path = folder / "weirgate.yaml"
    path.write_text(HEAD + text)
    for name, content in files.items():
        (folder / "agents").mkdir(exist_ok=True)
        (folder / "agents" / f"{name}.yaml").write_text(content)
    return path


def given(folder: Path, text: str, **files: str) -> Given:
    return agents_of(load(write(folder, text, **files), {}))


def read(folder: Path, text: str, **files: str) -> Agents:
    return agents.load(given(folder, text, **files))


def problems(folder: Path, text: str, **files: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(folder, text, **files)
    return [str(problem).replace(f"{folder}/", "") for problem in caught.value.problems]


def prompts(folder: Path, **texts: str) -> None:
    (folder / "prompts").mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / "prompts" / f"{name}.md").write_text(text)


# -- what is written reaches the agent -------------------------------------------------------------------------------


def test_the_example_of_the_issue_is_an_agent_with_everything_it_says(tmp_path: Path) -> None:
    prompts(tmp_path, support="Be kind.\n", base="We are Acme.\n")
    found = read(tmp_path, ISSUE)
    assert found.base == "We are Acme."
    assert found.named("support") == Agent(
        name="support",
        model="fast",
        instructions="Be kind.",
        client_system="after",
        skills=("refund-policy", "tone"),
        place="system",
        effort="medium",
        tools=("load_skill", "read_tool_result", "ask_user", "request_approval"),
        memory=MemoryLimits(),
        tenants=("acme",),
        users=("*",),
    )
    assert load(tmp_path / "weirgate.yaml", {}).skills.folders == (tmp_path / "skills",)


def test_an_agent_says_only_what_differs(tmp_path: Path) -> None:
    assert read(tmp_path, "agents: {a: {model: fast}}").named("a") == Agent(
        name="a", model="fast", memory=MemoryLimits()
    )


def test_an_agent_may_have_a_file_of_its_own_named_after_it(tmp_path: Path) -> None:
    found = read(tmp_path, "agents: {a: {model: fast}}", b="model: big-1\nskills: tone\ntools: ask_user\neffort: none")
    assert [*found.agents] == ["a", "b"]
    assert found.named("b") == Agent(
        name="b", model="big-1", skills=("tone",), tools=("ask_user",), effort="none", memory=MemoryLimits()
    )


def test_a_text_may_be_written_in_place_and_every_form_says_the_same(tmp_path: Path) -> None:
    text = """\
agents:
  plain: {model: fast, instructions: "Be kind."}
  stated: {model: fast, instructions: {text: "Be kind."}}
  block:
    model: fast
    instructions: |
      Be kind.
base_prompt: Ours.
"""
    found = read(tmp_path, text)
    assert {agent.instructions for agent in found.agents.values()} == {"Be kind."}
    assert found.base == "Ours."


def test_an_instruction_file_is_looked_for_beside_the_file_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "agents" / "texts").mkdir(parents=True)
    (tmp_path / "agents" / "texts" / "b.md").write_text("Beside the agent.")
    found = read(tmp_path, "", b="model: fast\ninstructions: {file: texts/b.md}")
    assert found.agents["b"].instructions == "Beside the agent."


def test_a_prompt_is_one_text_whoever_saved_it(tmp_path: Path) -> None:
    (tmp_path / "p.md").write_bytes(b"\xef\xbb\xbf\r\nOne.\r\nTwo.\rThree.\n\n")
    assert read(tmp_path, "base_prompt: {file: p.md}").base == "One.\nTwo.\nThree."


@pytest.mark.parametrize("text", ['Answer as {"name": "{name}"}.', "{agent} {unknown} {}", "${env:HOME} {{x}} %s"])
def test_prompt_text_is_literal_braces_and_all(tmp_path: Path, text: str) -> None:
    prompts(tmp_path, p=text)
    found = read(tmp_path, "base_prompt: {file: prompts/p.md}", b=f"model: fast\ninstructions: {text!r}")
    assert (found.base, found.agents["b"].instructions) == (text, text)


def test_without_a_file_there_is_no_folder_and_nothing_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "x.yaml").write_text("nonsense: 1")
    monkeypatch.chdir(tmp_path)
    assert agents.load(Given()) == agents.load(agents_of(load(None, {}, {"upstreams.main.base_url": "http://x/v1"})))


def test_a_file_that_is_called_as_the_folder_would_be_is_somebody_elses(tmp_path: Path) -> None:
    (tmp_path / "agents").write_text("not a folder")
    assert read(tmp_path, "agents: {a: {model: fast}}").visible_to("t", None) == ("a",)


def test_the_environment_may_state_an_agent(tmp_path: Path) -> None:
    environ = {"WEIRGATE_AGENTS__FROM_ENV__MODEL": "fast", "WEIRGATE_BASE_PROMPT__TEXT": "Ours."}
    found = agents.load(agents_of(load(write(tmp_path, ""), environ)))
    assert (found.agents["from_env"].model, found.base) == ("fast", "Ours.")


# -- who knows of it -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tenant", "user", "names"),
    [
        ("acme", None, ("all", "ours")),
        ("acme", "ann", ("all", "anns", "ours")),
        ("acme", "bob", ("all", "ours")),
        ("other", "ann", ("all", "anns")),
        ("other", None, ("all",)),
    ],
)
def test_a_caller_knows_the_agents_that_are_for_its_tenant_and_its_end_user(
    tmp_path: Path, tenant: str, user: str | None, names: tuple[str, ...]
) -> None:
    text = """\
agents:
  all: {model: fast}
  ours: {model: fast, visible_to: {tenants: "ac*"}}
  anns: {model: fast, visible_to: {users: [ann, "an?-*"]}}
  nobodys: {model: fast, visible_to: {tenants: []}}
"""
    assert read(tmp_path, text).visible_to(tenant, user) == names


# -- what is wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("a: {model: fast, modle: x}", 'weirgate.yaml:4: agents.a.modle: unknown key; did you mean "model"?'),
        ("a: {}", "weirgate.yaml:4: agents.a.model: is required"),
        ("a: fast", "weirgate.yaml:4: agents.a: must be a mapping of keys"),
        ("a: {model: fats}", 'weirgate.yaml:4: agents.a.model: no entry of models leads to it; did you mean "fast"?'),
        ("a: {model: big}", "weirgate.yaml:4: agents.a.model: no entry of models leads to it"),
        ("fast: {model: fast}", "weirgate.yaml:4: agents.fast: is also the name of an entry of models"),
        ('"a*": {model: fast}', "weirgate.yaml:4: agents.a*: an agent is named with letters, digits and"),
        ('"a?": {model: fast}', "weirgate.yaml:4: agents.a?: an agent is named with letters, digits and"),
        ('"a b": {model: fast}', "weirgate.yaml:4: agents.a b: an agent is named with letters, digits and"),
        ('"": {model: fast}', "weirgate.yaml:4: agents.: an agent is named with letters, digits and"),
        ("a: {model: fast, tools: [load_skil]}", 'agents.a.tools[0]: unknown tool; did you mean "load_skill"?'),
        ("a: {model: fast, tools: [shell]}", "agents.a.tools[0]: unknown tool; there are load_skill, read_tool_result"),
        ("a: {model: fast, effort: hihg}", 'weirgate.yaml:4: agents.a.effort: unknown effort; did you mean "high"?'),
        ("a: {model: fast, effort: 7}", "weirgate.yaml:4: agents.a.effort: should be 'none', 'minimal', 'low'"),
        ("a: {model: fast, client_system: behind}", "agents.a.client_system: should be 'after', 'before' or 'refuse'"),
        ("a: {model: fast, skills_place: user}", "agents.a.skills_place: should be 'system' or 'message'"),
        ("a: {model: fast, skills: [Tone]}", "agents.a.skills[0]: String should match pattern"),
        ("a: {model: fast, visible_to: {tenant: x}}", 'visible_to.tenant: unknown key; did you mean "tenants"?'),
        ("a: {model: fast, instructions: {fil: x}}", 'agents.a.instructions.fil: unknown key; did you mean "file"?'),
        ("a: {model: fast, instructions: {}}", "agents.a.instructions: should be a text, or name one of file and text"),
        (
            "a: {model: fast, instructions: {text: a, file: b}}",
            "agents.a.instructions: should be a text, or name one of file and text",
        ),
        ("a: {model: fast, instructions: 5}", "agents.a.instructions: must be a mapping of keys"),
        (
            "a: {model: fast, instructions: {file: no/such.md}}",
            "weirgate.yaml:4: agents.a.instructions.file: no/such.md does not exist",
        ),
        ("a: {model: fast, instructions: {file: .}}", "agents.a.instructions.file: . is not a file"),
        ('a: {model: fast, instructions: {file: "a\\0b"}}', "agents.a.instructions.file:"),
    ],
)
def test_what_is_wrong_with_an_agent_of_weirgate_yaml_is_told_with_its_line(
    tmp_path: Path, line: str, said: str
) -> None:
    (found,) = problems(tmp_path, f"agents:\n  {line}\n")
    assert said in found and found.startswith("weirgate.yaml:4: ")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# new\nmodle: fast\nmodel: fast", 'agents/x.yaml:2: modle: unknown key; did you mean "model"?'),
        ("", "agents/x.yaml:1: model: is required"),
        ("model: fast\neffort: ]", "agents/x.yaml:2: is not valid YAML"),
        ("- model: fast", "agents/x.yaml:1: must be a mapping of keys at its top level"),
        ("\nmodel: fats", 'agents/x.yaml:2: model: no entry of models leads to it; did you mean "fast"?'),
        ("model: fast\n\ntools: [ask_usr]", 'agents/x.yaml:3: tools[0]: unknown tool; did you mean "ask_user"?'),
        ("model: fast\ninstructions: {file: x.md}", "agents/x.yaml:2: instructions.file: x.md does not exist"),
    ],
)
def test_what_is_wrong_with_an_agents_own_file_is_told_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    (found,) = problems(tmp_path, "", x=text)
    assert said in found


def test_a_file_whose_name_is_no_name_or_a_models_is_a_problem(tmp_path: Path) -> None:
    assert [
        line.partition(", w")[0] for line in problems(tmp_path, "", fast="model: fast", **{"a b": "model: fast"})
    ] == [
        "agents/a b.yaml:1: an agent is named with letters, digits and . _ : / @ -",
        "agents/fast.yaml:1: is also the name of an entry of models",
    ]


def test_a_name_that_is_stated_twice_names_both_places(tmp_path: Path) -> None:
    text = "agents:\n  # ours\n  a: {model: fast}\n"
    assert problems(tmp_path, text, a="model: fast") == [
        'agents/a.yaml:1: the agent "a" is also stated in weirgate.yaml:5'
    ]
    (tmp_path / "agents" / "a.yml").write_text("model: fast")
    assert problems(tmp_path, "", a="model: fast") == ['agents/a.yml:1: the agent "a" is also stated in agents/a.yaml']


def test_an_agent_does_not_lead_to_an_agent(tmp_path: Path) -> None:
    text = "agents: {big-a: {model: big-a}, b: {model: big-a}}"
    assert problems(tmp_path, text) == ["weirgate.yaml:3: agents.b.model: is an agent; an agent leads to a model"]


def test_everything_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    text = "agents:\n  a: {model: fast, instructions: {file: a.md}}\nbase_prompt: {file: b.md}\n"
    assert problems(tmp_path, text, c="model: fast\ninstructions: {file: c.md}", d="modl: 1") == [
        "agents/d.yaml:1: model: is required",
        'agents/d.yaml:1: modl: unknown key; did you mean "model"?',
        "weirgate.yaml:4: agents.a.instructions.file: a.md does not exist",
        "agents/c.yaml:2: instructions.file: c.md does not exist",
        "weirgate.yaml:5: base_prompt.file: b.md does not exist",
    ]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"x" * (MAX_TEXT + 1), "is larger than 262144 bytes"),
        (b"One.\nTw\xff.", "is not UTF-8 text (line 2)"),
        (b" \n\t\n", "is empty"),
        (b"", "is empty"),
    ],
)
def test_a_prompt_file_that_cannot_be_meant_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "p.md").write_bytes(content)
    assert problems(tmp_path, "base_prompt: {file: p.md}") == [f"weirgate.yaml:3: base_prompt.file: p.md {said}"]


def test_a_prompt_of_the_largest_size_is_taken(tmp_path: Path) -> None:
    (tmp_path / "p.md").write_bytes(b"x" * MAX_TEXT)
    assert len(read(tmp_path, "base_prompt: {file: p.md}").base) == MAX_TEXT
    (found,) = problems(tmp_path, f"base_prompt: {'é' * MAX_TEXT}")
    assert found == "weirgate.yaml:3: base_prompt.text: is larger than 262144 bytes"


def test_a_pipe_is_refused_and_nobody_waits_for_its_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert problems(tmp_path, "base_prompt: {file: pipe}") == ["weirgate.yaml:3: base_prompt.file: pipe is not a file"]


def test_a_file_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, f"base_prompt: {{file: {'x' * 300}}}")
    assert found.endswith("cannot be read: File name too long")


def test_bytes_of_the_environment_that_are_no_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="WEIRGATE_BASE_PROMPT__TEXT: holds half of a surrogate pair"):
        load(write(tmp_path, ""), {"WEIRGATE_BASE_PROMPT__TEXT": "Ours\udcff"})


def test_too_many_agents_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "agents").mkdir()
    for number in range(agents.MAX_FILES + 1):
        (tmp_path / "agents" / f"{number}.yaml").touch()
    assert problems(tmp_path, "") == ["agents: holds more than 500 agents"]


def test_a_mistake_of_the_command_line_is_blamed_on_it(tmp_path: Path) -> None:
    settings = load(write(tmp_path, ""), {}, {"agents": {"a": {"model": "fast", "instructions": {"file": "gone.md"}}}})
    with pytest.raises(ConfigError) as caught:
        agents.load(agents_of(settings))
    assert [str(each) for each in caught.value.problems] == [
        "environment or command line: agents.a.instructions.file: gone.md does not exist"
    ]


def test_a_remark_stands_where_the_key_is_or_where_it_could_be(tmp_path: Path) -> None:
    told = given(tmp_path, "agents:\n  a:\n    model: fast\n    effort: low\n", b="# b\nmodel: fast\neffort: low\n")
    lines = [
        str(remark(told, name, key, "!")).replace(f"{tmp_path}/", "") for name in "ab" for key in ("effort", "skills")
    ]
    assert lines == [
        "weirgate.yaml:6: agents.a.effort: !",
        "weirgate.yaml:4: agents.a.skills: !",
        "agents/b.yaml:3: effort: !",
        "agents/b.yaml:2: skills: !",
    ]
    (tmp_path / "agents" / "b.yaml").unlink()
    assert str(remark(told, "b", "effort", "!")) == f"{tmp_path}/agents: b: !"


# -- while all runs --------------------------------------------------------------------------------------------------


def watching(folder: Path) -> AgentWatch:
    prompts(folder, base="Ours.", a="Be kind.")
    text = "agents: {a: {model: fast, instructions: {file: prompts/a.md}}}\nbase_prompt: {file: prompts/base.md}\n"
    return AgentWatch(given(folder, text, b="model: fast"))


def test_an_instruction_file_that_changes_is_taken_at_the_next_look(tmp_path: Path) -> None:
    watch = watching(tmp_path)
    before = watch.current
    assert watch.poll() is None
    prompts(tmp_path, a="Be kinder.", base="Still ours.")
    reload = watch.poll()
    assert reload is not None and reload.changed and not reload.kept
    assert (watch.current.agents["a"].instructions, watch.current.base) == ("Be kinder.", "Still ours.")
    assert before.agents["a"].instructions == "Be kind.", "a call that runs keeps what it began with"
    assert before.hash != watch.current.hash
    assert watch.poll() is None


def test_agents_come_and_go_with_their_files(tmp_path: Path) -> None:
    watch = watching(tmp_path)
    (tmp_path / "agents" / "c.yaml").write_text("model: fast\ninstructions: {file: c.md}")
    (tmp_path / "agents" / "c.md").write_text("Brief.")
    (tmp_path / "agents" / "b.yaml").unlink()
    assert watch.poll() is not None
    assert [*watch.current.agents] == ["a", "c"]
    (tmp_path / "agents" / "c.md").write_text("Briefer.")
    assert watch.poll() is not None
    assert watch.current.agents["c"].instructions == "Briefer."


def test_the_first_agent_file_is_found_where_there_was_no_folder(tmp_path: Path) -> None:
    watch = AgentWatch(given(tmp_path, ""))
    assert watch.current.agents == {} and watch.poll() is None
    write(tmp_path, "", a="model: fast")
    assert watch.poll() is not None
    assert [*watch.current.agents] == ["a"]


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("agents/b.yaml", b"model: fast\nefort: low"),
        ("agents/b.yaml", b"model: ["),
        ("agents/b.yaml", b"model: gone"),
        ("agents/a.yaml", b"model: fast"),
        ("prompts/a.md", b""),
        ("prompts/a.md", b"\xff"),
        ("prompts/base.md", b"x" * (MAX_TEXT + 1)),
        ("prompts/base.md", None),
    ],
)
def test_a_mistake_keeps_everything_as_it_was_and_is_told_once(
    tmp_path: Path, file: str, content: bytes | None
) -> None:
    watch = watching(tmp_path)
    kept = watch.current
    before = (tmp_path / file).read_bytes() if (tmp_path / file).exists() else None
    if content is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_bytes(content)
    (tmp_path / "agents" / "good.yaml").write_text("model: fast")
    reload = watch.poll()
    assert reload is not None and reload.kept and not reload.changed and len(reload.problems) == 1
    assert reload.current is watch.current is kept
    assert watch.poll() is None, "the same fault is not told at every look"
    if before is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_bytes(before)
    mended = watch.poll()
    assert mended is not None and mended.changed and not mended.kept
    assert [*watch.current.agents] == ["a", "b", "good"]


def test_the_swapped_symlink_of_a_configmap_is_noticed(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"..{number}").mkdir()
        (tmp_path / f"..{number}" / "p.md").write_text(f"Text {number}.")
    stamp = (tmp_path / "..1" / "p.md").stat()
    os.utime(tmp_path / "..2" / "p.md", ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "p.md").symlink_to("..data/p.md")
    watch = AgentWatch(given(tmp_path, "base_prompt: {file: p.md}"))
    (tmp_path / "..data_tmp").symlink_to("..2")
    (tmp_path / "..data_tmp").rename(tmp_path / "..data")
    assert watch.poll() is not None
    assert watch.current.base == "Text 2."


def test_an_explicit_reload_reads_even_what_looks_unchanged(tmp_path: Path) -> None:
    reload = watching(tmp_path).reload()
    assert not reload.changed and reload.problems == () and reload.current.base == "Ours."


def test_a_bug_while_reading_does_not_reach_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = watching(tmp_path)

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(agents, "misled", broken)
    assert [problem.message for problem in watch.reload().problems] == ["cannot be read: ZeroDivisionError"]
    assert watch.current.base == "Ours."


def test_a_server_does_not_start_on_broken_agents(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        AgentWatch(given(tmp_path, "base_prompt: {file: gone.md}"))


def test_equal_content_has_an_equal_hash(tmp_path: Path) -> None:
    one = read(tmp_path, "agents: {b: {model: fast}, a: {model: fast, effort: low}}")
    same = read(tmp_path, "# other\nagents:\n  a: {effort: low, model: fast}\n  b: {model: fast}\n")
    other = read(tmp_path, "agents: {b: {model: fast}, a: {model: fast, effort: high}}")
    assert one == same and one.hash == same.hash != other.hash


# -- docs/agents.md --------------------------------------------------------------------------------------------------


def test_the_examples_of_the_page_work(tmp_path: Path) -> None:
    found = examples(PAGE.read_text(encoding="utf-8"))
    assert [one.mark for one in found] == ["run"]
    for one in found:
        status, said = execute(one, tmp_path)
        assert status == 0 and said.endswith("weirgate.yaml is fit to serve\n"), (
            f"docs/agents.md:{one.line}\n{one.code}\n{said}"
        )
    made = agents.load(agents_of(load(tmp_path / "weirgate.yaml", {})))
    assert [*made.agents] == ["brief", "support"]
    assert made.agents["support"].instructions == "You answer customers of Acme. Today is {date}."


def test_the_page_names_every_key_and_every_word_of_an_agent() -> None:
    text = PAGE.read_text(encoding="utf-8")
    words = [*AgentSettings.model_fields, *LEVELS, "after", "before", "refuse", "message"]
    assert [word for word in words if word not in text] == []
