"""What is publicly known of models: windows, prices, levels of effort, and the ranks their tokenisers are made of.

Belongs here: data made by `scripts/catalogue.py` from litellm's wheel, and finding a model in it by the names people
use. Never: what an operator stated, what a provider's error taught, or a guess: a model that is not found is None, and
a price that is not sure is no price. The wheel itself is never imported.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

import msgspec

from proxy.core.effort import LEVELS, Effort, Means
from proxy.core.policy import ModelCard, Tariff

_HERE = Path(__file__).parent
# What providers add to a name without changing the model: a date, "latest", a Bedrock revision.
_SUFFIX = re.compile(r"(?:[-@](?:\d{4}-\d{2}-\d{2}|\d{8})|[-@]latest)(?:-v\d+(?::\d+)?)?$")
# What an aggregator or a local server adds and what may change its price: ":free", ":7b-instruct-q4_K_M".
_TAG = re.compile(r":[\w.-]+$")
_VERSION_DOT = re.compile(r"(?<=\d)\.(?=\d)")
_VENDORS = ("openai", "anthropic", "deepseek", "google", "mistralai", "x-ai")
# Whose prices hold at a provider's address: the end of the host name, and litellm's prefix.
_PROVIDERS: Mapping[str, str] = {
    "api.anthropic.com": "anthropic",
    "api.cerebras.ai": "cerebras",
    "api.deepinfra.com": "deepinfra",
    "api.deepseek.com": "deepseek",
    "api.fireworks.ai": "fireworks_ai",
    "api.groq.com": "groq",
    "api.mistral.ai": "mistral",
    "api.moonshot.ai": "moonshot",
    "api.novita.ai": "novita",
    "api.openai.com": "openai",
    "api.perplexity.ai": "perplexity",
    "api.sambanova.ai": "sambanova",
    "api.together.xyz": "together_ai",
    "api.x.ai": "xai",
    "api.z.ai": "zai",
    "dashscope.aliyuncs.com": "dashscope",
    "generativelanguage.googleapis.com": "gemini",
    "integrate.api.nvidia.com": "nvidia_nim",
    "openai.azure.com": "azure",
    "openrouter.ai": "openrouter",
}
# How the provider at an address is told an effort (the sources stand in dialects/chat/effort.py); Anthropic's depends
# on the model. Who is not here documents none that we know of.
_MEANS: Mapping[str, Means] = {
    "anthropic": "thinking_budget",
    "azure": "reasoning_effort",
    "dashscope": "enable_thinking",
    "deepseek": "thinking",
    "gemini": "reasoning_effort",
    "groq": "reasoning_effort",
    "mistral": "reasoning_effort",
    "openai": "reasoning_effort",
    "openrouter": "reasoning",
    "xai": "reasoning_effort",
    "zai": "thinking",
}


class Row(msgspec.Struct, frozen=True, array_like=True):
    """One line of models.json. Tokens, and nano-dollars per token."""

    provider: str
    window: int | None = None
    input_limit: int | None = None
    max_output: int | None = None
    input: int | None = None
    output: int | None = None
    cached: int | None = None
    cache_write: int | None = None
    encoding: str | None = None
    efforts: int | None = None
    """A bit for each level of `core.effort.LEVELS` that the model has, the lowest first; None: not known."""
    adaptive: bool | None = None
    """Anthropic's way of thinking from Claude 4.6 on: without a budget."""


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    file: str
    sha256: str


class Models(msgspec.Struct, frozen=True, kw_only=True):
    """models.json: what it was made from, and its rows by litellm's name."""

    source: str
    version: str
    origin: Origin
    models: dict[str, Row]


class Catalogue:
    """The models of models.json, read at the first question. Made once, by the app."""

    def __init__(self, file: Path = _HERE / "models.json") -> None:
        self._file = file

    @property
    def version(self) -> str:
        """The release of litellm that the prices are from; on every usage row as the price version."""
        return self._read.version

    def means(self, host: str) -> Means | None:
        """How the provider at `host` is told an effort; None where that is no provider we know."""
        return _MEANS.get(_provider(host))

    def card(self, model: str, *, host: str = "") -> ModelCard | None:
        """What is known of `model` as served at `host` (of the upstream's address), None if nothing.

        Tried in this order, in any case: the name at that provider, the name itself, without its date, without its
        vendor's prefix. Last, the models of any provider with the same last part: then only the window that most of
        them have is told and no price, since the hosts of one open model do not agree on what it costs. A window
        that is too large corrects itself at the first refusal; one that is too small never would.
        """
        for name in _spellings(model, _provider(host)):
            known = self._lower.get(name)
            if known is not None:
                return self._card(model, self._read.models[known], self.means(host))
        same = self._by_last_part.get(_last_part(_undated(_TAG.sub("", model.lower()))), ())
        windows = Counter(window for name in same if (window := self._read.models[name].window) is not None)
        if not windows:
            return None
        window = max(windows, key=lambda each: (windows[each], -each))
        return ModelCard(name=model, window=window, means=self.means(host))

    @cached_property
    def _read(self) -> Models:
        return msgspec.json.decode(self._file.read_bytes(), type=Models)

    @cached_property
    def _lower(self) -> Mapping[str, str]:
        return {name.lower(): name for name in self._read.models}

    @cached_property
    def _by_last_part(self) -> Mapping[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        for name in self._read.models:
            part = _last_part(name.lower())
            found[part] = (*found.get(part, ()), name)
        return found

    def _card(self, asked: str, row: Row, means: Means | None) -> ModelCard:
        tariff = None
        if row.input is not None:
            tariff = Tariff(
                input=row.input,
                output=row.output or 0,
                cached=row.cached,
                cache_write=row.cache_write,
                source=self._read.source,
                version=self._read.version,
            )
        known = ModelCard(
            name=asked,
            window=row.window,
            input_limit=row.input_limit,
            max_output=row.max_output,
            tariff=tariff,
            efforts=_levels(row.efforts),
            means="thinking_adaptive" if row.adaptive and means == "thinking_budget" else means,
        )
        return known if row.encoding is None else msgspec.structs.replace(known, encoding=row.encoding)


def ranks_folder() -> Path:
    """The folder to name in TIKTOKEN_CACHE_DIR before the first encoding is made.

    Ask `verify` first: tiktoken deletes a file whose hash is wrong and then tries the network.
    """
    return _HERE / "ranks"


def verify(folder: Path = _HERE) -> list[str]:
    """What is missing or was altered in the catalogue's data, as sentences; empty if all is as it was made."""
    try:
        expected = msgspec.json.decode((folder / "hashes.json").read_bytes(), type=dict[str, str])
    except (OSError, msgspec.DecodeError):
        return ["catalogue: hashes.json is missing or broken"]
    wrong: list[str] = []
    for name, digest in expected.items():
        try:
            data = (folder / name).read_bytes()
        except OSError:
            wrong.append(f"catalogue: {name} is missing")
            continue
        if hashlib.sha256(data).hexdigest() != digest:
            wrong.append(f"catalogue: {name} was altered (its hash is wrong)")
    return wrong


def _levels(bits: int | None) -> tuple[Effort, ...] | None:
    return None if bits is None else tuple(level for place, level in enumerate(LEVELS) if bits >> place & 1)


def _provider(host: str) -> str:
    name = host.lower()
    return next((owner for end, owner in _PROVIDERS.items() if name == end or name.endswith("." + end)), "")


def _spellings(model: str, provider: str) -> Iterator[str]:
    """The ways `model` may stand in the catalogue, in lower case, the surest first."""
    names = [model.lower()]
    vendor, slash, rest = names[0].partition("/")
    if slash and vendor in _VENDORS:
        names.append(rest)
    # Aggregators write Claude's versions with a dot, Anthropic with a hyphen.
    names += [_VERSION_DOT.sub("-", name) for name in names if "claude" in name]
    prefixes = (f"{provider}/", "") if provider else ("",)
    for prefix in prefixes:
        for name in names:
            yield prefix + name
            yield prefix + _undated(name)


def _undated(name: str) -> str:
    return _SUFFIX.sub("", name)


def _last_part(name: str) -> str:
    return name.rpartition("/")[2]
