"""The gateway inside this process, for a question that no running server answers: the same routes, nobody listening.

Belongs here: settings that hold only here, the database or an empty one in its place, and one request after another
through the application. Never: a socket, or a route that would send something.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from proxy.app import Application, Refused
from proxy.commands.outcome import WRONG, NotDone, say
from proxy.commands.where import Where
from proxy.core.errors import StoreUnavailable
from proxy.server.lifecycle import Drain
from proxy.settings import Settings
from proxy.store.address import from_url

_EMPTY = "sqlite://"


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """One POST: where, with which query, headers (lower case) and body."""

    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes


async def answers(settings: Settings, place: Where, questions: Sequence[Question]) -> list[tuple[int, bytes]]:
    """Status and body of each. Raises NotDone, ConfigError."""
    # Nothing is deleted because somebody asked: retention is the server's work.
    settings = settings.model_copy(update={"store": settings.store.model_copy(update={"retention_days": None})})
    application = await _started(settings, place)
    try:
        return [await _answer(application, question) for question in questions]
    finally:
        await application.stop()


async def _started(settings: Settings, place: Where) -> Application:
    known = place.known
    application = Application(settings, Drain(), None if known else from_url(_EMPTY))
    try:
        try:
            await application.start()
        except StoreUnavailable as failure:
            if not known:
                raise
            say(f"{failure.message.partition(': SQLite serves one')[0]}; as if no conversation were known")
            application = Application(settings, Drain(), from_url(_EMPTY))
            await application.start()
    except Refused as refused:
        raise NotDone(str(refused), WRONG) from None
    return application


async def _answer(application: Application, question: Question) -> tuple[int, bytes]:
    stated = {"host": "127.0.0.1", "content-type": "application/json", **question.headers}
    headers = [(name.encode(), value.encode("latin-1")) for name, value in stated.items()]
    scope: dict[str, Any] = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": question.path,
        "raw_path": question.path.encode(),
        "query_string": question.query.encode(),
        "headers": headers,
    }
    status = 0
    pieces: list[bytes] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": question.body, "more_body": False}

    async def send(message: Mapping[str, Any]) -> None:
        nonlocal status
        status = message.get("status", status)
        pieces.append(message.get("body", b""))

    await application(scope, receive, send)
    return status, b"".join(pieces)
