"""The policy folder: one file for everything (`default.yaml`) and one per model family that differs.

Belongs here: reading the folder into `core.policy` values, checking them, noticing changes and swapping the whole set
or nothing. Never: what a threshold does (`core` decides) and no timer: the app asks `PolicyWatch` when it likes.

A file states what it changes; every other key is the default file's, and what that leaves out is `core.policy`'s.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError

from proxy.configfile import ConfigError, Document, Place, Problem, described, explain, merge, read, states
from proxy.configfile.fields import Count, Factor, Pattern, Positive, Section, Share, number
from proxy.configfile.folders import print_of, yaml_files
from proxy.core.effort import LEVELS, Effort, Means
from proxy.core.policy import Mode, Policy, choose

MAX_FILES = 500
DEFAULT = "default"

_BUILT_IN = Policy()


def _patterns(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _ordered(levels: tuple[Effort, ...] | None) -> tuple[Effort, ...] | None:
    return None if levels is None else tuple(level for level in LEVELS if level in levels)


class Tail(Section):
    """The messages kept word for word at the end of the conversation."""

    messages: Annotated[int, Field(ge=1, le=1000), BeforeValidator(number)] = _BUILT_IN.tail_messages
    """At least so many, widened to whole groups (a call and all its results)."""
    max_share: Share = _BUILT_IN.tail_max_share
    """Most of what target leaves after layers and tools."""


class Pinned(Section):
    """The user's earlier requests, kept verbatim where they fit."""

    max_share: Share = _BUILT_IN.pinned_max_share
    """Most of what target leaves after layers and tools."""


class Ledger(Section):
    """Paths, ids, URLs, numbers, commands and errors that must survive."""

    max_share: Share = _BUILT_IN.ledger_max_share
    """Most of what target leaves after layers and tools."""


class Summary(Section):
    """How what is compacted is told: by a model, and where none can, by the gateway itself."""

    model: Pattern | Literal[False] | None = None
    """Who writes: a model of `models` that the caller's key may use; null: the conversation's own; false: none."""
    retries: Annotated[int, Field(ge=0, le=5), BeforeValidator(number)] = _BUILT_IN.summary_retries
    """Calls more after a transient error or an answer that was refused."""
    max_tokens: Annotated[int, Field(ge=64, le=32_768), BeforeValidator(number)] = _BUILT_IN.summary_max_tokens
    """Most tokens of a model's account; never more than an eighth of the window."""
    builtin: bool = _BUILT_IN.summary_builtin
    """Whether the deterministic notes may be used; they cost no call."""


class Cache(Section):
    """The provider's prompt cache; null takes the catalogue's prices."""

    read: Factor | None = _BUILT_IN.cache_read
    """Price of a cached token, as a multiple of the input price."""
    write: Factor | None = _BUILT_IN.cache_write
    """Price of a token written to the cache, as a multiple of the input price."""
    ttl: Positive | None = _BUILT_IN.cache_ttl
    """Seconds after its last use that the cache is thought to be gone."""


class Pause(Section):
    """A question of the model's to its user, for which the turn waits."""

    expires: Annotated[float, Field(ge=0, allow_inf_nan=False), BeforeValidator(number)] = _BUILT_IN.pause_expires
    """Seconds after which the question is over, and what the user writes is a new turn; 0: never."""


class EffortKeys(Section):
    """How these models are told how hard to think, where an agent or its caller wants a level."""

    member: Means | Literal["auto"] = _BUILT_IN.effort_member
    """What carries it; auto: what the provider at the upstream's address documents, else what `elsewhere` says."""
    elsewhere: Means | None = _BUILT_IN.effort_elsewhere
    """The same at any other address; null: unknown there too, so that the client's own word stays and none is added."""
    levels: Annotated[tuple[Effort, ...] | None, AfterValidator(_ordered)] = _BUILT_IN.effort_levels
    """Levels that the models have, the nearest is sent; null: the catalogue's; []: they cannot reason."""


class PolicyFile(Section):
    """Thresholds for the models that `match` names; keys left out are the default policy's."""

    match: Annotated[
        tuple[Pattern, ...],
        Field(min_length=1, max_length=100),
        BeforeValidator(_patterns, json_schema_input_type=Pattern | tuple[Pattern, ...]),
    ] = (_BUILT_IN.match,)
    """A model name, a pattern with * and ?, or a list of them; the most specific match wins, upper case is ignored."""
    mode: Mode = _BUILT_IN.mode
    """enforce keeps it inside the window, observe only measures and reports, off only relays."""
    window: Count | None = _BUILT_IN.window
    """Tokens; null: learned, else from the catalogue; unknown: only a refusal by the provider compacts."""
    compact_at: Annotated[float, Field(ge=0.30, le=0.95), BeforeValidator(number)] = _BUILT_IN.compact_at
    """Share of the window at which the conversation is compacted."""
    target: Annotated[float, Field(ge=0.05, lt=0.95), BeforeValidator(number)] = _BUILT_IN.target
    """Share of the window that a compaction aims at; below compact_at."""
    reserve_max_share: Annotated[float, Field(ge=0, le=0.9), BeforeValidator(number)] = _BUILT_IN.reserve_max_share
    """Most of the window that the requested output may hold back."""
    tail: Tail = Tail()
    pinned: Pinned = Pinned()
    ledger: Ledger = Ledger()
    summary: Summary = Summary()
    failure_limit: Annotated[int, Field(ge=1, le=10), BeforeValidator(number)] = _BUILT_IN.failure_limit
    """Failures of the models in a row, after which this conversation is compacted without them."""
    cache: Cache = Cache()
    pause: Pause = Pause()
    alternate: bool = _BUILT_IN.alternate
    """User and assistant must take turns (strict chat templates): neighbours of one role are merged."""
    effort: EffortKeys = EffortKeys()


class PolicySet(msgspec.Struct, frozen=True, kw_only=True):
    """All policies of one reading of the folder; `hash` changes whenever any of them does."""

    policies: tuple[Policy, ...]
    hash: str

    def for_model(self, name: str) -> Policy:
        """The policy of the model `name`: the most specific match, else the built-in default."""
        return choose(self.policies, name)


class Reload(msgspec.Struct, frozen=True, kw_only=True):
    """What a reload did: `current` is in force now. With problems it is the old set, kept whole."""

    current: PolicySet
    changed: bool
    problems: tuple[Problem, ...] = ()

    @property
    def kept(self) -> bool:
        """Whether nothing was taken."""
        return bool(self.problems)


def shipped() -> Path:
    """The folder of policies that comes with the gateway: inside the wheel, or beside the package in a checkout."""
    package = Path(__file__).parent
    inside = package / "shipped" / "policies"
    return inside if inside.is_dir() else package.parent / "policies"


def load(folder: Path, *, window: int | None = None) -> PolicySet:
    """The policies of `folder`. `window` is that of every policy that states none (`settings.window`).

    Raises ConfigError with every problem of every file; a folder without a default file has the built-in one.
    """
    problems: list[Problem] = []
    documents = _documents(folder, problems)
    base = next((each for each in documents if Path(each.file).stem == DEFAULT), None)
    if base is not None and base.values.get("match", "*") not in ("*", ["*"]):
        problems.append(base.problem(("match",), 'of the default policy must be "*"'))
    policies: list[Policy] = []
    owners: dict[str, str] = {}
    for document in documents:
        for policy in _policies(document, base, window, problems):
            other = owners.setdefault(policy.match.lower(), document.file)
            if other != document.file:
                message = f'"{policy.match}" is also matched by {Path(other).name}'
                problems.append(document.problem(("match",), message))
            policies.append(policy)
    if problems:
        raise ConfigError(problems)
    if base is None:
        policies.append(_hashed(Policy(window=window)))
    return PolicySet(policies=tuple(policies), hash=_digest(sorted(policy.hash for policy in policies)))


def single(file: Path, folder: Path) -> Mapping[str, Any]:
    """The keys of one policy file that need not be in force, with those that it leaves out from the default policy of
    `folder`. Raises ConfigError with every problem of either."""
    problems: list[Problem] = []
    default = next((each for each in _files(folder) if each.stem == DEFAULT), None) if folder.is_dir() else None
    base = read(default) if default is not None and default.resolve() != file.resolve() else None
    document = read(file)
    document = msgspec.structs.replace(document, values={"match": "*", **document.values})
    made = list(_policies(document, base, None, problems))
    if problems or not made:
        raise ConfigError(problems)
    return merge(document.values, {} if base is None else base.values)


def stated(values: Mapping[str, Any], *, window: int | None) -> Policy:
    """The policy of such keys, for whatever model; `window` where they state none. Raises ValueError, in our words."""
    try:
        found = PolicyFile.model_validate(values)
    except ValidationError as error:
        place = error.errors(include_input=False, include_url=False)[0]["loc"]
        known = bool(place) and place[0] in PolicyFile.model_fields
        raise ValueError(
            f"{place[0]} is not as a policy file takes it" if known else "there is an unknown key"
        ) from None
    for _, message in _contradictions(found):
        raise ValueError(message)
    return _policy(found, "*", "another", window)


def schema() -> dict[str, Any]:
    """JSON Schema of a policy file."""
    made = described(PolicyFile.model_json_schema(), Path(__file__))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made, "title": "Weirgate policy"}


class PolicyWatch:
    """The policies in force, and their replacement. Not a timer: `poll` says whether the folder changed.

    Looks at names, times, sizes and inodes of what the names *lead to*, since Kubernetes updates a mounted
    ConfigMap by swapping a symlink. Reads files: call `poll` and `reload` outside the event loop.
    """

    def __init__(self, folder: Path, *, window: int | None = None) -> None:
        """Reads the folder. Raises ConfigError: a server does not start on a broken configuration."""
        self._folder = folder
        self._window = window
        self._seen = _fingerprint(folder)
        self._current = load(folder, window=window)

    @property
    def current(self) -> PolicySet:
        return self._current

    def poll(self) -> Reload | None:
        """Reload if the folder looks other than when last read; None if not. Never raises."""
        return self.reload() if _fingerprint(self._folder) != self._seen else None

    def reload(self) -> Reload:
        """Read the folder again and swap the whole set, or keep the old one and say why. Never raises."""
        self._seen = _fingerprint(self._folder)
        try:
            found = load(self._folder, window=self._window)
        except ConfigError as error:
            return Reload(current=self._current, changed=False, problems=error.problems)
        except Exception as error:  # a bug in reading must not end a server that has good policies
            unexpected = Problem(file=str(self._folder), message=f"cannot be read: {type(error).__name__}")
            return Reload(current=self._current, changed=False, problems=(unexpected,))
        changed = found.hash != self._current.hash
        if changed:
            self._current = found
        return Reload(current=self._current, changed=changed)


def _files(folder: Path) -> list[Path]:
    """The policy files by name, the default first."""
    return sorted(yaml_files(folder), key=lambda each: (each.stem != DEFAULT, each.name))


def _documents(folder: Path, problems: list[Problem]) -> list[Document]:
    try:
        files = _files(folder)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", "not a folder name")
        problems.append(Problem(file=str(folder), message=f"the policy folder cannot be read: {reason}"))
        return []
    if len(files) > MAX_FILES:
        problems.append(Problem(file=str(folder), message=f"holds more than {MAX_FILES} policy files"))
        return []
    if not files:
        problems.append(Problem(file=str(folder), message="holds no policy file (*.yaml)"))
    documents: list[Document] = []
    for file in files:
        try:
            documents.append(read(file))
        except ConfigError as error:
            problems += error.problems
    return documents


def _policies(
    document: Document, base: Document | None, window: int | None, problems: list[Problem]
) -> Iterator[Policy]:
    """The policies of one file, one per pattern. What is wrong with an inherited key is said once, of the default."""
    inherited: Mapping[str, Any] = {} if base is None else base.values
    if document is not base and "match" not in document.values:
        problems.append(document.problem((), "match is required: which models is this policy for?"))
        return

    def owner(place: Place) -> Document:
        return document if base is None or states(document.values, place) else base

    def report(found: Iterable[Problem]) -> None:
        problems.extend(each for each in found if each not in problems)

    try:
        stated = PolicyFile.model_validate(merge(document.values, inherited))
    except ValidationError as error:
        report(explain(error, PolicyFile.model_json_schema(), lambda place, text: owner(place).problem(place, text)))
        return
    wrong = tuple(_contradictions(stated))
    for places, message in wrong:
        place = next((each for each in places if states(document.values, each)), places[0])
        report([owner(place).problem(place, message)])
    if wrong:
        return
    for pattern in stated.match:
        yield _policy(stated, pattern, Path(document.file).stem, window)


def _contradictions(stated: PolicyFile) -> Iterator[tuple[tuple[Place, ...], str]]:
    """What several keys together get wrong, with the keys that could be to blame."""
    if stated.target >= stated.compact_at:
        message = f"target {stated.target} must be below compact_at {stated.compact_at}"
        yield (("target",), ("compact_at",)), message
    shares = stated.tail.max_share + stated.pinned.max_share + stated.ledger.max_share
    if shares > 1 + 1e-9:
        places = tuple((name, "max_share") for name in ("tail", "pinned", "ledger"))
        yield places, f"the shares of tail, pinned and ledger add up to {shares:.2f}, which is over 1"


def _policy(stated: PolicyFile, pattern: str, name: str, window: int | None) -> Policy:
    return _hashed(
        Policy(
            match=pattern,
            mode=stated.mode,
            window=window if stated.window is None else stated.window,
            compact_at=stated.compact_at,
            target=stated.target,
            reserve_max_share=stated.reserve_max_share,
            tail_messages=stated.tail.messages,
            tail_max_share=stated.tail.max_share,
            pinned_max_share=stated.pinned.max_share,
            ledger_max_share=stated.ledger.max_share,
            summary_model=stated.summary.model or None,
            summary_asked=stated.summary.model is not False,
            summary_retries=stated.summary.retries,
            summary_max_tokens=stated.summary.max_tokens,
            summary_builtin=stated.summary.builtin,
            failure_limit=stated.failure_limit,
            cache_read=stated.cache.read,
            cache_write=stated.cache.write,
            cache_ttl=stated.cache.ttl,
            pause_expires=stated.pause.expires,
            alternate=stated.alternate,
            effort_member=stated.effort.member,
            effort_elsewhere=stated.effort.elsewhere,
            effort_levels=stated.effort.levels,
            name=name,
        )
    )


def _hashed(policy: Policy) -> Policy:
    return msgspec.structs.replace(policy, hash=_digest(policy))


def _digest(value: object) -> str:
    """16 hex digits of the resolved content: equal content has an equal hash on every machine."""
    return hashlib.blake2b(msgspec.json.encode(value), digest_size=8).hexdigest()


def _fingerprint(folder: Path) -> tuple[object, ...]:
    try:
        files = _files(folder)
    except (OSError, ValueError) as error:
        return ("unreadable", getattr(error, "errno", None))
    return (str(folder.resolve()), *(print_of(file) for file in files[: MAX_FILES + 1]))
