"""All mutations, in the order of docs/failure-modes.md."""

from __future__ import annotations

from tests.mutations import loops, money, quality, refusals, sizes, state, structure
from tests.mutations.listed import Mutation


def _place(mutation: Mutation) -> int:
    return int(mutation.row[1:])


MUTATIONS: tuple[Mutation, ...] = tuple(
    sorted(
        (
            *structure.MUTATIONS,
            *sizes.MUTATIONS,
            *refusals.MUTATIONS,
            *loops.MUTATIONS,
            *quality.MUTATIONS,
            *state.MUTATIONS,
            *money.MUTATIONS,
        ),
        key=_place,
    )
)
