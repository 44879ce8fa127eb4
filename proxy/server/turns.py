"""Long work on the event loop, a step at a time.

Belongs here: whose turn it is while something large is read. Never: what is read, or how large a step is: who offers
the steps knows that. A thread would not help: what is slow here (parsing, hashing) is short calls that hold the lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")


async def in_turns(work: Generator[None, None, T]) -> T:
    """What `work` returns; all others on the loop have a turn between two of its steps. Raises what it raises."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            made: T = end.value
            return made
        await asyncio.sleep(0)
