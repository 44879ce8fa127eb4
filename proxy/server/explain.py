"""POST /v1/weirgate/explain: what a chat completions request would send upstream, and why.

Belongs here: the route's own options, and who may ask: whoever could send the very request to /v1/chat/completions, and
is refused here as there. The body is that request, as it would be posted. Never: how a prompt comes about (`explaining`
drives the core through it), and nothing that is sent or stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

import msgspec

from proxy import policies
from proxy.core.errors import Malformed
from proxy.core.policy import Policy
from proxy.dialects.chat.messages import read_message
from proxy.dialects.chat.request import HEADERS, decoding
from proxy.explaining import explain
from proxy.server.body import read_body
from proxy.server.endpoints import Endpoint, Scope, adapted, identified, leads, send_json, summariser
from proxy.server.places import Place
from proxy.server.query import asked_once
from proxy.server.stream import Answering, Receive
from proxy.server.turns import in_turns

_LEAST_WINDOW: Final = 64
_MOST_WINDOW: Final = 1 << 31
_SWITCH: Final[Mapping[str, bool]] = {"true": True, "1": True, "false": False, "0": False}


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What the query asks for: the `body` that would go upstream, another `window` (tokens), another `policy` (the keys
    of a policy file, as JSON)."""

    body: bool = False
    window: int | None = None
    policy: str = ""


class Explain(Endpoint):
    """POST /v1/weirgate/explain?body=&window=&policy=: the account of one request."""

    route = "/v1/weirgate/explain"
    methods = ("POST",)

    async def work(self, scope: Scope, receive: Receive, answering: Answering) -> int:
        desk, raw = self.desk, scope["headers"]
        keys = desk.directory.keys()
        caller = identified(keys, raw)
        options = read_options(scope["query_string"])
        with Place(desk, caller, answering):
            body = await read_body(receive, raw, limit=desk.body_limit)
            headers = {name.decode(): value.decode("latin-1") for name, value in raw if name in HEADERS}
            read = partial(read_message, depth=desk.bounds.depth)
            call = await in_turns(decoding(body, caller, read, headers, desk.bounds))
            led = leads(desk.directory.destination_of(call.model, call.caller), keys, caller, call.model)
            if options.policy:
                led = msgspec.structs.replace(led, policy=_policy(options.policy, led.policy))
            destination = await adapted(desk.accounts, call, led)
            other = summariser(desk.directory, keys, caller, destination.policy.summary_model)
            other = other or summariser(desk.directory, keys, caller, led.policy.summary_model)
            told, sent = await explain(desk.gateway, call, destination, other, window=options.window)
        account = {"object": "explanation", **msgspec.structs.asdict(told)}
        if options.body:
            # As text: whoever reads it has the very bytes, which a JSON value inside JSON would not keep.
            account["body"] = None if sent is None else sent.decode("utf-8")
        await send_json(answering, account)
        return 200


def read_options(query: bytes) -> Options:
    """Raises Malformed."""
    values = asked_once(query, Options.__struct_fields__)
    body = _SWITCH.get(values.get("body", "false"))
    if body is None:
        raise Malformed("body is true or false.", code="invalid_type", param="body")
    return Options(body=body, window=_window(values.get("window")), policy=values.get("policy", ""))


def _window(value: str | None) -> int | None:
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and len(value) <= 10 and _LEAST_WINDOW <= int(value) <= _MOST_WINDOW):
        message = f"window is a whole number of tokens from {_LEAST_WINDOW} on."
        raise Malformed(message, code="out_of_range", param="window")
    return int(value)


def _policy(text: str, present: Policy) -> Policy:
    """The policy of the keys in `text`; where they state no window, that of the one in force stays."""
    try:
        values = msgspec.json.decode(text, type=dict[str, object])
        return policies.stated(values, window=present.window)
    except (msgspec.DecodeError, RecursionError):
        raise Malformed(
            "policy is a JSON object of a policy file's keys.", code="invalid_type", param="policy"
        ) from None
    except ValueError as error:
        raise Malformed(f"policy: {error}.", code="out_of_range", param="policy") from None
