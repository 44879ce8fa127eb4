"""Thresholds for a model, what a model is, and what it costs.

Values and their matching; reading the files is `proxy.policies`' work. Shares are fractions of what they name.
"""

from __future__ import annotations

from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Literal

import msgspec

from proxy.core.effort import Effort, Means


class Mode(StrEnum):
    """enforce: keep it inside the window. observe: measure and report, forward the client's bytes. off: only relay."""

    ENFORCE = "enforce"
    OBSERVE = "observe"
    OFF = "off"


class Tariff(msgspec.Struct, frozen=True, kw_only=True):
    """Prices in nano-dollars per token (a price of $2.50 per million tokens is 2_500).

    `cached` and `cache_write` are what a token read from or written to the provider's prompt cache costs; None
    means that the provider does not price it apart (it costs `input`). `source` and `version` say where it is from.
    """

    input: int
    output: int
    cached: int | None = None
    cache_write: int | None = None
    source: str = "catalogue"
    version: str = ""


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a model: tokens it can take in all, take as input alone, give as output; and its tariff.

    `efforts` are the levels of reasoning effort it has: none at all, (), where it cannot reason; None: nobody knows.
    `means` is how the provider at the upstream's address is told one; None: that is no provider we know.
    """

    name: str
    window: int | None = None
    input_limit: int | None = None
    max_output: int | None = None
    tariff: Tariff | None = None
    encoding: str = "o200k_base"
    efforts: tuple[Effort, ...] | None = None
    means: Means | None = None


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """One policy, complete: keys that its file leaves out were inherited from the default policy.

    match              pattern of model names (`*` and `?`), the most specific match wins
    mode               see Mode
    window             tokens; None: learned, else catalogue; unknown: reactive only
    compact_at         share of the window at which a conversation is compacted (0.30-0.95)
    automatic          whether that happens unasked; False only by an account's own settings (`account.applied`)
    target             share of the window that a compaction aims at
    reserve_max_share  most that the requested output may hold back of the window
    tail_messages, tail_max_share    messages kept word for word at the end; their most of what target leaves
    pinned_max_share   most of it for the user's earlier requests
    ledger_max_share   most of it for the ledger of identifiers
    summary_model      who writes the narrative of the notes: a model's name; None: the conversation's own model
    summary_asked      whether a model is asked at all; False: the built-in notes, which cost no call
    summary_retries    calls more, after a transient error or a refused answer, before the next of the chain is asked
    summary_max_tokens most tokens of a narrative (and at most an eighth of the window)
    summary_builtin    whether the built-in, deterministic notes may be used
    failure_limit      failures of the models in a row, after which a branch asks no model any more
    cache_read, cache_write, cache_ttl   tariff multipliers and seconds of the provider's prompt cache; None: catalogue
    pause_expires      seconds after which a question to the user is answered by nobody; 0: never
    alternate          user and assistant messages must alternate (strict chat templates): neighbours are merged
    effort_member      how the upstream is told an effort; auto: as its provider documents, elsewhere `effort_elsewhere`
    effort_elsewhere   the same where the upstream's address is no provider's that we know; None: unknown there too, so
                       that what a client wrote is left as it is, and nothing is added
    effort_levels      levels of effort that the models have, lowest first; None: the catalogue's; (): none at all
    hash               hex digest of the file's resolved content, written on every usage row
    """

    match: str = "*"
    mode: Mode = Mode.ENFORCE
    window: int | None = None
    compact_at: float = 0.85
    automatic: bool = True
    target: float = 0.5
    reserve_max_share: float = 0.25
    tail_messages: int = 4
    tail_max_share: float = 0.45
    pinned_max_share: float = 0.25
    ledger_max_share: float = 0.1
    summary_model: str | None = None
    summary_asked: bool = True
    summary_retries: int = 2
    summary_max_tokens: int = 2048
    summary_builtin: bool = True
    failure_limit: int = 3
    cache_read: float | None = None
    cache_write: float | None = None
    cache_ttl: float | None = None
    pause_expires: float = 604_800.0
    alternate: bool = False
    effort_member: Means | Literal["auto"] = "auto"
    effort_elsewhere: Means | None = "reasoning_effort"
    effort_levels: tuple[Effort, ...] | None = None
    name: str = "default"
    hash: str = ""


def specificity(pattern: str) -> tuple[int, int, int]:
    """Order of patterns: more literal characters first, then fewer wildcards, then fewer stars."""
    stars = pattern.count("*")
    wild = stars + pattern.count("?")
    return len(pattern) - wild, -wild, -stars


def matches(pattern: str, name: str) -> bool:
    """Whether `name` fits a pattern of `*` and `?`. A bracket is a bracket: "claude[1m]" is a name."""
    return fnmatchcase(name, pattern.replace("[", "[[]"))


def choose(policies: tuple[Policy, ...], model: str) -> Policy:
    """The policy whose pattern matches `model` most specifically; the built-in default where none does."""
    lowered = model.lower()
    matching = [policy for policy in policies if matches(policy.match.lower(), lowered)]
    return max(matching, key=lambda policy: specificity(policy.match), default=Policy())
