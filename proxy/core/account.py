"""What one account wants of its own conversations, and what that makes of a policy.

An account is an end user of a key or, where a request names none, the key itself. Belongs here: the value, its bounds
and the precedence (account's for the model > account's > policy file of the model > default policy; the last two are
one by the time they are here). Never: whose settings they are, where they are kept, or which models a key may call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from proxy.core.policy import Policy

LEAST: Final = 0.30
MOST: Final = 0.95
"""Bounds of a threshold, as of `compact_at` in a policy file: shares of the window."""
MODELS: Final = 100
"""Most models with a threshold of their own."""
NAME: Final = 256
"""Most characters of a model's name, and of an end user's."""


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one account.

    automatic      whether its conversations are compacted without being asked to
    threshold      share of the window at which that happens; None: the policy's
    thresholds     the same for single models, by the name that the client asks for
    summary_model  who writes the narrative of the notes; None: the policy's
    """

    automatic: bool = True
    threshold: float | None = None
    thresholds: Mapping[str, float] = msgspec.field(default_factory=dict)
    summary_model: str | None = None


def applied(policy: Policy, account: Account | None, model: str, *, channel: bool) -> Policy:
    """`policy` as it holds for a call of this account to `model`; the same object where nothing differs.

    A conversation in a chat channel always keeps automatic compaction, whatever the account that writes says. With a
    lower threshold the target moves down in proportion: between the two lies what a compaction gains, and a target that
    reached the threshold would have every call compacted.
    """
    if account is None:
        return policy
    threshold = account.thresholds.get(model, account.threshold)
    compact_at = policy.compact_at if threshold is None else threshold
    lower = compact_at < policy.compact_at
    found = msgspec.structs.replace(
        policy,
        automatic=channel or (policy.automatic and account.automatic),
        compact_at=compact_at,
        target=policy.target * compact_at / policy.compact_at if lower else policy.target,
        summary_model=account.summary_model or policy.summary_model,
    )
    return policy if found == policy else found
