"""What the operator decided: weirgate.yaml, the environment and the command line as one frozen value.

Belongs here: the names, ranges and defaults of every setting, how the sources are joined, and what only several
settings together can get wrong. Never: opening a socket, a database or the policy folder, and no default that a
second file states again. Precedence: command line, then environment, then file, then default.

Environment variables are `WEIRGATE_` and the way to a key, with two underscores between its parts
(`WEIRGATE_SERVER__PORT=9000`). Names without `__` are not settings: `WEIRGATE_ADMIN` is free for a secret, and what
Kubernetes injects for a service called weirgate is ignored.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from pydantic import AfterValidator, Field, PrivateAttr, ValidationError

from proxy.agents import Given, misled
from proxy.agents import keys as agent_keys
from proxy.agents.keys import AgentSettings, MemorySettings, Prompted, Remembering, SkillsSettings
from proxy.configfile import (
    ConfigError,
    Document,
    Place,
    Problem,
    described,
    did_you_mean,
    dotted,
    explain,
    merge,
    read,
    states,
)
from proxy.configfile import quotas as quota_keys
from proxy.configfile.fields import (
    Count,
    Name,
    Pattern,
    Port,
    Positive,
    Seconds,
    Secret,
    Section,
    Share,
    Size,
    Table,
    Tries,
    base_url,
    header_names,
    nothing,
    store_url,
    upstream_headers,
)
from proxy.configfile.quotas import BreakerSettings, Breaking, LimitSettings
from proxy.configfile.references import resolve
from proxy.core.policy import matches, specificity

PREFIX = "WEIRGATE_"


class Limits(Section):
    """What one client may ask of the gateway. Every limit is finite."""

    body: Size = 64 * 1024**2
    """Bytes of a request body, after decompression. More is answered with 413."""
    header_bytes: Size = 32 * 1024
    """Bytes of all request headers together. More is answered with 431."""
    header_count: Count = 64
    """Number of request headers."""
    header_seconds: Positive = 10.0
    """Seconds a client may take to send its headers."""
    body_seconds: Positive = 60.0
    """Seconds a client may take to send its body."""
    write_idle: Positive = 60.0
    """Seconds a client may leave the answer unread before it is disconnected."""
    messages: Count = 20_000
    """Messages in one request."""
    tools: Count = 128
    """Tool definitions in one request."""
    depth: Count = 64
    """Levels of nesting in a JSON body."""
    choices: Count = 8
    """Largest n of a request."""
    streams: Count = 500
    """Requests served at once by this process; more are answered with 429."""
    streams_per_key: Count | None = None
    """Requests served at once for one key; null: 50, or as many as streams where there are no keys."""


class Server(Section):
    """The address clients talk to."""

    host: Annotated[str, Field(min_length=1, max_length=255, pattern=r"^\S+$")] = "127.0.0.1"
    """Address to bind. Anything but loopback needs client keys."""
    port: Port = 8400
    """TCP port; 0 takes any free one."""
    hold: Seconds = 5.0
    """Seconds an answer may be held back so that early upstream errors keep their true status."""
    ping: Positive = 15.0
    """Seconds between the comments that keep a silent stream open."""
    drain_delay: Seconds = 0.0
    """Seconds after SIGTERM that /readyz says 503 while new requests are served, until a load balancer has noticed."""
    drain: Seconds = 300.0
    """Seconds that running requests may take to finish after that."""
    limits: Limits = Limits()


class Deadlines(Section):
    """How long a provider may take, in seconds."""

    connect: Positive = 5.0
    """To accept the connection."""
    first_byte: Positive = 600.0
    """To the first byte of its answer. Long reasoning is silent."""
    idle: Positive = 300.0
    """Between two pieces of its answer."""
    total: Positive = 3600.0
    """In all."""


class UpstreamSettings(Section):
    """A provider with an OpenAI-compatible API."""

    base_url: Annotated[str, AfterValidator(base_url)]
    """Address up to and including /v1."""
    api_key: Secret | None = None
    """Sent as bearer token. Without it the client's own Authorization header is passed on."""
    headers: Annotated[Table[Secret], AfterValidator(upstream_headers)] = Field(default_factory=nothing)
    """Headers added to every call, such as api-key or OpenAI-Organization."""
    normalise: bool = False
    """Repair streams that strict clients refuse (missing role, index, type or finish) at the price of decoding them."""
    deadlines: Deadlines = Deadlines()
    max_connections: Count = 512
    """Connections kept open to it at most; further calls wait."""
    body_limit: Size = 64 * 1024**2
    """Bytes of one answer; more is an upstream error."""
    line_limit: Size = 1024**2
    """Bytes of one line of a stream; more is an upstream error."""
    attempts: Tries = 2
    """Attempts for one call where the provider was unreachable, overloaded or rate limited, before any output."""
    retry_budget: Share = 0.2
    """Share of calls that may be second attempts, so that a failing provider is not flooded."""
    breaker: Breaking = BreakerSettings()
    """When it is left alone because it fails; off: never."""


class ModelSettings(Section):
    """Where calls for a model go."""

    upstream: str
    """Name of an upstream."""
    model: Pattern | None = None
    """Name the upstream knows it by; without it the name that the client asked for."""


class StoreSettings(Section):
    """Where compactions, hidden state and usage rows are kept."""

    url: Annotated[str, AfterValidator(store_url), Field(repr=False)] = "sqlite:///weirgate.db"
    """sqlite:///path is relative to the working directory, sqlite:////path is absolute. Several replicas share one
    postgresql://user:password@host/database; the password may come from a reference, such as ${env:PGPASSWORD}."""
    migrate: bool = True
    """Bring the database to this version's schema at start; false refuses to start until `weirgate db upgrade` has."""
    connections: Count = 10
    """Connections to PostgreSQL of this process at most; SQLite has one."""
    required: bool = True
    """Refuse calls (503) while the store is down; false passes them through unremembered, and counts them."""
    content: Literal["normal", "strict"] = "normal"
    """strict keeps no message content at rest: no compactions, no cut results."""
    retention_days: Positive | None = None
    """Days after its last use that a conversation is deleted; null keeps it until it is purged."""


class KeySettings(Section):
    """A client key."""

    id: Name
    """Shown in usage rows and logs."""
    tenant: Name
    """Tenants never see each other's conversations."""
    secret: Secret
    """What the client sends as its API key."""
    models: tuple[Pattern, ...] = ("*",)
    """Patterns of the models it may ask for."""
    limits: LimitSettings = LimitSettings()


class AdminSettings(Section):
    """The administration API; closed without a secret."""

    secret: Secret | None = None


class ConversationSettings(Section):
    """Conversations that the gateway keeps: clients send only what is new."""

    memory: Remembering = MemorySettings()
    """How much of earlier turns a plain model is told again; an agent has its own. off: all of them, word for word."""


class UsageSettings(Section):
    """Usage rows."""

    strict: bool = False
    """Wait until the opening of a row is durable before the call goes out."""


class OtelSettings(Section):
    """Spans of upstream calls for an OpenTelemetry collector. Needs weirgate[otel]."""

    endpoint: Annotated[str, AfterValidator(base_url)] | None = None
    """Where the collector takes traces over HTTP, such as http://collector:4318/v1/traces; null: no spans."""
    headers: Annotated[Table[Secret], AfterValidator(header_names)] = Field(default_factory=nothing)
    """Headers of what is sent there, such as Authorization."""


class Settings(Section):
    """Everything in weirgate.yaml."""

    server: Server = Server()
    upstreams: Table[UpstreamSettings] = Field(default_factory=nothing)
    """Providers by name."""
    models: Table[ModelSettings] = Field(default_factory=nothing)
    """What clients may ask for: names, or patterns with * and ?. Without it a single upstream serves every name."""
    policies: Path | None = None
    """Folder of policy files, relative to this file; without it the shipped policies."""
    window: Count | None = None
    """Tokens; the window of every model whose policy states none."""
    base_prompt: Prompted | None = None
    """Told to every model before anything else, whichever agent or model is asked for."""
    agents: Table[AgentSettings] = Field(default_factory=nothing)
    """Virtual models by name; each may also have a file of its own, agents/NAME.yaml beside this one."""
    skills: SkillsSettings = SkillsSettings()
    conversations: ConversationSettings = ConversationSettings()
    store: StoreSettings = StoreSettings()
    keys: tuple[KeySettings, ...] = ()
    """Client keys; more can be made with `weirgate keys add`."""
    key_limits: LimitSettings = LimitSettings()
    """Limits of every key that states none of its own."""
    admin: AdminSettings = AdminSettings()
    usage: UsageSettings = UsageSettings()
    otel: OtelSettings = Field(default_factory=OtelSettings)
    _origin: Path | None = PrivateAttr(default=None)

    @property
    def origin(self) -> Path | None:
        """The file that they were read from."""
        return self._origin


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """Where a call goes. `pattern` is the entry of `models` that decided."""

    upstream: str
    model: str
    pattern: str


def _nested(given: Mapping[str, str]) -> dict[str, Any]:
    """pydantic-settings' reading of nested variables, from a given mapping instead of the process.

    Raises ValueError where one holds broken JSON.
    """
    # Here, because it takes a tenth of what a start does, and where no variable is set there is nothing to read.
    from pydantic_settings import EnvSettingsSource

    class Environment(EnvSettingsSource):
        def _load_env_vars(self) -> Mapping[str, str | None]:
            return {name.lower(): value for name, value in given.items()}

    # A plain model does as well: its fields are all that is read of it.
    source = Environment(Settings, env_prefix=PREFIX, env_nested_delimiter="__")  # type: ignore[arg-type]
    return source()


def load(path: Path | None, environ: Mapping[str, str], overrides: Mapping[str, object] | None = None) -> Settings:
    """The settings of `path` (None: no file), `environ` and `overrides` (dotted keys; None values are not stated).

    Raises ConfigError with every problem that was found, each with file and line or the variable's name.
    """
    sources = _Sources(_document(path), environ, overrides or {})
    settings = sources.settings()
    sources.report(_contradictions(sources))
    if sources.problems or settings is None:
        raise ConfigError(sources.problems)
    return _placed(settings, path)


def load_part(path: Path | None, environ: Mapping[str, str], sections: Collection[str]) -> Settings:
    """Only the named sections; the rest has its defaults. For commands that need no more: what is wrong elsewhere, or
    a provider's key that this shell does not hold, is none of their business. Raises ConfigError."""
    whole = _document(path)
    part = {name: value for name, value in whole.values.items() if name in sections}
    # Names without "__" are no settings: a reference in the part may name them.
    given = {
        name: value
        for name, value in environ.items()
        if "__" not in name or name.upper().removeprefix(PREFIX).partition("__")[0].lower() in sections
    }
    sources = _Sources(Document(file=whole.file, values=part, lines=whole.lines), given, {})
    settings = sources.settings()
    if sources.problems or settings is None:
        raise ConfigError(sources.problems)
    return _placed(settings, path)


def _placed(settings: Settings, path: Path | None) -> Settings:
    """Folders are relative to the file that names them."""
    if path is None:
        return settings
    home = path.parent
    skills = SkillsSettings(folders=tuple(home / folder.expanduser() for folder in settings.skills.folders))
    policies = None if settings.policies is None else home / settings.policies.expanduser()
    placed = settings.model_copy(update={"policies": policies, "skills": skills})
    placed._origin = path
    return placed


def _document(path: Path | None) -> Document:
    return Document(file="weirgate.yaml", values={}, lines={}) if path is None else read(path)


def from_upstream(url: str, window: int | None = None, host: str = "127.0.0.1", port: int = 8400) -> Settings:
    """Settings without a file: every name is forwarded to `url`, the client's own key is passed on."""
    server = {"server.host": host, "server.port": port, "window": window}
    return load(None, {}, {"upstreams.main.base_url": url, **server})


def resolve_model(settings: Settings, name: str) -> Route | None:
    """Where `name` goes: the exact entry, else the most specific pattern that fits, else nowhere."""
    models = settings.models
    if not models and len(settings.upstreams) == 1:
        return Route(upstream=next(iter(settings.upstreams)), model=name, pattern="*")
    fitting = [name] if name in models else [each for each in models if matches(each, name)]
    if not fitting:
        return None
    pattern = max(fitting, key=specificity)
    return Route(upstream=models[pattern].upstream, model=models[pattern].model or name, pattern=pattern)


def agents_of(settings: Settings) -> Given:
    """What `proxy.agents` reads the agents and the operator's prompt from."""
    return Given(agents=settings.agents, base=settings.base_prompt, models=tuple(settings.models), file=settings.origin)


def refusal(settings: Settings, *, keys: bool) -> str | None:
    """Why the gateway must not bind as it is told, or None. `keys`: whether any client key exists, here or stored."""
    if keys or settings.keys or is_loopback(settings.server.host):
        return None
    return (
        f"server.host {settings.server.host} can be reached from other machines and there are no client keys, so "
        "anybody could use the providers' keys; add `keys` to the configuration, make one with `weirgate keys add`, "
        "or bind 127.0.0.1"
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`. Names other than localhost count as reachable."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def schema() -> dict[str, Any]:
    """JSON Schema of weirgate.yaml. Editors use it after `# yaml-language-server: $schema=weirgate.schema.json`."""
    made = Settings.model_json_schema()
    for module in (__file__, agent_keys.__file__, quota_keys.__file__):
        made = described(made, Path(module))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made, "title": "weirgate.yaml"}


class _Sources:
    """The three sources of one load, and which of them said what."""

    def __init__(self, document: Document, environ: Mapping[str, str], overrides: Mapping[str, object]) -> None:
        self.document = document
        self.file, unresolved = resolve(document, environ)
        self.problems: list[Problem] = []
        self.environment = self._environment(environ)
        self.flags: dict[str, Any] = {}
        for key, value in overrides.items():
            if value is not None:
                for part in reversed(key.split(".")):
                    value = {part: value}
                self.flags = merge(value, self.flags)  # type: ignore[arg-type]
        over = merge(self.flags, self.environment)
        self._unresolved = {place: each for place, each in unresolved.items() if not states(over, place)}
        self.problems[:0] = self._unresolved.values()

    def merged(self) -> dict[str, Any]:
        return merge(self.flags, merge(self.environment, self.file))

    def settings(self) -> Settings | None:
        """The settings that the sources make together; None, with its problems reported, where they make none."""
        try:
            return Settings(**self.merged())
        except ValidationError as error:
            self.report(explain(error, Settings.model_json_schema(), self.problem))
            return None

    def report(self, found: Iterable[Problem]) -> None:
        self.problems.extend(problem for problem in found if problem not in self.problems)

    def problem(self, place: Place, message: str) -> Problem:
        """A problem at `place`, blamed on the source that decided it. One that a reference caused is said once."""
        for unresolved, cause in self._unresolved.items():
            if place[: len(unresolved)] == unresolved:
                return cause
        if states(self.flags, place):
            return Problem(file="command line", key=dotted(place), message=message)
        if states(self.environment, place):
            name = PREFIX + "__".join(str(part) for part in place).upper()
            return Problem(file="environment", key=name, message=message)
        return self.document.problem(place, message)

    def _environment(self, environ: Mapping[str, str]) -> dict[str, Any]:
        given: dict[str, str] = {}
        for name, value in environ.items():
            section, _, key = name.upper().removeprefix(PREFIX).partition("__")
            if not name.upper().startswith(PREFIX) or not section or not key:
                continue
            if section.lower() in Settings.model_fields:
                given[name] = value
            else:
                hint = did_you_mean(section, [each.upper() for each in Settings.model_fields])
                self.problems.append(Problem(file="environment", key=name, message=f"unknown section {section}{hint}"))
        for name, value in tuple(given.items()):
            try:
                _nested({name: value})
            except ValueError:
                self.problems.append(Problem(file="environment", key=name, message="holds broken JSON"))
                del given[name]
        return _nested(given) if given else {}


def _contradictions(sources: _Sources) -> Iterator[Problem]:
    """What no single setting can get wrong. Works on unchecked values, so that one load reports everything."""
    merged = sources.merged()
    upstreams, models, keys = (merged.get(name) or {} for name in ("upstreams", "models", "keys"))
    if not isinstance(upstreams, Mapping) or not isinstance(models, Mapping):
        return
    if not upstreams:
        yield sources.problem(("upstreams",), "at least one upstream is needed")
    for name, model in models.items():
        upstream = model.get("upstream") if isinstance(model, Mapping) else None
        if isinstance(upstream, str) and upstream not in upstreams:
            message = f'there is no upstream "{upstream}"' + did_you_mean(upstream, upstreams)
            yield sources.problem(("models", name, "upstream"), message)
    stated = merged.get("agents")
    if isinstance(stated, Mapping):
        for place, message in misled(stated, models):
            yield sources.problem(("agents", *place), message)
    if not models and len(upstreams) > 1:
        yield sources.problem(("models",), "with several upstreams, models must say which serves which name")
    if not isinstance(keys, list | tuple):
        return
    for part, what in (("id", "another key has this id"), ("secret", "another key has this secret")):
        yield from _doubles(sources, keys, part, what)


def _doubles(sources: _Sources, keys: Iterable[Any], part: str, message: str) -> Iterator[Problem]:
    seen: set[object] = set()
    for position, key in enumerate(keys):
        value = key.get(part) if isinstance(key, Mapping) else None
        if isinstance(value, str) and value in seen:
            yield sources.problem(("keys", position, part), message)
        seen.add(value if isinstance(value, str) else None)
