"""`weirgate explain REQUEST`: what would go upstream, from the running server or, where none runs, from the gateway
inside this process. Nothing is sent, nothing is stored.

Belongs here: the request from its file, whom to ask and with which options. Never: the account itself (`accounting`
lays it out, `differing` holds two against each other), and no decision about the request.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import msgspec

from proxy import policies
from proxy.commands.accounting import show_account
from proxy.commands.differing import difference, show_difference
from proxy.commands.outcome import DONE, FAILED, WRONG, NotDone, say
from proxy.commands.running import Running, told
from proxy.commands.saved import content, conversation, members
from proxy.commands.where import KEY, Where, configuration, find
from proxy.core.explanation import Explanation
from proxy.settings import load, load_part

ROUTE: Final = "/v1/weirgate/explain"
_UPSTREAM: Final = "upstreams.main.base_url"
_NOWHERE: Final = "http://127.0.0.1:9/v1"
"""Stands for the provider where no configuration names one: nothing is sent there."""
_HINTS: Final[Mapping[int, str]] = {401: f"give the client's key with --key or in {KEY}"}


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The command line. `label` is what the client calls the conversation in a header; `other` is a second request,
    `policy` a policy file, to hold the first one against."""

    file: str
    window: int | None = None
    model: str | None = None
    line: int | None = None
    label: str | None = None
    other: str | None = None
    policy: Path | None = None
    body: bool = False
    as_json: bool = False


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """Whom to ask: a server if one runs, with this key."""

    place: Where
    config: Path | None
    environ: Mapping[str, str]
    key: str | None
    server: Running | None


Question = tuple[bytes, str]
"""A request, and the query that goes with it."""


def run(asked: Asked, url: str | None, key: str | None, config: Path | None, environ: Mapping[str, str]) -> int:
    """0; 1 where nothing would be sent or the request is refused. Raises NotDone, ConfigError."""
    if asked.other is not None and asked.policy is not None:
        raise NotDone("--diff and --policy are two comparisons: give one of them", WRONG)
    two = asked.other is not None or asked.policy is not None
    if two and asked.body and not asked.as_json:
        raise NotDone("--body shows one body: leave --diff or --policy out, or add --json", WRONG)
    at = site(url, key, config, environ)
    first = request(asked.file, asked.model, asked.line)
    questions = [(first, _query(asked, body=asked.body or two))]
    if asked.policy is not None:
        questions.append((first, _query(asked, body=True, policy=_policy(asked.policy, at))))
    elif asked.other is not None:
        questions.append((request(asked.other, asked.model, asked.line), _query(asked, body=True)))
    answers = ask(at, questions, _headers(asked.label))
    if two:
        names = (asked.file, asked.other or f"{asked.file} under {asked.policy}")
        return _compared(asked, answers, names)
    (answer,) = answers
    if asked.as_json:
        _json(answer)
    elif asked.body:
        return _body(answer)
    else:
        show_account(account(answer))
    return DONE


def request(file: str, model: str | None, line: int | None) -> bytes:
    """The body that would be posted: the file as it is, if it is a request; else one made of what it holds. `model`
    replaces the one that it names. Raises NotDone."""
    data = content(file)
    if model is None and line is None and data.lstrip()[:1] == b"{" and members(data.strip()) is not None:
        return data
    found = conversation(data, line)
    if model is not None:
        found["model"] = msgspec.Raw(msgspec.json.encode(model))
    if "model" not in found:
        raise NotDone(f"{file} names no model: give --model", WRONG)
    return msgspec.json.encode(found)


def site(url: str | None, key: str | None, config: Path | None, environ: Mapping[str, str]) -> Site:
    """Raises NotDone."""
    secret = (key or "").strip()
    if not secret.isascii() or not secret.isprintable():
        raise NotDone("the key holds something that is no secret", WRONG)
    path = configuration(config)
    place = find(path, url, environ)
    server = Running(place.server, secret or None, _HINTS)
    running = server.answers()
    if not running and url is not None:
        raise NotDone(f"no server answers at {place.server}")
    return Site(place=place, config=path, environ=environ, key=secret or None, server=server if running else None)


def ask(at: Site, questions: Sequence[Question], headers: Mapping[str, str]) -> list[dict[str, Any]]:
    """An answer to each. Raises NotDone for a refusal, ConfigError."""
    if at.server is not None:
        say(f"from the server at {at.server.root}")
        prefix = ROUTE.removeprefix("/v1/weirgate/")
        return [at.server.post(f"{prefix}{query}", msgspec.Raw(body), headers) for body, query in questions]
    # Here, because it is the whole gateway: where a server answers, none of it is needed.
    from proxy.commands import inside

    overrides = {} if at.config is not None or _configured(at.environ) else {_UPSTREAM: _NOWHERE}
    known = at.place.known
    source = f"from {at.place.database}" if known else "as if no conversation were known"
    say(f"no server answers at {at.place.server}; {source}")
    if at.key is not None:
        headers = {**headers, "authorization": f"Bearer {at.key}"}
    asked = [
        inside.Question(path=ROUTE, query=query.removeprefix("?"), headers=headers, body=body)
        for body, query in questions
    ]
    found = asyncio.run(inside.answers(load(at.config, at.environ, overrides), at.place, asked))
    return [told(status, body, "refused", _HINTS) for status, body in found]


def account(answer: Mapping[str, Any]) -> Explanation:
    """What the route answers, as the core's value. Raises NotDone where it is another version's."""
    try:
        return msgspec.json.decode(msgspec.json.encode(answer), type=Explanation)
    except msgspec.ValidationError as failure:
        raise NotDone(f"the server explains in another form ({failure}): use its own version of weirgate") from None


def _headers(label: str | None) -> Mapping[str, str]:
    """Raises NotDone."""
    if label is not None and not (label.isascii() and label.isprintable() and label.strip()):
        raise NotDone("a label is plain ASCII, as headers are", WRONG)
    return {} if label is None else {"x-session-id": label}


def _configured(environ: Mapping[str, str]) -> bool:
    return any(name.upper().startswith("WEIRGATE_UPSTREAMS__") for name in environ)


def _query(asked: Asked, *, body: bool, policy: str | None = None) -> str:
    named = {"body": "true" if body else None, "window": asked.window, "policy": policy}
    query = urlencode({name: value for name, value in named.items() if value is not None})
    return f"?{query}" if query else ""


def _policy(file: Path, at: Site) -> str:
    """The keys of `file` and of the default policy behind it, for the route. Raises NotDone, ConfigError."""
    if not file.is_file():
        raise NotDone(f"there is no policy file {file}", WRONG)
    folder = load_part(at.config, at.environ, ("policies",)).policies or policies.shipped()
    return msgspec.json.encode(policies.single(file, folder)).decode()


def _compared(asked: Asked, answers: Sequence[dict[str, Any]], names: tuple[str, str]) -> int:
    first, second = (account(answer) for answer in answers)
    bodies = tuple(str(answer.get("body") or "").encode() for answer in answers)
    found = difference(first, second, (bodies[0], bodies[1]))
    if asked.as_json:
        shown = answers if asked.body else [{**answer, "body": None} for answer in answers]
        _json({"object": "difference", "first": shown[0], "second": shown[1], "difference": found})
    else:
        show_difference(first, second, found, names)
    return DONE


def _body(answer: Mapping[str, Any]) -> int:
    """The very bytes, and not one more."""
    body = answer.get("body")
    if body is None:
        say(str(answer.get("why")))
        return FAILED
    sys.stdout.flush()
    sys.stdout.buffer.write(str(body).encode())
    return DONE


def _json(value: Mapping[str, Any]) -> None:
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")
