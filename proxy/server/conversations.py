"""/v1/conversations: the conversations that the gateway keeps, for the key whose they are.

Belongs here: making, listing, describing and deleting them, and whose one is. A key reaches its own; `?user=` names an
end user of it, whose conversations are his alone. Another's is one that does not exist. Never: their turns
(`conversing`), their items (`conversation_items`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import msgspec

from proxy.conversing import missing
from proxy.core.errors import Conflict, NotFound
from proxy.core.steps import Caller
from proxy.dialects.conversation_bodies import Wire, creation, description
from proxy.dialects.conversation_items import conversation, deleted, page
from proxy.server.auth import Keys
from proxy.server.body import read_body
from proxy.server.desk import Desk
from proxy.server.endpoints import Endpoint, Scope, identified, send_json
from proxy.server.places import Place
from proxy.server.query import asked_once, asked_page, named_user
from proxy.server.retelling import paused, retold, state
from proxy.server.stream import Answering, Receive
from proxy.store import branches
from proxy.store.owned import Item, Owned

_ID: Final = re.compile(r"[!-~]{1,128}")


class Conversations(Endpoint):
    """GET lists them, the newest first; POST makes one."""

    route = "/v1/conversations"
    methods = ("GET", "POST")

    async def work(self, scope: Scope, receive: Receive, answering: Answering) -> int:
        caller = identified(self.desk.directory.keys(), scope["headers"])
        with Place(self.desk, caller, answering):
            if scope["method"] == "POST":
                asked_once(scope["query_string"], ())
                body = await read_body(receive, scope["headers"], limit=self.desk.body_limit)
                value = await self._create(caller, body)
            else:
                value = await self._list(caller, asked_once(scope["query_string"], ("user", "limit", "after", "order")))
        await send_json(answering, value)
        return 200

    async def _create(self, caller: Caller, body: bytes) -> Mapping[str, object]:
        desk, kept = self.desk, self.desk.conversing.kept
        asked = creation(body)
        now = desk.gateway.wall()
        owned = Owned(
            id=desk.gateway.names.fresh("conv_"),
            created_at=now,
            last_used=now,
            end_user=asked.end_user,
            metadata=asked.metadata,
        )
        await kept.create(caller.tenant, caller.key, owned, new_items(desk, None, asked.messages))
        return conversation(owned.id, owned.created_at, owned.metadata)

    async def _list(self, caller: Caller, asked: Mapping[str, str]) -> Mapping[str, object]:
        kept, now = self.desk.conversing.kept, self.desk.gateway.wall()
        user, wanted = named_user(asked), asked_page(asked)
        if wanted.after is not None and await kept.find(caller.tenant, caller.key, known_id(wanted.after), now) is None:
            raise NotFound("The conversation does not exist here.", code="conversation_not_found", param="after")
        found = await kept.listed(
            caller.tenant,
            caller.key,
            now,
            end_user=user,
            after=wanted.after,
            limit=wanted.limit + 1,
            newest_first=wanted.newest_first,
        )
        shown = [conversation(each.id, each.created_at, each.metadata) for each in found[: wanted.limit]]
        return page(shown, more=len(found) > wanted.limit)


class OfOne(Endpoint):
    """A route about one conversation of the caller's. `known` are the parameters that it takes; what is `asked` is
    these, and those of the path."""

    known: ClassVar[tuple[str, ...]] = ("user",)

    async def work(self, scope: Scope, receive: Receive, answering: Answering) -> int:
        caller, asked = self.asked(scope, self.desk.directory.keys())
        with Place(self.desk, caller, answering):
            owned = await self.find(caller, scope["path_params"]["id"])
            body = b"" if scope["method"] in ("GET", "DELETE") else await self.body(scope, receive)
            value = await self.answer(scope["method"], caller, owned, {**scope["path_params"], **asked}, body)
        await send_json(answering, value)
        return 200

    def asked(self, scope: Scope, keys: Keys) -> tuple[Caller, Mapping[str, str]]:
        """Who asks, as the end user that he names, and for what. Raises Unauthorised, Malformed."""
        caller = identified(keys, scope["headers"])
        # What is asked to be included is told anyway.
        asked = asked_once(scope["query_string"], self.known, aside=("include", "include[]"))
        return msgspec.structs.replace(caller, end_user=named_user(asked)), asked

    async def body(self, scope: Scope, receive: Receive) -> bytes:
        return await read_body(receive, scope["headers"], limit=self.desk.body_limit)

    async def find(self, caller: Caller, id: str) -> Owned:
        """The conversation, if it is the caller's. Raises NotFound."""
        return await self.desk.conversing.find(caller, known_id(id))

    async def answer(
        self, method: str, caller: Caller, owned: Owned, asked: Mapping[str, str], body: bytes
    ) -> dict[str, Any]:
        raise NotFound("There is nothing here.")


class Conversation(OfOne):
    """GET tells how it stands; POST replaces its metadata; DELETE deletes it with its items, while no turn runs."""

    route = "/v1/conversations/{id}"
    methods = ("GET", "POST", "DELETE")

    async def answer(
        self, method: str, caller: Caller, owned: Owned, asked: Mapping[str, str], body: bytes
    ) -> dict[str, Any]:
        kept, now = self.desk.conversing.kept, self.desk.gateway.wall()
        if method == "DELETE":
            gone = await kept.delete(caller.tenant, caller.key, owned.id, now)
            if gone == "busy":
                raise busy()
            if not gone:
                raise missing()
            return deleted(owned.id)
        if method == "POST":
            changed = await kept.describe(caller.tenant, caller.key, owned.id, description(body), now)
            if changed is None:
                raise missing()
            return conversation(changed.id, changed.created_at, changed.metadata)
        return await as_it_stands(self.desk, caller, owned)


async def as_it_stands(desk: Desk, caller: Caller, owned: Owned) -> dict[str, Any]:
    """A conversation with its state."""
    told = await retold(desk, caller, owned)
    return conversation(owned.id, owned.created_at, owned.metadata) | {
        "weirgate": state(owned, told, paused=paused(desk, caller, owned, told))
    }


def new_items(desk: Desk, last: Item | None, messages: tuple[Wire, ...]) -> tuple[Item, ...]:
    """`messages` as items that are put behind `last`."""
    now = desk.gateway.wall()
    made = [
        Item(id=desk.gateway.names.fresh("msg_"), turn=0, role=each.role, wire=each.wire, created_at=now)
        for each in messages
    ]
    return branches.numbered(last, made)


def known_id(id: str) -> str:
    """`id`, if it can be one. Raises NotFound."""
    if _ID.fullmatch(id) is None:
        raise missing()
    return id


def busy() -> Conflict:
    """A turn runs, and what was asked for would change what it rests on."""
    return Conflict("A turn of this conversation is running.", code="conversation_busy", param="conversation")
