"""What the same tokens would cost at a provider: money is whole nano-dollars, as everywhere in the house.

The local model costs nothing, so a well-known model's prices from the gateway's own catalogue stand in.
"""

from __future__ import annotations

from collections.abc import Sequence

from demo.talk import Spoken
from proxy.catalogue import Catalogue
from proxy.core.policy import Tariff

PRICED_AS = "gpt-4o-mini"
NANO = 1_000_000_000


def cost(spoken: Sequence[Spoken], tariff: Tariff) -> int:
    """Nano-dollars for every reported token, without a discount for cached ones."""
    return sum(one.prompt * tariff.input + one.completion * tariff.output for one in spoken)


def dollars(nano: int) -> str:
    return f"${nano / NANO:.4f}"


def sentence(direct: Sequence[Spoken], through: Sequence[Spoken]) -> str:
    """One line: both costs, the model they are priced as, and the version of the price list."""
    card = Catalogue().card(PRICED_AS)
    if card is None or card.tariff is None:
        return f"no price for {PRICED_AS} in the catalogue"
    tariff = card.tariff
    tokens = sum(one.prompt + one.completion for one in through)
    return (
        f"{tokens:,} tokens through Weirgate would cost {dollars(cost(through, tariff))} as {PRICED_AS}; "
        f"the direct turns {dollars(cost(direct, tariff))} ({tariff.source} {tariff.version}, no cache discount)"
    )
