"""/v1/conversations/{id}/compact: what `/compact` does as a message, for those who have no message to type it in.

Belongs here: the body, and the turn that it is. Never: what a command does (`core.commanded`), or when it is refused.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import msgspec

from proxy.conversing import Said
from proxy.core.command import given
from proxy.core.errors import Malformed
from proxy.core.steps import Call, Caller
from proxy.dialects.chat.messages import read_message
from proxy.dialects.chat.request import decoding
from proxy.dialects.conversation_bodies import Compacting, compacting
from proxy.server.auth import Keys
from proxy.server.body import read_body
from proxy.server.conversations import OfOne, as_it_stands
from proxy.server.endpoints import Scope, leads, send_json, turned
from proxy.server.places import Place
from proxy.server.stream import Answering, Receive, Watch
from proxy.server.turns import in_turns
from proxy.store.owned import Owned
from proxy.turn import Asked

_AUTHORIZATION: Final = b"authorization"


class Compact(OfOne):
    """POST compacts the conversation now, in a turn of its own; `keep` says what to keep, in one line. The model is
    that of the last answer, unless `model` names another."""

    route = "/v1/conversations/{id}/compact"
    methods = ("POST",)

    async def work(self, scope: Scope, receive: Receive, answering: Answering) -> int:
        desk, keys = self.desk, self.desk.directory.keys()
        caller, _ = self.asked(scope, keys)
        with Place(desk, caller, answering) as place:
            owned = await self.find(caller, scope["path_params"]["id"])
            wanted = compacting(await read_body(receive, scope["headers"], limit=desk.body_limit))
            call = await self._call(caller, owned, wanted)
            leads(desk.directory.destination_of(call.model, call.caller), keys, caller, call.model)
            with Watch(receive, desk.watches) as watch, desk.drain.at_end(watch.end):
                value = await self._compact(keys, call, owned, scope, place, answering)
            told = await as_it_stands(desk, caller, await self.find(caller, owned.id))
        await send_json(answering, told | {"compaction": value})
        return 200

    async def _call(self, caller: Caller, owned: Owned, wanted: Compacting) -> Call:
        """The request that a client would make who types it. Raises Malformed."""
        desk = self.desk
        path = await desk.conversing.kept.path(caller.tenant, caller.key, owned.id)
        model = wanted.model or next((item.model for item in reversed(path) if item.model), None)
        if model is None:
            raise Malformed("model is required: nothing was answered yet.", code="missing_required_parameter",
                            param="model")  # fmt: skip
        said = [{"role": "user", "content": f"/compact {wanted.keep}".rstrip()}]
        body = msgspec.json.encode({"model": model, "messages": said})
        read = partial(read_message, depth=desk.bounds.depth)
        call = await in_turns(decoding(body, caller, read, {}, desk.bounds))
        if given(call.messages) is None:
            raise Malformed("keep is what to keep, in plain words.", code="out_of_range", param="keep")
        return call

    async def _compact(
        self, keys: Keys, call: Call, owned: Owned, scope: Scope, place: Place, answering: Answering
    ) -> Any:
        """What became of it."""
        desk = self.desk
        stated = dict(scope["headers"]).get(_AUTHORIZATION)
        headers = {} if stated is None else {"authorization": stated.decode("latin-1")}
        asked = Asked(call=call, id=owned.id, interject=False, request=answering.request_id)
        read = partial(read_message, depth=desk.bounds.depth)
        answer = await turned(desk, keys, asked, place, answering, headers, read)
        assert not isinstance(answer, Said), "it was sent once, and spoke into nothing"
        return msgspec.to_builtins(answer.outcome.said)
