"""OpenAI's embeddings, as far as a gateway must understand them: the model's name in, the usage out."""

from __future__ import annotations

import msgspec

from proxy.core.usage import Usage
from proxy.dialects.chat.reply import read_usage
from proxy.dialects.members import open_members, present, refuse_routing, typed
from proxy.dialects.strict import fail


class EmbeddingCall(msgspec.Struct, frozen=True, kw_only=True):
    """One request; `body` is what goes upstream once `renamed`."""

    model: str
    end_user: str | None
    fields: dict[str, bytes]
    body: bytes


def decode_embeddings(body: bytes, depth: int = 64) -> EmbeddingCall:
    """Raises Malformed."""
    fields, _ = open_members(body, depth)
    model = typed(fields, "model", str)
    if not model:
        raise fail("The request names no model.", "model", "missing_required_parameter")
    if not present(fields, "input"):
        raise fail("The request has no input.", "input", "missing_required_parameter")
    refuse_routing(fields, but=("input",))
    return EmbeddingCall(model=model, end_user=typed(fields, "user", str), fields=fields, body=body)


def renamed(call: EmbeddingCall, model: str) -> bytes:
    """The body with the upstream's name for the model; the client's own bytes where the name is the same."""
    if model == call.model:
        return call.body
    fields = {**call.fields, "model": msgspec.json.encode(model)}
    return b"{" + b",".join(msgspec.json.encode(name) + b":" + raw for name, raw in fields.items()) + b"}"


def read_embeddings_usage(body: bytes) -> Usage | None:
    """The usage of an answer; None where it states none."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    return read_usage(value.get("usage")) if isinstance(value, dict) else None
