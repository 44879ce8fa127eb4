"""Values for the tests of conversations that the gateway keeps."""

from __future__ import annotations

from typing import Any

import msgspec

from proxy.store.owned import Conversations, Item, Owned
from tests.store.samples import NOW

MINE = ("t", "k")


def item(id: str, role: str = "user", turn: int = 0, text: str | None = None, **more: Any) -> Item:
    wire = msgspec.json.encode({"role": role, "content": id if text is None else text})
    return Item(id=id, turn=turn, role=role, wire=wire, created_at=NOW, **more)


def user(id: str, turn: int = 1, **more: Any) -> Item:
    return item(id, "user", turn, **more)


def answer(id: str, **more: Any) -> Item:
    return item(id, "assistant", 0, **more)


def owned(id: str = "conv_1", at: float = NOW, **more: Any) -> Owned:
    return Owned(id=id, created_at=at, last_used=at, **more)


def ids(items: tuple[Item, ...]) -> list[str]:
    return [each.id for each in items]


def turns(items: tuple[Item, ...]) -> list[int]:
    return [each.turn for each in items]


async def begin(
    kept: Conversations, run: str, *items: Item, at: float = NOW, seconds: float = 30.0, end_user: str | None = None
) -> Any:
    return await kept.begin(*MINE, "conv_1", run, items, end_user=end_user, now=at, seconds=seconds)


async def told(kept: Conversations, number: int) -> None:
    """A whole turn, whose user says u and whose answer is a, with its number."""
    await begin(kept, f"run_{number}", user(f"u{number}"))
    await kept.finish(*MINE, "conv_1", f"run_{number}", [answer(f"a{number}", final=True)], NOW)
