"""The last thing between a bug of ours and a client.

Belongs here: one ASGI wrapper that turns whatever escapes the application into the JSON 500 of the error contract.
Never: errors that are part of serving a request (endpoints answer those). uvicorn would answer in plain text and write
the exception's text into the log, where it may be somebody's message.
"""

from __future__ import annotations

import logging
import traceback

from starlette.types import ASGIApp, Receive, Scope, Send

from proxy.core.errors import Internal
from proxy.server.errors import error_response
from proxy.server.head import request_id

_log = logging.getLogger(__name__)


class Fence:
    """Wraps the whole application, lifespan included (a failure there is let through: it must stop the start)."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self.app(scope, receive, send)
        except Exception as bug:
            if scope["type"] != "http":
                raise
            await _answer(bug, scope, send)


async def _answer(bug: Exception, scope: Scope, send: Send) -> None:
    identity = request_id(scope["headers"])
    _log.error("a bug: %s at %s; request %s", type(bug).__name__, where(bug), identity)
    status, headers, body = error_response(Internal("The gateway failed to serve this request."), identity)
    try:
        await send({"type": "http.response.start", "status": status, "headers": headers})
    except RuntimeError:
        # An answer has begun. Returning leaves it incomplete, and the server then cuts the connection: a broken
        # answer never looks whole.
        return
    await send({"type": "http.response.body", "body": body})


def where(bug: BaseException) -> str:
    """The innermost frames as `file:line name`, without the exception's text and without source lines."""
    frames = traceback.extract_tb(bug.__traceback__)[-4:]
    return " < ".join(f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in reversed(frames))
