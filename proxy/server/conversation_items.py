"""/v1/conversations/{id}/items, /rewind and /cancel: what was said in a conversation, and what is done to it.

Items are told with the blocks that only the model knows, in order, each with its audience. Never: whose a conversation
is (`conversations`), what a turn does (`conversing`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from proxy.conversing import missing
from proxy.core.errors import Conflict, NotFound
from proxy.core.steps import Caller
from proxy.core.unfolded import Part
from proxy.dialects.chat.messages import read_message
from proxy.dialects.conversation_bodies import addition, going_back
from proxy.dialects.conversation_items import items, page
from proxy.server.conversations import OfOne, as_it_stands, busy, new_items
from proxy.server.endpoints import Scope
from proxy.server.query import Page, asked_page
from proxy.server.retelling import open_calls, retold
from proxy.server.stream import Receive
from proxy.store import branches
from proxy.store.owned import Item, Owned

Shape = dict[str, Any]


class Items(OfOne):
    """GET lists what was said, the newest first; POST puts items behind it, which no model answers."""

    route = "/v1/conversations/{id}/items"
    methods = ("GET", "POST")
    known: ClassVar[tuple[str, ...]] = ("user", "limit", "after", "order")

    async def answer(
        self, method: str, caller: Caller, owned: Owned, asked: Mapping[str, str], body: bytes
    ) -> dict[str, Any]:
        if method == "POST":
            return await self._add(caller, owned, body)
        wanted = asked_page(asked)
        told = await retold(self.desk, caller, owned)
        return _page(_shapes(told.path, told.parts()), wanted)

    async def _add(self, caller: Caller, owned: Owned, body: bytes) -> Shape:
        desk = self.desk
        if owned.run is not None:
            raise busy()
        told = await retold(desk, caller, owned)
        last = told.path[-1] if told.path else None
        new = new_items(desk, last, addition(body, open_calls(told.messages)))
        changed = await desk.conversing.kept.extend(caller.tenant, caller.key, owned.id, new, desk.gateway.wall())
        if changed is None:
            raise missing()
        if changed.run is not None:
            raise busy()
        said = [read_message(item.wire, 0) for item in new]
        shapes = _shapes(branches.placed(last, new), [(Part(role=each.role, blocks=each.blocks),) for each in said])
        return page(shapes, more=False)


class OneItem(OfOne):
    """GET tells one of the items."""

    route = "/v1/conversations/{id}/items/{item}"

    async def answer(
        self, method: str, caller: Caller, owned: Owned, asked: Mapping[str, str], body: bytes
    ) -> dict[str, Any]:
        told = await retold(self.desk, caller, owned)
        found = [each for each in _shapes(told.path, told.parts()) if each["id"] == asked["item"]]
        if not found:
            raise _no_item("item")
        return found[0]


class Rewind(OfOne):
    """POST takes the last `turns` turns back: the next one begins before them. Nothing is destroyed."""

    route = "/v1/conversations/{id}/rewind"
    methods = ("POST",)

    async def answer(
        self, method: str, caller: Caller, owned: Owned, asked: Mapping[str, str], body: bytes
    ) -> dict[str, Any]:
        turns, now = going_back(body), self.desk.gateway.wall()
        back = await self.desk.conversing.kept.rewind(caller.tenant, caller.key, owned.id, turns, now)
        if back == "busy":
            raise busy()
        if back is None:
            raise missing()
        return await as_it_stands(self.desk, caller, back)


class Cancel(OfOne):
    """POST stops the running turn, wherever it runs; what was written of its answer is kept. Takes no body."""

    route = "/v1/conversations/{id}/cancel"
    methods = ("POST",)

    async def body(self, scope: Scope, receive: Receive) -> bytes:
        return b""

    async def answer(
        self, method: str, caller: Caller, owned: Owned, asked: Mapping[str, str], body: bytes
    ) -> dict[str, Any]:
        if not await self.desk.conversing.cancel(caller, owned.id):
            raise Conflict("No turn of this conversation is running.", code="nothing_runs", param="conversation")
        return await as_it_stands(self.desk, caller, await self.find(caller, owned.id))


def _shapes(path: Sequence[Item], parts: Sequence[Sequence[Part]]) -> list[Shape]:
    found = zip(path, parts, strict=True)
    return [shape for item, said in found for shape in items(item.id, item.status, item.turn, said)]


def _page(shapes: list[Shape], wanted: Page) -> Shape:
    """The part of `shapes`, which are in order, that is wanted. Raises NotFound."""
    if wanted.newest_first:
        shapes.reverse()
    first = 0
    if wanted.after is not None:
        first = next((place for place, each in enumerate(shapes, 1) if each["id"] == wanted.after), -1)
        if first < 0:
            raise _no_item("after")
    end = first + wanted.limit
    return page(shapes[first:end], more=end < len(shapes))


def _no_item(param: str) -> NotFound:
    return NotFound("There is no such item in this conversation.", code="item_not_found", param=param)
