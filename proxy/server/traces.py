"""/v1/weirgate/conversations/{id}/traces: which skills a conversation had, for the caller whose conversation it is.

The id is what `x-weirgate-conversation` said. A conversation of another tenant, key or end user is one that does not
exist; what was said is told nobody.
"""

from __future__ import annotations

import msgspec

from proxy.core.errors import NotFound
from proxy.server.endpoints import Endpoint, Scope, identified, send_json
from proxy.server.places import Place
from proxy.server.query import asked_user
from proxy.server.stream import Answering, Receive


class Traces(Endpoint):
    """GET: the entries, oldest first. `?user=` names the end user, as a request would."""

    route = "/v1/weirgate/conversations/{id}/traces"

    async def work(self, scope: Scope, receive: Receive, answering: Answering) -> int:
        desk = self.desk
        key = identified(desk.directory.keys(), scope["headers"])
        caller = msgspec.structs.replace(key, end_user=asked_user(scope["query_string"]))
        with Place(desk, key, answering):
            root = desk.gateway.snapshots.scope_of(caller)
            found = await desk.gateway.store.traces(caller.tenant, root, scope["path_params"]["id"])
        if not found:
            raise NotFound("There are no traces of this conversation here.", param="id")
        await send_json(answering, {"object": "list", "data": [msgspec.structs.asdict(each) for each in found]})
        return 200
