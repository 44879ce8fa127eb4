"""Speaking to a running server: the routes under /v1/weirgate/ over plain HTTP.

Belongs here: one request, one answer, and what a refusal means for the person at the terminal. Never: a proxy or a
password file from the environment, a redirect, or more of an answer than fits: the secret goes to the address that was
named and nowhere else.
"""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import msgspec

from proxy.commands.outcome import NotDone

NONE: Final[Mapping[str, str]] = MappingProxyType({})
_KNOCK: Final = 2.0
"""Seconds for a server to say that it is there."""
_PATIENCE: Final = 60.0
_MOST: Final = 256 * 1024 * 1024
_HINTS: Final[Mapping[int, str]] = {
    401: "set WEIRGATE_ADMIN to the server's admin secret",
    403: "set admin.secret in the server's configuration",
}


class Running:
    """A server at `root` (no /v1). `secret` is sent as bearer token; `hints` say what would help, by status."""

    def __init__(self, root: str, secret: str | None, hints: Mapping[int, str] = _HINTS) -> None:
        self.root = root
        self._secret = secret
        self._hints = hints

    def answers(self) -> bool:
        """Whether a Weirgate is there. Raises NotDone where something else is."""
        try:
            status, body = self._ask("GET", "/healthz", None, _KNOCK)
        except OSError:
            return False
        if status == 200 and _decoded(body) == {"status": "ok"}:
            return True
        raise NotDone(f"what answers at {self.root} is no Weirgate; name another address with --url")

    def ready(self) -> str | None:
        """What keeps it from serving, or None."""
        status, body = self._ask("GET", "/readyz", None, _KNOCK)
        return None if status == 200 else _message(_decoded(body)) or "it is draining"

    def get(self, path: str, **asked: object) -> dict[str, Any]:
        """The answer of an operator's route. Parameters that are None are not asked for."""
        query = urlencode({name: value for name, value in asked.items() if value is not None})
        return self._answer("GET", f"/v1/weirgate/{path}" + (f"?{query}" if query else ""), None)

    def post(self, path: str, body: object = None, headers: Mapping[str, str] = NONE) -> dict[str, Any]:
        return self._answer("POST", f"/v1/weirgate/{path}", body, headers)

    def patch(self, path: str, body: object) -> dict[str, Any]:
        return self._answer("PATCH", f"/v1/weirgate/{path}", body)

    def put(self, path: str, body: object) -> dict[str, Any]:
        return self._answer("PUT", f"/v1/weirgate/{path}", body)

    def _answer(self, method: str, path: str, body: object, more: Mapping[str, str] = NONE) -> dict[str, Any]:
        try:
            status, answer = self._ask(method, path, body, _PATIENCE, more)
        except OSError as failure:
            raise NotDone(f"{self.root} does not answer: {failure.strerror or type(failure).__name__}") from None
        return told(status, answer, self.root, self._hints)

    def _ask(
        self, method: str, path: str, body: object, seconds: float, more: Mapping[str, str] = NONE
    ) -> tuple[int, bytes]:
        parts = urlsplit(self.root)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        headers = {**more, **({"authorization": f"Bearer {self._secret}"} if self._secret else {})}
        data = None
        if body is not None:
            data = msgspec.json.encode(body)
            headers["content-type"] = "application/json"
        connection = kind(parts.hostname or "", parts.port, timeout=seconds)
        try:
            connection.request(method, parts.path + path, body=data, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read(_MOST)
        except http.client.HTTPException as failure:
            raise NotDone(f"what answers at {self.root} does not speak HTTP ({type(failure).__name__})") from None
        finally:
            connection.close()


def told(status: int, body: bytes, who: str, hints: Mapping[int, str]) -> dict[str, Any]:
    """The answer of `who`. Raises NotDone for a refusal, in its own words and with what would help."""
    value = _decoded(body)
    if status == 200 and isinstance(value, dict):
        return value
    hint = hints.get(status)
    said = _message(value) or f"it answers {status}"
    raise NotDone(f"{who}: {said}" + (f" ({hint})" if hint else ""))


def _decoded(body: bytes) -> object:
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:
        return None


def _message(value: object) -> str:
    """The message of an error body."""
    error = value.get("error") if isinstance(value, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return message if isinstance(message, str) else ""
