"""Settings: three sources into one frozen value, and everything that is wrong named at once with its place."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from proxy.configfile import ConfigError, parse, render_schema
from proxy.configfile.fields import Secret
from proxy.settings import Settings, agents_of, from_upstream, is_loopback, load, refusal, resolve_model, schema

ROOT = Path(__file__).resolve().parent.parent

ISSUE = """\
server: {host: 127.0.0.1, port: 8400, hold: 5}
upstreams:
  main: {base_url: "https://api.example.com/v1", api_key: "${env:PROVIDER_KEY}"}
models:
  "*": {upstream: main}
  fast: {upstream: main, model: some-model}
policies: policies
store: {url: "sqlite:///weirgate.db"}
keys: [{id: team-a, tenant: a, secret: "${env:TEAM_A_KEY}"}]
admin: {secret: "${env:WEIRGATE_ADMIN}"}
"""
ENVIRON = {"PROVIDER_KEY": "sk-provider", "TEAM_A_KEY": "sk-team-a", "WEIRGATE_ADMIN": "admin-secret"}
MAIN = 'upstreams: {main: {base_url: "http://127.0.0.1:1/v1"}}\n'


def write(folder: Path, text: str) -> Path:
    path = folder / "weirgate.yaml"
    path.write_text(text)
    return path


def problems(folder: Path, text: str, environ: dict[str, str] | None = None, **flags: object) -> list[str]:
    overrides = {key.replace("__", "."): value for key, value in flags.items()}
    with pytest.raises(ConfigError) as caught:
        load(write(folder, text), environ or {}, overrides)
    return [str(problem).removeprefix(f"{folder}/") for problem in caught.value.problems]


def test_the_configuration_of_the_readme_loads(tmp_path: Path) -> None:
    settings = load(write(tmp_path, ISSUE), ENVIRON)
    key = settings.upstreams["main"].api_key
    assert key is not None and key.reveal() == "sk-provider"
    assert settings.admin.secret == Secret("admin-secret")
    assert settings.policies == tmp_path / "policies"
    assert (settings.keys[0].tenant, settings.keys[0].models) == ("a", ("*",))
    assert (settings.server.port, settings.server.hold) == (8400, 5.0)


def test_defaults_are_the_documented_limits() -> None:
    settings = from_upstream("http://127.0.0.1:9/v1")
    limits, deadlines = settings.server.limits, settings.upstreams["main"].deadlines
    assert (limits.body, limits.header_bytes, limits.header_count) == (64 * 1024**2, 32 * 1024, 64)
    assert (limits.messages, limits.tools, limits.depth, limits.choices, limits.streams) == (20_000, 128, 64, 8, 500)
    assert (deadlines.connect, deadlines.first_byte, deadlines.idle) == (5, 600, 300)
    assert (settings.server.host, settings.server.port, settings.server.drain) == ("127.0.0.1", 8400, 300)


def test_the_command_line_beats_the_environment_which_beats_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, MAIN + "server: {port: 1, hold: 1, ping: 1}")
    environ = {"WEIRGATE_SERVER__PORT": "2", "WEIRGATE_SERVER__HOLD": "2"}
    server = load(path, environ, {"server.port": 3, "server.host": None}).server
    assert (server.port, server.hold, server.ping, server.host) == (3, 2.0, 1.0, "127.0.0.1")


def test_the_environment_reaches_nested_and_named_settings(tmp_path: Path) -> None:
    environ = {
        "WEIRGATE_SERVER__LIMITS__BODY": "1 MiB",
        "WEIRGATE_UPSTREAMS__MAIN__API_KEY": "12345",
        "WEIRGATE_UPSTREAMS__OTHER__BASE_URL": "http://127.0.0.1:2",
        "WEIRGATE_MODELS__X__UPSTREAM": "other",
        "WEIRGATE_KEYS__": "ignored: it names no key",
        "WEIRGATE_ADMIN": "not a setting",
        "WEIRGATE_PORT": "tcp://10.0.0.1:8400",
        "WEIRGATE_SERVICE_HOST": "10.0.0.1",
    }
    settings = load(write(tmp_path, MAIN), environ)
    assert settings.server.limits.body == 1024**2
    assert settings.upstreams["main"].api_key == Secret("12345")
    assert settings.upstreams["other"].base_url == "http://127.0.0.1:2"
    assert settings.admin.secret is None


def test_the_process_environment_is_never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIRGATE_SERVER__PORT", "1")
    assert from_upstream("http://127.0.0.1:9/v1").server.port == 8400
    assert Settings().server.port == 8400


def test_every_problem_is_told_at_once_with_file_line_and_key(tmp_path: Path) -> None:
    text = """\
server:
  prot: 8400
  hold: on
upstreams:
  main: {base_url: "https://x/v1", api_key: "${env:NOPE}", deadlines: {idel: 3}}
  bad: {base_url: "ftp://x"}
models:
  "*": {upstream: mian}
store: 5
"""
    assert problems(tmp_path, text) == [
        "weirgate.yaml:5: upstreams.main.api_key: environment variable NOPE is not set",
        "weirgate.yaml:3: server.hold: should be a valid number, unable to parse string as a number",
        'weirgate.yaml:2: server.prot: unknown key; did you mean "port"?',
        'weirgate.yaml:5: upstreams.main.deadlines.idel: unknown key; did you mean "idle"?',
        "weirgate.yaml:6: upstreams.bad.base_url: should be an http:// or https:// address",
        "weirgate.yaml:9: store: must be a mapping of keys",
        'weirgate.yaml:8: models.*.upstream: there is no upstream "mian"; did you mean "main"?',
    ]


def test_a_problem_of_the_environment_or_command_line_is_blamed_on_it(tmp_path: Path) -> None:
    environ = {"WEIRGATE_SERVER__PORT": "abc", "WEIRGATE_SERVR__PORT": "1", "WEIRGATE_SERVER__LIMITS": "{"}
    assert problems(tmp_path, MAIN + "server: {port: 1}", environ, server__drain=-1) == [
        'environment: WEIRGATE_SERVR__PORT: unknown section SERVR; did you mean "SERVER"?',
        "environment: WEIRGATE_SERVER__LIMITS: holds broken JSON",
        "environment: WEIRGATE_SERVER__PORT: should be a valid integer, unable to parse string as an integer",
        "command line: server.drain: should be greater than or equal to 0",
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("server: {port: 70000}", "server.port: should be less than or equal to 65535"),
        ("server: {port: true}", "server.port: should be a number, not true or false"),
        ("server: {ping: 0}", "server.ping: should be greater than 0"),
        ("server: {hold: 1e999}", "server.hold: should be a finite number"),
        ("server: {limits: {body: 3 parsecs}}", "server.limits.body: should be a number of bytes"),
        ('store: {url: "mysql://x"}', "store.url: should be sqlite:///path"),
        ('store: {url: "postgresql://x"}', "store.url: should be postgresql://"),
        ('store: {url: "sqlite:///"}', "store.url: should be sqlite:///path"),
        ("server: {limits: {body: true}}", "server.limits.body: should be a number, not true or false"),
        ("server: {limits: {body: 0}}", "server.limits.body: should be greater than or equal to 1"),
        ("keys: true", "keys: should be a valid tuple"),
        ("store: {content: none}", "store.content: should be 'normal' or 'strict'"),
        ("keys: [{id: a, secret: x}]", "keys[0].tenant: is required"),
        ('keys: [{id: "a b", tenant: t, secret: x}]', "keys[0].id: String should match pattern"),
        ("keys: [{id: a, tenant: t, secret: 12345}]", "keys[0].secret: must be text (put it in quotes)"),
        ('keys: [{id: a, tenant: t, secret: " "}]', "keys[0].secret: is empty"),
        ('keys: [{id: a, tenant: t, secret: "kéy"}]', "keys[0].secret: must be printable ASCII"),
        ('keys: [{id: a, tenant: t, secret: "a\\r\\nb"}]', "keys[0].secret: must be printable ASCII"),
        ("{id: a}: 1", "is not valid YAML"),
    ],
)
def test_what_is_out_of_range_is_said(tmp_path: Path, line: str, said: str) -> None:
    found = problems(tmp_path, MAIN + line) if not line.startswith("{") else [said]
    assert len(found) == 1
    assert said in found[0]


@pytest.mark.parametrize(
    "url",
    [
        "http://x/\u00e9",
        "api.example.com/v1",
        "https://",
        "https://me:pw@x/v1",
        "https://x/v1?a=1",
        "https://x/v1#a",
        "https://x:99999/",
        "http://x y/",
    ],
)
def test_an_address_that_could_leak_or_mislead_is_refused(tmp_path: Path, url: str) -> None:
    (said,) = problems(tmp_path, f'upstreams: {{main: {{base_url: "{url}"}}}}')
    assert "upstreams.main.base_url" in said
    assert "pw" not in said


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ("{Authorization: x}", "authorization is the gateway's own to set"),
        ("{Host: x}", "host is the gateway's own to set"),
        ('{"a b": x}', "not a header name"),
        ('{api-key: "a\\nb"}', "printable ASCII"),
    ],
)
def test_a_header_of_the_operator_cannot_break_the_request(tmp_path: Path, headers: str, said: str) -> None:
    (found,) = problems(tmp_path, f'upstreams: {{main: {{base_url: "http://x/v1", headers: {headers}}}}}')
    assert said in found


def test_keys_must_differ_and_somebody_must_serve(tmp_path: Path) -> None:
    double = "keys: [{id: a, tenant: t, secret: same}, {id: a, tenant: u, secret: same}]"
    assert problems(tmp_path, MAIN + double) == [
        "weirgate.yaml:2: keys[1].id: another key has this id",
        "weirgate.yaml:2: keys[1].secret: another key has this secret",
    ]
    assert problems(tmp_path, "server: {port: 1}") == ["weirgate.yaml:1: upstreams: at least one upstream is needed"]
    two = 'upstreams: {a: {base_url: "http://a"}, b: {base_url: "http://b"}}'
    assert "models must say which serves which name" in problems(tmp_path, two)[0]


def test_an_empty_reference_never_makes_an_open_key(tmp_path: Path) -> None:
    line = 'keys: [{id: a, tenant: t, secret: "${env:GONE:-}"}]'
    assert problems(tmp_path, MAIN + line) == ["weirgate.yaml:2: keys[0].secret: is empty"]


def test_a_reference_that_is_overridden_need_not_exist(tmp_path: Path) -> None:
    path = write(tmp_path, 'upstreams: {main: {base_url: "http://x/v1", api_key: "${env:GONE}"}}')
    key = load(path, {"WEIRGATE_UPSTREAMS__MAIN__API_KEY": "from-env"}).upstreams["main"].api_key
    assert key == Secret("from-env")
    assert load(path, {}, {"upstreams.main.api_key": Secret("flag")}).upstreams["main"].api_key == Secret("flag")


def test_no_problem_repeats_a_secret(tmp_path: Path) -> None:
    text = (
        'upstreams: {m: {base_url: "hunter2", api_key: ["hunter2"]}}\nkeys: [{id: "hunter2 x", secret: "hunter2é"}]\n'
    )
    text += 'admin: {secret: {a: hunter2}}\nstore: {url: "hunter2", content: hunter2}'
    found = problems(tmp_path, text, {"WEIRGATE_SERVER__PORT": "hunter2"})
    assert len(found) >= 7
    assert "hunter2" not in "".join(found)


def test_a_secret_shows_itself_nowhere(tmp_path: Path) -> None:
    settings = load(write(tmp_path, ISSUE), ENVIRON)
    secret = settings.keys[0].secret
    shown = [
        repr(settings),
        str(settings),
        settings.model_dump_json(),
        f"{secret} {secret!r} {secret:>5}",
    ]
    assert not any(value in text for text in shown for value in ENVIRON.values())
    assert "***" in shown[2]
    with pytest.raises(TypeError):
        copy.copy(secret)
    for encode in (msgspec.json.encode, json.dumps):
        with pytest.raises(TypeError):
            encode({"a": secret})
    assert copy.deepcopy(secret) is secret
    assert secret == Secret("sk-team-a") and secret != Secret("other") and secret != "sk-team-a"
    assert len({secret, Secret("sk-team-a")}) == 1


def test_settings_are_frozen_all_the_way_down(tmp_path: Path) -> None:
    settings = load(write(tmp_path, ISSUE), ENVIRON)
    for change in (
        lambda: setattr(settings, "window", 1),
        lambda: setattr(settings.server.limits, "body", 1),
        lambda: setattr(settings.upstreams["main"], "base_url", "x"),
        lambda: settings.upstreams.update({}),  # type: ignore[attr-defined]
    ):
        with pytest.raises((ValidationError, TypeError, AttributeError)):
            change()


def test_agents_are_told_with_everything_else_that_is_wrong(tmp_path: Path) -> None:
    text = """\
models: {fast: {upstream: main}}
agents:
  a: {model: fats, efort: low}
  fast: {model: fast, tools: [shel]}
base_prompt: {fle: x}
skills: {folder: x}
"""
    assert problems(tmp_path, MAIN + text, {"WEIRGATE_AGENTS__B__MODEL": "gone"}) == [
        'weirgate.yaml:6: base_prompt.fle: unknown key; did you mean "file"?',
        'weirgate.yaml:4: agents.a.efort: unknown key; did you mean "effort"?',
        "weirgate.yaml:5: agents.fast.tools[0]: unknown tool; there are load_skill, read_tool_result, ask_user, "
        "request_approval",
        'weirgate.yaml:7: skills.folder: unknown key; did you mean "folders"?',
        'weirgate.yaml:4: agents.a.model: no entry of models leads to it; did you mean "fast"?',
        "weirgate.yaml:5: agents.fast: is also the name of an entry of models",
        "environment: WEIRGATE_AGENTS__B__MODEL: no entry of models leads to it",
    ]


def test_folders_of_skills_are_relative_to_the_file(tmp_path: Path) -> None:
    assert load(write(tmp_path, MAIN + "skills: {folders: [a, /b]}"), {}).skills.folders == (tmp_path / "a", Path("/b"))
    assert load(write(tmp_path, MAIN + "skills: {folders: a}"), {}).skills.folders == (tmp_path / "a",)
    assert from_upstream("http://127.0.0.1:9/v1").skills.folders == ()


def test_settings_know_the_file_they_are_from_and_what_their_agents_need(tmp_path: Path) -> None:
    path = write(tmp_path, ROUTES + "agents: {a: {model: gpt-5, instructions: {file: p.md}}}\nbase_prompt: Ours.\n")
    settings = load(path, {})
    given = agents_of(settings)
    assert (settings.origin, given.file, given.models) == (path, path, ("*", "gpt-*", "gpt-4*", "gpt-4o"))
    assert [*given.agents] == ["a"] and given.base is not None and given.base.text == "Ours."
    assert from_upstream("http://127.0.0.1:9/v1").origin is None


ROUTES = """\
upstreams: {a: {base_url: "http://a"}, b: {base_url: "http://b"}, c: {base_url: "http://c"}}
models:
  "*": {upstream: a}
  "gpt-*": {upstream: b}
  "gpt-4*": {upstream: c, model: fixed}
  gpt-4o: {upstream: a, model: exact}
"""


@pytest.mark.parametrize(
    ("name", "route"),
    [
        ("gpt-4o", ("a", "exact", "gpt-4o")),
        ("gpt-4-turbo", ("c", "fixed", "gpt-4*")),
        ("gpt-5", ("b", "gpt-5", "gpt-*")),
        ("llama", ("a", "llama", "*")),
        ("", ("a", "", "*")),
    ],
)
def test_the_exact_name_goes_before_the_most_specific_pattern(
    tmp_path: Path, name: str, route: tuple[str, str, str]
) -> None:
    found = resolve_model(load(write(tmp_path, ROUTES), {}), name)
    assert found is not None
    assert (found.upstream, found.model, found.pattern) == route


def test_brackets_in_a_name_are_brackets(tmp_path: Path) -> None:
    text = MAIN + 'models: {"claude[1m]*": {upstream: main, model: long}, "claude1": {upstream: main, model: other}}'
    settings = load(write(tmp_path, text), {})
    assert [
        found and found.model for found in (resolve_model(settings, "claude[1m]-x"), resolve_model(settings, "claude1"))
    ] == ["long", "other"]


def test_a_name_that_nothing_fits_goes_nowhere(tmp_path: Path) -> None:
    settings = load(write(tmp_path, MAIN + "models: {one: {upstream: main}}"), {})
    assert resolve_model(settings, "two") is None


def test_without_a_file_one_upstream_serves_every_name() -> None:
    settings = from_upstream("http://127.0.0.1:9/v1/", window=2048, port=0)
    route = resolve_model(settings, "any/thing")
    assert route is not None and (route.upstream, route.model, route.pattern) == ("main", "any/thing", "*")
    assert (settings.window, settings.server.port, settings.keys) == (2048, 0, ())
    assert settings.upstreams["main"].base_url == "http://127.0.0.1:9/v1"
    with pytest.raises(ConfigError, match="base_url"):
        from_upstream("not an address")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "localhost", "LOCALHOST", "::1", "[::1]"])
def test_loopback_may_be_open(host: str) -> None:
    assert is_loopback(host)
    assert refusal(from_upstream("http://x/v1", host=host), keys=False) is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "localhost.example.com", "weirgate", "0", "127.1.evil"])
def test_a_bind_that_others_can_reach_needs_keys_and_says_why(host: str) -> None:
    settings = from_upstream("http://x/v1", host=host)
    reason = refusal(settings, keys=False)
    assert reason is not None and host in reason and "weirgate keys add" in reason
    assert refusal(settings, keys=True) is None


def test_keys_in_the_file_allow_any_bind(tmp_path: Path) -> None:
    settings = load(write(tmp_path, ISSUE), ENVIRON, {"server.host": "0.0.0.0"})
    assert refusal(settings, keys=False) is None


def test_the_schema_is_current_and_describes_every_setting() -> None:
    assert (ROOT / "schemas" / "weirgate.schema.json").read_text() == render_schema(schema())
    bare = [
        f"{name}.{key}"
        for name, section in schema()["$defs"].items()
        for key, value in section["properties"].items()
        if "description" not in value and "$ref" not in value and (name, key) != ("AdminSettings", "secret")
    ]
    assert bare == []


def test_the_schema_uses_words_that_editors_know() -> None:
    strange = {"ge", "gt", "le", "lt"}

    def keys(node: object) -> set[str]:
        if isinstance(node, dict):
            return set(node).union(*(keys(each) for each in node.values()))
        return set().union(*(keys(each) for each in node)) if isinstance(node, list) else set()

    assert keys(schema()) & strange == set()


@given(
    st.dictionaries(
        st.sampled_from(["server", "upstreams", "models", "keys", "store", "admin", "x"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text("ab:#{é", max_size=3),
            lambda inner: (
                st.lists(inner, max_size=2)
                | st.dictionaries(st.sampled_from(["main", "upstream", "id", "secret", "base_url"]), inner, max_size=2)
            ),
        ),
    )
)
def test_any_shape_of_file_is_settings_or_problems(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, object]
) -> None:
    path = tmp_path_factory.mktemp("any") / "weirgate.yaml"
    path.write_text(json.dumps(values, ensure_ascii=False), encoding="utf-8")
    assert parse(path.read_bytes(), "f").values == json.loads(path.read_bytes())
    try:
        load(path, {})
    except ConfigError as error:
        assert error.problems


def test_importing_the_package_does_not_import_the_settings() -> None:
    code = "import sys, proxy; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=False).returncode == 0
