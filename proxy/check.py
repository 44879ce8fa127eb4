"""What `weirgate check` finds: everything that would stop the gateway, and what is probably not meant.

Belongs here: the questions that only settings, policies and catalogue together can answer. Never: printing, exit codes,
or asking the network; a configuration is judged on the machine that wrote it. Problems stop a start, warnings do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from proxy import policies
from proxy.catalogue import Catalogue, verify
from proxy.configfile import ConfigError, Document, Place, Problem, read
from proxy.configfile.references import is_reference
from proxy.policies import PolicySet
from proxy.settings import Settings, is_loopback, load, refusal

SHORT_KEY = 16


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a check; `ok` is whether the gateway would start with it."""

    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]

    @property
    def ok(self) -> bool:
        return not self.problems


def check(
    path: Path | None,
    environ: Mapping[str, str],
    overrides: Mapping[str, object] | None = None,
    *,
    catalogue: Catalogue,
) -> Report:
    """Problems and warnings of the settings and of the policy folder they name. Never raises ConfigError."""
    problems: list[Problem] = [Problem(file="catalogue", message=each) for each in verify()]
    settings: Settings | None = None
    found: PolicySet | None = None
    try:
        settings = load(path, environ, overrides)
    except ConfigError as error:
        problems += error.problems
    try:
        found = policies.load(_folder(path, settings), window=settings.window if settings else None)
    except ConfigError as error:
        problems += error.problems
    warnings: list[Problem] = []
    if settings is not None:
        document = Document(file="weirgate.yaml", values={}, lines={}) if path is None else read(path)
        warnings += [document.problem(place, message) for place, message in _exposure(settings, document)]
        warnings += [document.problem(place, message) for place, message in _leftovers(settings)]
        if found is not None:
            seen = _models(settings, found, catalogue)
            warnings += [document.problem(place, message) for place, message in seen]
    if found is not None:
        warnings += _thresholds(_folder(path, settings), found)
    return Report(problems=tuple(problems), warnings=tuple(warnings))


def _folder(path: Path | None, settings: Settings | None) -> Path:
    """The policy folder, even of settings that are wrong elsewhere."""
    if settings is not None:
        return settings.policies or policies.shipped()
    try:
        stated = None if path is None else read(path).values.get("policies")
    except ConfigError:
        stated = None
    return path.parent / stated if path is not None and isinstance(stated, str) else policies.shipped()


def _exposure(settings: Settings, document: Document) -> Iterator[tuple[Place, str]]:
    """Who could read a secret or use a key that was not meant for them."""
    reason = refusal(settings, keys=False)
    if reason is not None:
        yield ("server", "host"), f"unless keys were made with `weirgate keys add`, this is refused: {reason}"
    for place in _literals(document.values, ()):
        yield place, "holds a secret in clear; write ${env:NAME} or ${file:/path}"
    for position, key in enumerate(settings.keys):
        if len(key.secret.reveal()) < SHORT_KEY:
            yield ("keys", position, "secret"), f"is shorter than {SHORT_KEY} characters and can be guessed"
    for name, upstream in settings.upstreams.items():
        parts = urlsplit(upstream.base_url)
        secret = upstream.api_key is not None or bool(upstream.headers)
        if secret and parts.scheme == "http" and not is_loopback(parts.hostname or ""):
            yield ("upstreams", name, "base_url"), "sends its key over plain http"


def _literals(value: Any, place: Place) -> Iterator[Place]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _literals(each, (*place, key))
    elif isinstance(value, list):
        for position, each in enumerate(value):
            yield from _literals(each, (*place, position))
    elif isinstance(value, str) and place and place[-1] in ("secret", "api_key") and not is_reference(value):
        yield place


def _leftovers(settings: Settings) -> Iterator[tuple[Place, str]]:
    """What nothing uses."""
    used = {model.upstream for model in settings.models.values()}
    for name in settings.upstreams:
        if settings.models and name not in used:
            yield ("upstreams", name), "no model uses this upstream"
    for position, key in enumerate(settings.keys):
        for pattern in key.models:
            fits = any(fnmatchcase(name, pattern) or fnmatchcase(pattern, name) for name in settings.models)
            if settings.models and not fits:
                yield ("keys", position, "models"), f'"{pattern}" fits no entry of models'


def _models(settings: Settings, found: PolicySet, catalogue: Catalogue) -> Iterator[tuple[Place, str]]:
    """Whether the window and the price of each model are known."""
    for name, entry in settings.models.items():
        named = entry.model or name
        if any(wild in named for wild in "*?"):
            continue
        place = ("models", name)
        host = urlsplit(settings.upstreams[entry.upstream].base_url).hostname or ""
        policy, card = found.for_model(named), catalogue.card(named, host=host)
        known = None if card is None else card.window
        if policy.window is None and known is None:
            yield place, f"the window of {named} is not known: it is compacted only after the provider refuses"
        if policy.window is not None and known is not None and policy.window > known:
            message = f"its policy ({policy.name}) states a window of {policy.window}, the catalogue {known}"
            yield place, message
        if (card is None or card.tariff is None) and not is_loopback(host):
            yield place, f"no price is known for {named}: its usage rows are marked unpriced"


def _thresholds(folder: Path, found: PolicySet) -> Iterator[Problem]:
    """Policies that would compact again at once."""
    for policy in {each.name: each for each in found.policies}.values():
        if policy.target >= 1 - policy.reserve_max_share:
            message = (
                f"target {policy.target} is not below what reserve_max_share {policy.reserve_max_share} leaves: "
                "a request for the longest output would be compacted again at once"
            )
            yield Problem(file=str(folder / f"{policy.name}.yaml"), key="target", message=message)
