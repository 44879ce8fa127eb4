"""What is to be awaited for work that seldom has to wait.

A plain function does its work at once and returns DONE, or, where it would have to wait, returns the work as `Later`:
nothing of it has happened before that is awaited, and it may be dropped. Whoever cannot wait asks which he was given;
whoever can awaits either.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")


class _Done:
    __slots__ = ()

    def __await__(self) -> Generator[Any, Any, None]:
        return iter(())  # type: ignore[return-value]  # an iterator is all that an await asks for


DONE: Final[Awaitable[None]] = _Done()


class Later(Generic[T]):
    """`work` on `what`, begun when it is awaited; a coroutine would complain where it is not."""

    __slots__ = ("_what", "_work")

    def __init__(self, work: Callable[[T], Coroutine[Any, Any, None]], what: T) -> None:
        self._work = work
        self._what = what

    def __await__(self) -> Generator[Any, Any, None]:
        return self._work(self._what).__await__()
