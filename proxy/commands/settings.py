"""`weirgate settings`: what an account wants of its own conversations, through the running server.

Belongs here: reading the command line, asking with the client's own key, and laying out what came back. Never: the
operator's secret, which opens nobody's account, and the database: whose key it is only the server knows.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec

from proxy.commands.outcome import DONE, WRONG, NotDone, say
from proxy.commands.running import Running
from proxy.commands.table import Column, show
from proxy.commands.where import KEY, configuration, find
from proxy.core.account import Account

NONE: Final = "none"
"""What takes a setting back."""
_HINTS: Final[Mapping[int, str]] = {401: f"give the client's key with --key or in {KEY}"}


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """Whose settings, and where: `user` is an end user of the key (None: the key itself)."""

    server: Running
    user: str | None

    @property
    def path(self) -> str:
        return "settings" if self.user is None else f"settings?user={quote(self.user, safe='')}"

    @property
    def whose(self) -> str:
        return "the key's own" if self.user is None else f"those of {self.user}"


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What `set` was asked for, as typed; None leaves a setting as it is."""

    automatic: str | None = None
    threshold: str | None = None
    models: tuple[str, ...] = ()
    summary_model: str | None = None


def site(config: Path | None, url: str | None, key: str | None, user: str | None, environ: Mapping[str, str]) -> Site:
    """Raises NotDone where no server answers."""
    place = find(configuration(config), url, environ)
    secret = (key or "").strip()
    if not secret.isascii() or not secret.isprintable():
        raise NotDone("the key holds something that is no secret", WRONG)
    server = Running(place.server, secret or None, _HINTS)
    if not server.answers():
        raise NotDone(f"no server answers at {place.server}; name it with --url or its configuration with --config")
    return Site(server=server, user=user)


def show_settings(at: Site, form: str) -> int:
    """What holds now."""
    _print(at, at.server.get(at.path), form)
    return DONE


def change(at: Site, wanted: Wanted, form: str) -> int:
    """Replace what was named, leave the rest."""
    if wanted == Wanted():
        raise NotDone("nothing to set: name at least one of --automatic, --threshold, --model, --summary-model", WRONG)
    settings = at.server.get(at.path)
    if wanted.automatic is not None:
        settings["automatic"] = wanted.automatic == "on"
    if wanted.threshold is not None:
        settings["threshold"] = share(wanted.threshold)
    for stated in wanted.models:
        name, _, value = stated.rpartition("=")
        if not name:
            raise NotDone(f"'{stated[:80]}' is no NAME=SHARE, such as small=0.6", WRONG)
        settings["thresholds"].pop(name, None)
        if (at_share := share(value)) is not None:
            settings["thresholds"][name] = at_share
    if wanted.summary_model is not None:
        settings["summary_model"] = None if wanted.summary_model == NONE else wanted.summary_model
    _print(at, at.server.put(at.path, settings), form)
    return DONE


def reset(at: Site) -> int:
    """As if nothing had ever been set."""
    at.server.put(at.path, {})
    say(f"{at.whose} settings are the operator's again")
    return DONE


def share(text: str) -> float | None:
    """`0.7` or `70%`; None for `none`. The server knows the bounds. Raises NotDone."""
    if text == NONE:
        return None
    number, percent, rest = text.strip().partition("%")
    try:
        value = round(float(number) / 100, 6) if percent else float(number)
    except ValueError:
        value = float("nan")
    if rest or not 0 < value < 1:
        raise NotDone(f"'{text[:40]}' is no share of the window: write 0.7, 70% or {NONE}", WRONG)
    return value


def _print(at: Site, settings: Mapping[str, Any], form: str) -> None:
    if form == "json":
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(settings), indent=2).decode() + "\n")
        return
    account = msgspec.convert(settings, Account)
    rows = [("automatic compaction", "on" if account.automatic else "off")]
    rows.append(("threshold", _told(account.threshold)))
    rows += [(f"threshold of {model}", _told(value)) for model, value in sorted(account.thresholds.items())]
    rows.append(("summary model", account.summary_model or "the policy's"))
    show([Column(name="setting", right=False), Column(name="value", right=False)], rows)


def _told(threshold: float | None) -> str:
    return "the policy's" if threshold is None else f"{threshold * 100:g} %"
