"""What `weirgate check` finds: everything that would stop the gateway, and what is probably not meant.

Belongs here: the questions that only settings, policies, agents, skills and catalogue together can answer. Never:
printing, exit codes, or asking the network; a configuration is judged on the machine that wrote it. Problems stop a
start, warnings do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import msgspec

from proxy import agents, policies
from proxy.agents import Agents, Given
from proxy.catalogue import Catalogue, verify
from proxy.configfile import ConfigError, Document, Place, Problem, read
from proxy.configfile.references import is_reference
from proxy.core.agent import Agent, Skill
from proxy.core.pacing import pace_of
from proxy.core.policy import ModelCard, matches
from proxy.dialects.chat.effort import effort_members
from proxy.policies import PolicySet
from proxy.settings import Settings, agents_of, is_loopback, load, refusal, resolve_model

SHORT_KEY = 16
_STEP = 5
"""Turns within which moving the limits of a memory costs a cache more than it is worth."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a check; `ok` is whether the gateway would start with it."""

    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]

    @property
    def ok(self) -> bool:
        return not self.problems


class Stock(Protocol):
    """The skills of some folders, with what is to be said of them."""

    @property
    def problems(self) -> tuple[Problem, ...]: ...

    @property
    def warnings(self) -> tuple[Problem, ...]: ...

    def skills(self) -> tuple[Skill, ...]: ...


def check(
    path: Path | None,
    environ: Mapping[str, str],
    overrides: Mapping[str, object] | None = None,
    *,
    catalogue: Catalogue,
    skills: Callable[[tuple[Path, ...]], Stock] | None = None,
) -> Report:
    """Problems and warnings of the settings, of the policy folder and of the agents and skills they name. `skills`
    reads folders of skills, and raises ConfigError where it cannot. Never raises ConfigError."""
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
    given = Given(file=path) if settings is None else agents_of(settings)
    virtual = Agents()
    try:
        virtual = agents.load(given)
    except ConfigError as error:
        problems += error.problems
    stock: Stock | None = None
    try:
        stock = None if skills is None or settings is None else skills(settings.skills.folders)
    except ConfigError as error:
        problems += error.problems
    if stock is not None:
        warnings += (*stock.problems, *stock.warnings)
    if settings is not None:
        document = Document(file="weirgate.yaml", values={}, lines={}) if path is None else read(path)
        warnings += [document.problem(place, message) for place, message in _exposure(settings, document)]
        warnings += [document.problem(place, message) for place, message in _leftovers(settings, virtual)]
        if found is not None:
            seen = _models(settings, found, catalogue)
            warnings += [document.problem(place, message) for place, message in seen]
            for agent in virtual.agents.values():
                told = (
                    *_in_vain(agent),
                    *_unskilled(agent, settings, stock),
                    *_unheard(agent, settings, found, catalogue),
                    *_forgetful(agent, settings, catalogue),
                )
                warnings += [agents.remark(given, agent.name, key, message) for key, message in told]
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


def _leftovers(settings: Settings, virtual: Agents) -> Iterator[tuple[Place, str]]:
    """What nothing uses."""
    used = {model.upstream for model in settings.models.values()}
    for name in settings.upstreams:
        if settings.models and name not in used:
            yield ("upstreams", name), "no model uses this upstream"
    for position, key in enumerate(settings.keys):
        for pattern in key.models:
            names = (*settings.models, *virtual.agents)
            fits = any(fnmatchcase(name, pattern) or fnmatchcase(pattern, name) for name in names)
            if settings.models and not fits:
                yield ("keys", position, "models"), f'"{pattern}" fits no entry of models and no agent'


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


def _in_vain(agent: Agent) -> Iterator[tuple[str, str]]:
    """What an agent is given that comes to nothing."""
    if not (agent.tenants and agent.users):
        yield "visible_to", "nobody may know of this agent"


def _unskilled(agent: Agent, settings: Settings, stock: Stock | None) -> Iterator[tuple[str, str]]:
    """Skills that an agent names and cannot have, each with the key that names them."""
    if not agent.skills:
        return
    if not settings.skills.folders:
        yield "skills", "there are no skills: skills.folders names no folder"
        return
    if "load_skill" not in agent.tools:
        yield "tools", "without load_skill its skills can only be selected, never loaded by the model"
    slugs = set() if stock is None else {skill.slug for skill in stock.skills()}
    for pattern in agent.skills:
        if stock is not None and not any(matches(pattern, slug) for slug in slugs):
            yield "skills", f'"{pattern}" fits no skill'


def _unheard(agent: Agent, settings: Settings, found: PolicySet, catalogue: Catalogue) -> Iterator[tuple[str, str]]:
    """An effort that the model would never hear of."""
    route = resolve_model(settings, agent.model)
    if route is None or agent.effort is None:
        return
    host = urlsplit(settings.upstreams[route.upstream].base_url).hostname or ""
    card = catalogue.card(route.model, host=host) or ModelCard(name=route.model, means=catalogue.means(host))
    if not effort_members(agent.effort, card, found.for_model(route.model), {}):
        yield "effort", f"{route.model} is not known to take one, so it is left out; if it does, its policy can say how"


def _forgetful(agent: Agent, settings: Settings, catalogue: Catalogue) -> Iterator[tuple[str, str]]:
    """Limits of memory that do not do what they seem to."""
    memory = agent.memory
    if memory is None:
        return
    if memory.result_turns > memory.turns:
        yield "memory", f"result_turns {memory.result_turns} is more than turns: {memory.turns} turns are told in all"
    if memory.calls == 0 and memory.result_turns:
        yield "memory", "calls is 0: no result is told, whatever result_turns says"
    route = resolve_model(settings, agent.model)
    if route is None or memory.step is None or memory.step >= _STEP:
        return
    host = urlsplit(settings.upstreams[route.upstream].base_url).hostname or ""
    card = catalogue.card(route.model, host=host)
    if card is not None and pace_of(msgspec.structs.replace(memory, step=None), card.tariff).step is None:
        yield (
            "memory",
            (
                f"with a step of {memory.step} what {route.model}'s provider has cached is read as new every "
                f"{memory.step} turns; without one, only when that pays"
            ),
        )


def _thresholds(folder: Path, found: PolicySet) -> Iterator[Problem]:
    """Policies that would compact again at once."""
    for policy in {each.name: each for each in found.policies}.values():
        if policy.target >= 1 - policy.reserve_max_share:
            message = (
                f"target {policy.target} is not below what reserve_max_share {policy.reserve_max_share} leaves: "
                "a request for the longest output would be compacted again at once"
            )
            yield Problem(file=str(folder / f"{policy.name}.yaml"), key="target", message=message)
