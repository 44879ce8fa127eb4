"""POST /v1/embeddings: passed through, accounted for. There is no conversation to keep, so nothing is read or changed
but the model's name."""

from __future__ import annotations

from proxy.core.usage import UsageRow
from proxy.dialects.embeddings import decode_embeddings, read_embeddings_usage, renamed
from proxy.passing import pass_on
from proxy.server.body import read_body
from proxy.server.endpoints import Endpoint, Scope, identified, leads
from proxy.server.places import Place
from proxy.server.stream import Answering, Receive, Watch
from proxy.upstream import Request

_BYTES = 4
"""Of a request for one token, as it is expected: texts are most of it."""


class Embeddings(Endpoint):
    """For holders of a client key."""

    route = "/v1/embeddings"
    methods = ("POST",)

    async def work(self, scope: Scope, receive: Receive, answering: Answering) -> int:
        desk = self.desk
        raw = scope["headers"]
        keys = desk.directory.keys()
        caller = identified(keys, raw)
        with Place(desk, caller, answering) as place:
            asked = await read_body(receive, raw, limit=desk.body_limit)
            call = decode_embeddings(asked, desk.bounds.depth)
            destination = leads(desk.directory.destination(call.model), keys, caller, call.model)
            place.expect(len(asked) // _BYTES, 0, destination)
            target, policy = destination.target, destination.policy
            authorization = next((value.decode("latin-1") for name, value in raw if name == b"authorization"), None)
            row = UsageRow(
                id=desk.gateway.names.fresh("use_"),
                request=answering.request_id,
                purpose="embeddings",
                tenant=caller.tenant,
                key=caller.key,
                end_user=call.end_user,
                upstream=target.upstream.name,
                asked_model=call.model,
                model=target.card.name,
                opened_at=desk.gateway.wall(),
                policy=policy.name,
                policy_hash=policy.hash,
                mode="off",
            )
            request = Request(
                path="/embeddings",
                body=renamed(call, target.card.name),
                authorization=authorization,
                request_id=answering.request_id,
            )
            with Watch(receive, desk.watches) as watch, desk.drain.at_end(watch.end):
                body = await pass_on(desk.gateway, request, destination, row, read_embeddings_usage)
        head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await answering.whole(200, [*head, *answering.headers()], body)
        return 200
