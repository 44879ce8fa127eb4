"""/v1/weirgate/settings: what an account wants of its own conversations, read and replaced by its own key.

Belongs here: whose settings are meant, and what may be asked for. A key reaches itself and the end users it names with
`?user=`, which are its own: the same name under another key is somebody else. Never: what a setting does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from proxy.core.account import LEAST, MODELS, MOST, NAME, Account
from proxy.core.errors import ClientError, Malformed
from proxy.core.steps import Caller
from proxy.dialects.strict import read_object
from proxy.server.body import read_body
from proxy.server.desk import Desk
from proxy.server.endpoints import Endpoint, Scope, identified, send_json, summariser
from proxy.server.places import Place
from proxy.server.query import asked_user
from proxy.server.stream import Answering, Receive

_BODY: Final = 128 * 1024
_DEPTH: Final = 3
_MEMBERS: Final = Account.__struct_fields__


class OwnSettings(Endpoint):
    """GET tells the settings whole, PUT replaces them whole: what is left out is as if it had never been set."""

    route = "/v1/weirgate/settings"
    methods = ("GET", "PUT")

    async def work(self, scope: Scope, receive: Receive, answering: Answering) -> int:
        desk, headers = self.desk, scope["headers"]
        key = identified(desk.directory.keys(), headers)
        caller = msgspec.structs.replace(key, end_user=asked_user(scope["query_string"]))
        with Place(desk, key, answering):
            if scope["method"] == "PUT":
                account = read_account(await read_body(receive, headers, limit=_BODY))
                _reachable(desk, key, account.summary_model)
                await desk.accounts.replace(caller, account, desk.gateway.wall())
            else:
                # From the store: what a call may do without, whoever asks for it may not.
                stored = await desk.gateway.store.account(caller.tenant, caller.key, caller.end_user)
                account = stored or Account()
        await send_json(answering, msgspec.structs.asdict(account))
        return 200


def read_account(body: bytes) -> Account:
    """The settings that `body` states. Raises Malformed, whose `param` is the setting that is wrong."""
    value = read_object(body, _MEMBERS, _DEPTH)
    automatic = value.get("automatic", True)
    if not isinstance(automatic, bool):
        raise _wrong("automatic", "true or false")
    threshold, model = value.get("threshold"), value.get("summary_model")
    return Account(
        automatic=automatic,
        threshold=None if threshold is None else _share(threshold, "threshold"),
        thresholds=_thresholds(value.get("thresholds", {})),
        summary_model=None if model is None else _name(model, "summary_model"),
    )


def _thresholds(value: object) -> Mapping[str, float]:
    if not isinstance(value, dict):
        raise _wrong("thresholds", "an object of model names and shares")
    if len(value) > MODELS:
        raise _out("thresholds", f"has at most {MODELS} models")
    return {_name(model, "thresholds"): _share(share, "thresholds") for model, share in value.items()}


def _share(value: Any, param: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(param, "a number" if param == "threshold" else "an object of model names and shares")
    if not LEAST <= value <= MOST:
        raise _out(param, f"is a share of the window from {LEAST:.2f} to {MOST:.2f}")
    return float(value)


def _name(value: Any, param: str) -> str:
    if not isinstance(value, str):
        raise _wrong(param, "a model's name")
    if not 0 < len(value) <= NAME or not value.isprintable():
        raise _out(param, f"takes model names of 1 to {NAME} printable characters")
    return value


def _reachable(desk: Desk, key: Caller, model: str | None) -> None:
    """Raises ClientError where `model` is none that this key may call; an unknown one is not told apart."""
    if model is not None and summariser(desk.directory, desk.directory.keys(), key, model) is None:
        message = "The summary model must be one that this key may call."
        raise ClientError(message, code="model_not_found", param="summary_model")


def _wrong(param: str, what: str) -> Malformed:
    return Malformed(f"{param} is {what}.", code="invalid_type", param=param)


def _out(param: str, what: str) -> Malformed:
    return Malformed(f"{param} {what}.", code="out_of_range", param=param)
