"""The policy folder: inheritance, ranges, blame, and a reload that swaps everything or nothing."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
import yaml

from proxy import policies
from proxy.configfile import ConfigError, render_schema
from proxy.core.policy import Mode, Policy
from proxy.policies import PolicyWatch, load, schema, shipped

ROOT = Path(__file__).resolve().parent.parent


def folder(tmp_path: Path, **files: str) -> Path:
    tmp_path.mkdir(exist_ok=True)
    for name, text in files.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    return tmp_path


def problems(where: Path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(where)
    return [str(problem).removeprefix(f"{where}/") for problem in caught.value.problems]


def test_a_file_inherits_from_the_default_file_and_that_from_the_core(tmp_path: Path) -> None:
    where = folder(
        tmp_path, default="compact_at: 0.7\ntail: {messages: 6}", fam='match: "fam*"\ntail: {max_share: 0.3}'
    )
    policy = load(where).for_model("fam-1")
    assert (policy.compact_at, policy.tail_messages, policy.tail_max_share) == (0.7, 6, 0.3)
    assert (policy.target, policy.name, policy.match) == (Policy().target, "fam", "fam*")
    assert load(where).for_model("other").name == "default"


def test_null_in_a_file_takes_back_what_the_default_states(tmp_path: Path) -> None:
    where = folder(tmp_path, default="window: 8192", fam='match: "fam*"\nwindow: null')
    assert (load(where).for_model("fam").window, load(where).for_model("x").window) == (None, 8192)


def test_every_key_of_the_file_reaches_the_policy(tmp_path: Path) -> None:
    text = """\
match: [one, "two*"]
mode: off
window: 4096
compact_at: 0.31
target: 0.3
reserve_max_share: 0.1
tail: {messages: 1, max_share: 0.2}
pinned: {max_share: 0.3}
ledger: {max_share: 0.4}
summary: {builtin: false}
cache: {read: 0.1, write: 1.25, ttl: 300}
pause: {expires: 30}
alternate: true
effort: {member: thinking, elsewhere: none, levels: [high, none, low]}
"""
    policy = load(folder(tmp_path, every=text)).for_model("two-x")
    expected = Policy(
        match="two*",
        mode=Mode.OFF,
        window=4096,
        compact_at=0.31,
        target=0.3,
        reserve_max_share=0.1,
        tail_messages=1,
        tail_max_share=0.2,
        pinned_max_share=0.3,
        ledger_max_share=0.4,
        summary_builtin=False,
        cache_read=0.1,
        cache_write=1.25,
        cache_ttl=300.0,
        pause_expires=30.0,
        alternate=True,
        effort_member="thinking",
        effort_elsewhere="none",
        effort_levels=("none", "low", "high"),
        name="every",
    )
    assert msgspec.structs.replace(policy, hash="") == expected


def test_a_stated_window_holds_for_every_policy_without_its_own(tmp_path: Path) -> None:
    where = folder(tmp_path, default="window: null", fam='match: "fam*"\nwindow: 100')
    found = load(where, window=2048)
    assert (found.for_model("x").window, found.for_model("fam").window) == (2048, 100)
    bare = folder(tmp_path / "bare", fam='match: "fam*"')
    assert load(bare, window=2048).for_model("x").window == 2048


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("compact_at: 0.29", "default.yaml:1: compact_at: should be greater than or equal to 0.3"),
        ("compact_at: 0.96", "default.yaml:1: compact_at: should be less than or equal to 0.95"),
        ("compact_at: yes", "default.yaml:1: compact_at: should be a valid number, unable to parse string as a number"),
        ("compact_at: true", "default.yaml:1: compact_at: should be a number, not true or false"),
        ("compcat_at: 0.5", 'default.yaml:1: compcat_at: unknown key; did you mean "compact_at"?'),
        ("tail: {message: 3}", 'default.yaml:1: tail.message: unknown key; did you mean "messages"?'),
        ("tail: {messages: 0}", "default.yaml:1: tail.messages: should be greater than or equal to 1"),
        ("tail: 4", "default.yaml:1: tail: must be a mapping of keys"),
        ("window: 0", "default.yaml:1: window: should be greater than or equal to 1"),
        ("window: 1.5", "default.yaml:1: window: should be a valid integer, got a number with a fractional part"),
        ("mode: on", "default.yaml:1: mode: should be 'enforce', 'observe' or 'off'"),
        ("cache: {ttl: 0}", "default.yaml:1: cache.ttl: should be greater than 0"),
        ("pause: {expires: -1}", "default.yaml:1: pause.expires: should be greater than or equal to 0"),
        ("effort: {membr: auto}", 'default.yaml:1: effort.membr: unknown key; did you mean "member"?'),
        ("effort: {levels: low}", "default.yaml:1: effort.levels: should be a valid tuple"),
        ("target: 0.85", "default.yaml:1: target: target 0.85 must be below compact_at 0.85"),
        ("compact_at: 0.4", "default.yaml:1: compact_at: target 0.5 must be below compact_at 0.4"),
        (
            "pinned: {max_share: 0.5}",
            "default.yaml:1: pinned.max_share: the shares of tail, pinned and ledger add up to 1.05, which is over 1",
        ),
        ("match: gpt", 'default.yaml:1: match: of the default policy must be "*"'),
    ],
)
def test_what_is_wrong_is_told_with_file_and_line(tmp_path: Path, line: str, said: str) -> None:
    assert problems(folder(tmp_path, default=line)) == [said]


def test_every_file_is_checked_and_an_inherited_fault_is_told_once(tmp_path: Path) -> None:
    where = folder(
        tmp_path,
        default='match: "*"\ntarget: 2\nledger: {max_shar: 1}',
        a="match: a\nmode: loud",
        b="compact_at: 0.5",
        c="match: c\ncompact_at: 0.4\ntarget: 0.4",
        d="match: [d\n",
    )
    assert problems(where) == [
        "d.yaml:2: is not valid YAML: did not find expected ',' or ']'",
        "default.yaml:2: target: should be less than 0.95",
        'default.yaml:3: ledger.max_shar: unknown key; did you mean "max_share"?',
        "a.yaml:2: mode: should be 'enforce', 'observe' or 'off'",
        "b.yaml:1: match is required: which models is this policy for?",
    ]


def test_a_contradiction_with_the_default_is_blamed_on_the_file_that_made_it(tmp_path: Path) -> None:
    where = folder(tmp_path, default="target: 0.6", fam="match: fam\nmode: off\ncompact_at: 0.55")
    assert problems(where) == ["fam.yaml:3: compact_at: target 0.6 must be below compact_at 0.55"]


def test_two_files_may_not_claim_the_same_models(tmp_path: Path) -> None:
    assert problems(folder(tmp_path, a="match: GPT", b="match: [x, gpt]")) == [
        'b.yaml:1: match: "gpt" is also matched by a.yaml'
    ]


def test_an_empty_or_missing_folder_is_a_problem(tmp_path: Path) -> None:
    assert "holds no policy file" in problems(tmp_path)[0]
    assert "cannot be read" in problems(tmp_path / "gone")[0]
    assert "cannot be read: not a folder name" in problems(tmp_path / "nul\0")[0]


def test_a_link_to_nowhere_and_too_many_files_are_problems(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").symlink_to("nowhere")
    assert problems(tmp_path) == ["x.yaml: does not exist"]
    for number in range(policies.MAX_FILES):
        (tmp_path / f"{number}.yaml").touch()
    assert "holds more than 500 policy files" in problems(tmp_path)[0]


def test_a_link_that_comes_to_life_is_noticed(tmp_path: Path) -> None:
    watch = PolicyWatch(folder(tmp_path, default="target: 0.4"))
    (tmp_path / "fam.yaml").symlink_to("elsewhere")
    first = watch.poll()
    assert first is not None and len(first.problems) == 1
    (tmp_path / "elsewhere").write_text('match: "fam*"')
    second = watch.poll()
    assert second is not None and second.changed


def test_the_hash_tells_content_and_nothing_else(tmp_path: Path) -> None:
    one = load(folder(tmp_path / "1", default="compact_at: 0.5\ntarget: 0.4"))
    same = load(folder(tmp_path / "2", default="# a comment\ntarget: 0.40\ncompact_at: 0.50"))
    other = load(folder(tmp_path / "3", default="compact_at: 0.5\ntarget: 0.41"))
    assert one.hash == same.hash != other.hash
    assert one.policies[0].hash == same.policies[0].hash != other.policies[0].hash
    assert len(one.hash) == 16


def test_a_changed_folder_is_swapped_whole(tmp_path: Path) -> None:
    watch = PolicyWatch(folder(tmp_path, default="target: 0.4"))
    before = watch.current
    assert watch.poll() is None
    folder(tmp_path, default="target: 0.44", fam='match: "fam*"')
    reload = watch.poll()
    assert reload is not None and reload.changed and reload.problems == ()
    assert (watch.current.for_model("x").target, watch.current.for_model("fam").name) == (0.44, "fam")
    assert before.for_model("x").target == 0.4, "a call that runs keeps the policies it began with"
    assert watch.poll() is None


BROKEN = {
    "half written": "compact_at: 0.5\ntarget: [",
    "unknown key": "compcat_at: 0.5",
    "wrong value": "compact_at: 5",
    "bomb": "a: &a [1,1,1,1,1,1,1,1,1,1]\n"
    + "".join(f"{n}: &{n} [{','.join(['*' + b] * 10)}]\n" for b, n in zip("abcdef", "bcdefg", strict=True)),
    "too large": "#" * 2_000_000,
    "binary": "\x00\x01",
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_folder_keeps_the_old_policies_and_says_so_once(tmp_path: Path, text: str) -> None:
    watch = PolicyWatch(folder(tmp_path, default="target: 0.4", fam='match: "fam*"'))
    kept = watch.current
    folder(tmp_path, fam=text, good='match: "good*"')
    reload = watch.poll()
    assert reload is not None and not reload.changed and len(reload.problems) >= 1
    assert all(problem.file.endswith("fam.yaml") for problem in reload.problems)
    assert reload.current is watch.current is kept
    assert watch.poll() is None, "the same fault is not reported at every poll"
    folder(tmp_path, fam='match: "fam*"')
    mended = watch.poll()
    assert mended is not None and mended.changed and watch.current.for_model("good-1").name == "good"


def test_a_deleted_folder_keeps_the_old_policies(tmp_path: Path) -> None:
    where = folder(tmp_path / "p", default="target: 0.4")
    watch = PolicyWatch(where)
    where.rename(tmp_path / "q")
    reload = watch.poll()
    assert reload is not None and len(reload.problems) == 1
    assert watch.current.for_model("x").target == 0.4


def test_the_swapped_symlink_of_a_configmap_is_noticed(tmp_path: Path) -> None:
    folder(tmp_path / "..1", default="target: 0.40")
    folder(tmp_path / "..2", default="target: 0.41")
    stamp = (tmp_path / "..1" / "default.yaml").stat()
    os.utime(tmp_path / "..2" / "default.yaml", ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    data = tmp_path / "..data"
    data.symlink_to("..1")
    (tmp_path / "default.yaml").symlink_to("..data/default.yaml")
    watch = PolicyWatch(tmp_path)
    (tmp_path / "..data_tmp").symlink_to("..2")
    (tmp_path / "..data_tmp").rename(data)
    reload = watch.poll()
    assert reload is not None and reload.changed
    assert watch.current.for_model("x").target == 0.41


def test_an_explicit_reload_reads_even_what_looks_unchanged(tmp_path: Path) -> None:
    watch = PolicyWatch(folder(tmp_path, default="target: 0.4"), window=2048)
    reload = watch.reload()
    assert not reload.changed and reload.problems == ()
    assert reload.current.for_model("x").window == 2048


def test_a_bug_while_reading_does_not_reach_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = PolicyWatch(folder(tmp_path, default="target: 0.4"))

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(policies, "load", broken)
    assert [problem.message for problem in watch.reload().problems] == ["cannot be read: ZeroDivisionError"]
    assert watch.current.for_model("x").target == 0.4


def test_a_server_does_not_start_on_broken_policies(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        PolicyWatch(folder(tmp_path, default="target: 3"))


def test_the_shipped_default_states_every_key_with_the_value_of_the_core() -> None:
    stated = yaml.safe_load((shipped() / "default.yaml").read_text())
    assert stated.keys() == schema()["properties"].keys()
    sections = {"effort": "EffortKeys"} | {
        name: name.capitalize() for name in ("tail", "pinned", "ledger", "summary", "cache", "pause")
    }
    for section, name in sections.items():
        assert stated[section].keys() == schema()["$defs"][name]["properties"].keys()
    policy = load(shipped()).for_model("nobody-knows")
    assert msgspec.structs.replace(policy, hash="") == Policy()


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("gpt-4o", "openai"),
        ("openai/gpt-5.1", "openai"),
        ("o3-mini", "openai"),
        ("claude-sonnet-4-5", "anthropic"),
        ("us.anthropic.claude-opus-4-1-v1:0", "anthropic"),
        ("deepseek-chat", "deepseek"),
        ("DeepSeek-R1-Distill-Llama-70B", "deepseek"),
        ("Qwen/Qwen3-32B", "qwen"),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama"),
        ("mistral-7b-instruct.Q4_K_M.gguf", "mistral"),
        ("gemma-3-4b-it", "gemma"),
        ("SmolLM2-135M-Instruct-Q4_1.gguf", "local"),
        ("text-embedding-3-small", "default"),
    ],
)
def test_each_family_finds_its_shipped_policy(model: str, name: str) -> None:
    assert load(shipped()).for_model(model).name == name


@pytest.mark.parametrize(
    ("model", "elsewhere"),
    [
        ("gpt-oss-20b", "reasoning_effort"),
        ("Qwen/Qwen3-32B", "chat_template_kwargs"),
        ("DeepSeek-V3.1", "chat_template_kwargs"),
        ("meta-llama/Llama-3.3-70B-Instruct", "none"),
        ("claude-sonnet-4-5", "reasoning_effort"),
        ("nobody-knows", "reasoning_effort"),
    ],
)
def test_each_family_says_how_a_server_of_ones_own_is_told_an_effort(model: str, elsewhere: str | None) -> None:
    policy = load(shipped()).for_model(model)
    assert (policy.effort_member, policy.effort_elsewhere, policy.effort_levels) == ("auto", elsewhere, None)


def test_shipped_families_give_a_reason_for_each_deviation() -> None:
    for file in sorted(shipped().glob("*.yaml")):
        lines = file.read_text().splitlines()
        assert lines[0].startswith("# yaml-language-server: $schema=")
        for number, line in enumerate(lines):
            before = lines[number - 1]
            assert line.startswith("#") or not line or before.startswith("#") or lines[number - 2].startswith("#"), (
                file.name
            )


def test_strict_chat_templates_are_told_to_alternate() -> None:
    found = load(shipped())
    assert [found.for_model(name).alternate for name in ("mistral-small", "gemma-2", "gpt-4o", "qwen3")] == [
        True,
        True,
        False,
        False,
    ]


def test_the_committed_schema_is_current() -> None:
    assert (ROOT / "schemas" / "policy.schema.json").read_text() == render_schema(schema())
