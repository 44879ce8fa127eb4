"""`weirgate doctor`: is this installation sound, line by line, and what is the next step where it is not.

Belongs here: asking each part how it is. Never: putting anything right, or a check that costs money; the only thing a
provider is asked for is its list of models. Secrets and what providers answer are never shown.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final, Literal

import msgspec

from proxy import __version__
from proxy.app import upstream_of
from proxy.catalogue import Catalogue, ranks_folder, verify
from proxy.check import check
from proxy.commands.outcome import DONE, FAILED, NotDone
from proxy.commands.running import Running
from proxy.commands.table import plain
from proxy.commands.where import Where, configuration, find, opened, running
from proxy.configfile import ConfigError
from proxy.core.errors import StoreUnavailable, UpstreamError
from proxy.settings import Settings, load
from proxy.store import Calibration
from proxy.upstream import Request
from proxy.upstream.counter import Counter

_LIBRARIES: Final = ("uvicorn", "httptools", "starlette", "msgspec", "SQLAlchemy", "tiktoken")
_SAFE_SQLITE: Final = (3, 51, 3)
"""The first release without the WAL-reset bug (research/reliability.md 0.7): a second connection could lose a WAL."""
_FILES: Final = 4096
_PATIENCE: Final = 10.0
_SAMPLE: Final = "The quick brown fox jumps over the lazy dog."


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One line. `next` is the step to take where `state` is not ok."""

    state: Literal["ok", "warn", "fail"]
    name: str
    found: str
    next: str = ""


class Patient(msgspec.Struct, frozen=True, kw_only=True):
    """What is examined: the configuration, and an upstream given on the command line instead of one."""

    config: Path | None
    upstream: str | None
    url: str | None
    environ: Mapping[str, str]

    @property
    def overrides(self) -> Mapping[str, object]:
        return {"upstreams.main.base_url": self.upstream}


def run(config: Path | None, upstream: str | None, url: str | None, environ: Mapping[str, str], form: str) -> int:
    """0, or 1 where something fails."""
    path = config if upstream is not None else configuration(config)
    patient = Patient(config=path, upstream=upstream, url=url, environ=environ)
    findings = asyncio.run(_examine(patient, tell=form == "text"))
    failed = any(finding.state == "fail" for finding in findings)
    if form == "json":
        told = msgspec.json.encode({"ok": not failed, "findings": findings})
        sys.stdout.write(msgspec.json.format(told, indent=2).decode() + "\n")
    return FAILED if failed else DONE


async def _examine(patient: Patient, *, tell: bool) -> list[Finding]:
    found: list[Finding] = []
    async for finding in _findings(patient):
        found.append(finding)
        if tell:
            _print(finding)
    return found


async def _findings(patient: Patient) -> AsyncIterator[Finding]:
    sqlite = () if _on_postgres(patient) else (_sqlite(),)
    for finding in (*_versions(), *sqlite, _open_files(), *_configured(patient), *_catalogue()):
        yield finding
    yield await _tokens()
    async for finding in _records(patient):
        yield finding
    async for finding in _upstreams(patient):
        yield finding


# -- this machine ----------------------------------------------------------------------------------------------------


def _versions() -> Iterator[Finding]:
    python = ".".join(map(str, sys.version_info[:3]))
    libraries = ", ".join(f"{name} {version(name)}" for name in _LIBRARIES)
    yield Finding(state="ok", name="versions", found=f"weirgate {__version__}, Python {python}, {libraries}")


def _on_postgres(patient: Patient) -> bool:
    try:
        return find(patient.config, patient.url, patient.environ).file is None
    except (ConfigError, NotDone):
        return False  # said where it is looked at


def _sqlite() -> Finding:
    found = f"{sqlite3.sqlite_version}, with the one connection that Weirgate opens"
    if sqlite3.sqlite_version_info >= _SAFE_SQLITE:
        return Finding(state="ok", name="sqlite", found=sqlite3.sqlite_version)
    step = "before 3.51.3 a second connection can lose data: let nothing else open the database file, not even a backup"
    return Finding(state="warn", name="sqlite", found=found, next=step)


def _open_files() -> Finding:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = sys.maxsize if hard == resource.RLIM_INFINITY else hard
    if most >= _FILES:
        shown = "no limit" if most == sys.maxsize else f"{most:,}"
        return Finding(state="ok", name="open files", found=shown)
    step = "each stream takes two: raise it (ulimit -n, or LimitNOFILE= of the service)"
    return Finding(state="warn", name="open files", found=f"{most:,}, for about {most * 7 // 16:,} clients", next=step)


# -- what was configured ---------------------------------------------------------------------------------------------


def _configured(patient: Patient) -> Iterator[Finding]:
    if patient.config is None and patient.upstream is None:
        step = "name a file with --config, or an upstream with --upstream"
        yield Finding(state="warn", name="configuration", found="none given, no weirgate.yaml here", next=step)
        return
    report = check(patient.config, patient.environ, patient.overrides, catalogue=Catalogue())
    name = str(patient.config) if patient.config is not None else "from the command line"
    if report.problems:
        more = f" (and {len(report.problems) - 1} more)" if len(report.problems) > 1 else ""
        yield Finding(
            state="fail", name="configuration", found=f"{report.problems[0]}{more}", next="`weirgate check` shows all"
        )
    elif report.warnings:
        more = f" (and {len(report.warnings) - 1} more)" if len(report.warnings) > 1 else ""
        yield Finding(
            state="warn", name="configuration", found=f"{report.warnings[0]}{more}", next="`weirgate check` shows all"
        )
    else:
        yield Finding(state="ok", name="configuration", found=f"{name}, policies sound")


def _catalogue() -> Iterator[Finding]:
    broken = verify()
    if broken:
        yield Finding(state="fail", name="catalogue", found=broken[0], next="install weirgate again")
        return
    yield Finding(state="ok", name="catalogue", found=f"whole; prices and windows of litellm {Catalogue().version}")


async def _tokens() -> Finding:
    counter = Counter(ranks_folder())
    try:
        if await counter.warm():
            (count,) = await counter.count((_SAMPLE,), "o200k_base")
            return Finding(state="ok", name="token ranks", found=f"counting works ({count} tokens in a test sentence)")
    finally:
        counter.close()
    step = "install weirgate again; until then sizes are estimates"
    return Finding(state="warn", name="token ranks", found="the encoding cannot be made", next=step)


# -- the records -----------------------------------------------------------------------------------------------------


async def _records(patient: Patient) -> AsyncIterator[Finding]:
    """The server and its database; or the database alone."""
    try:
        place = find(patient.config, patient.url, patient.environ)
        server = running(place, named=patient.url is not None)
    except ConfigError as error:
        yield Finding(state="fail", name="server", found=str(error.problems[0]), next="`weirgate check` shows all")
        return
    except NotDone as failure:
        yield Finding(state="fail", name="server", found=str(failure), next="give its address with --url")
        return
    if server is not None:
        for finding in _served(server):
            yield finding
        return
    yield Finding(state="ok", name="server", found=f"none runs at {place.server}")
    async for finding in _filed(place):
        yield finding


def _served(server: Running) -> Iterator[Finding]:
    try:
        trouble = server.ready()
    except OSError as failure:
        trouble = failure.strerror or "it stopped answering"
    if trouble is None:
        yield Finding(state="ok", name="server", found=f"runs at {server.root}; its database can be written")
    else:
        step = "see its log; it answers 503 until then"
        yield Finding(state="fail", name="server", found=f"{server.root}: {trouble}", next=step)
    try:
        known = msgspec.convert(server.get("calibrations").get("data", ()), list[Calibration])
    except (NotDone, msgspec.ValidationError) as failure:
        step = "set WEIRGATE_ADMIN to the server's admin secret"
        yield Finding(state="warn", name="learned", found=f"not shown: {failure}", next=step)
        return
    yield from _learned(known)


async def _filed(place: Where) -> AsyncIterator[Finding]:
    if place.file is not None and not place.known:
        folder = place.file.parent.resolve()
        if os.access(folder, os.W_OK | os.X_OK):
            yield Finding(state="ok", name="database", found=f"{place.database}: made at the first start")
        else:
            step = "make the folder writable, or set store.url"
            yield Finding(state="fail", name="database", found=f"{folder} cannot be written", next=step)
        return
    try:
        async with opened(place) as store:
            await store.ready()
            known, engine = await store.calibrations(), await store.engine()
    except (NotDone, StoreUnavailable) as failure:
        yield Finding(state="fail", name="database", found=str(failure), next=_next_step(place, str(failure)))
        return
    found = f"{place.database} can be written ({engine.name})"
    step = "turn it on: what clients were answered could be lost with the machine" if engine.doubt else ""
    state: Literal["ok", "warn"] = "warn" if engine.doubt else "ok"
    yield Finding(state=state, name="database", found="; ".join(filter(None, (found, engine.doubt))), next=step)
    for finding in _learned(known):
        yield finding


def _next_step(place: Where, trouble: str) -> str:
    """What to do where the database cannot be used."""
    if "db upgrade" in trouble:
        return "run `weirgate db upgrade`"
    if place.file is None:
        return f"look whether {place.database} runs and lets this machine, user and password in"
    return "name the server that has it with --url" if "in use" in trouble else "free the disk, or restore it"


def _learned(known: tuple[Calibration, ...] | list[Calibration]) -> Iterator[Finding]:
    if not known:
        yield Finding(state="ok", name="learned", found="no windows or ratios yet")
    now = time.time()
    for item in known:
        parts: list[str] = []
        window = None if item.limits is None else item.limits.total or item.limits.input
        if window is not None:
            until = datetime.fromtimestamp(item.expires_at, UTC).strftime("%Y-%m-%d %H:%M UTC")
            parts.append(
                f"window {window:,} " + (f"until {until}" if item.expires_at > now else "(no longer believed)")
            )
        for name, ratio in (("estimates", item.estimate), ("counts", item.exact)):
            if ratio.samples:
                parts.append(f"{ratio.value:.2f} x our {name} ({ratio.samples} calls)")
        if parts:
            yield Finding(state="ok", name=f"learned {item.upstream}", found=f"{item.model}: {', '.join(parts)}")


# -- the providers ---------------------------------------------------------------------------------------------------


async def _upstreams(patient: Patient) -> AsyncIterator[Finding]:
    try:
        settings = load(patient.config, patient.environ, patient.overrides)
    except ConfigError:
        return  # said above
    for name in settings.upstreams:
        yield await _reached(name, settings)


async def _reached(name: str, settings: Settings) -> Finding:
    configured = settings.upstreams[name]
    title = f"upstream {name}"
    upstream = upstream_of(name, settings)
    began = time.perf_counter()
    try:
        async with asyncio.timeout(_PATIENCE):
            response = await upstream.send(Request(path="/models", body=b"", method="GET"))
            await response.close()
    except (UpstreamError, TimeoutError) as failure:
        said = failure.message if isinstance(failure, UpstreamError) else f"no answer within {_PATIENCE:.0f} s"
        step = "is it running, and is its base_url right, up to /v1?"
        return Finding(state="fail", name=title, found=f"{configured.base_url}: {said}", next=step)
    finally:
        await upstream.close()
    took = f"{configured.base_url} answers in {(time.perf_counter() - began) * 1000:,.0f} ms"
    if response.status in (401, 403):
        if configured.api_key is None:
            return Finding(state="ok", name=title, found=f"{took} and wants a key, which each client brings")
        return Finding(state="fail", name=title, found=f"{took} and refuses the key", next="set its api_key anew")
    if response.status == 200:
        return Finding(state="ok", name=title, found=took)
    step = "not every server lists its models; try one call through the gateway"
    return Finding(state="warn", name=title, found=f"{took}, but GET /models with {response.status}", next=step)


# -- on paper --------------------------------------------------------------------------------------------------------

_STYLES: Final[Mapping[str, str]] = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def _print(finding: Finding) -> None:
    step = f"\n{'':5} {'':18} -> {finding.next}" if finding.next else ""
    text = f"{finding.name:18} {plain(finding.found)}{step}"
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.text import Text

        Console().print(Text.assemble((f"{finding.state:5} ", _STYLES[finding.state]), text), soft_wrap=True)
    else:
        sys.stdout.write(f"{finding.state:5} {text}\n")
        sys.stdout.flush()
