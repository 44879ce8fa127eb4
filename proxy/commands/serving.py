"""`weirgate serve`: from settings to a process that listens, and its exit code."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from pathlib import Path

from proxy.app import Application
from proxy.commands.outcome import WRONG, say
from proxy.commands.where import configuration
from proxy.configfile import ConfigError
from proxy.server.guard import Limits
from proxy.server.lifecycle import Drain, Listen, serve
from proxy.settings import Settings, load

UPSTREAM = "upstreams.main.base_url"

NOTHING = """\
weirgate: there is nothing to serve yet. Name an OpenAI-compatible server, up to /v1 ...

    weirgate serve --upstream http://127.0.0.1:8080/v1 --window 8192

... or write a weirgate.yaml (`weirgate check` validates it) and run

    weirgate serve --config weirgate.yaml
"""


def run(config: Path | None, environ: Mapping[str, str], overrides: Mapping[str, object]) -> int:
    """Serve until a signal. 0 after a clean drain, 1 where running answers were cut, 2 where it must not start."""
    _log_lines()
    if overrides.get(UPSTREAM) is None:
        config = configuration(config)
        if config is None and not any(name.upper().startswith("WEIRGATE_UPSTREAMS__") for name in environ):
            sys.stderr.write(NOTHING)
            return WRONG
    try:
        settings = load(config, environ, overrides)
        drain = Drain()
        application = Application(settings, drain)
    except ConfigError as error:
        for problem in error.problems:
            say(str(problem))
        return WRONG
    server = settings.server
    try:
        return serve(
            application,
            Listen(host=server.host, port=server.port, drain_delay=server.drain_delay, drain=server.drain),
            _limits(settings),
            drain,
            on_reload=application.reload,
            overload=application.overload,
            announce=lambda host, port: say(f"listening on http://{_address(host)}:{port}"),
        )
    except (OSError, SystemExit) as error:
        # uvicorn leaves by SystemExit where the application did not start; the application knows why.
        say(str(application.failure or error))
        return WRONG


def _limits(settings: Settings) -> Limits:
    limits = settings.server.limits
    return Limits(
        head_seconds=limits.header_seconds,
        head_bytes=limits.header_bytes,
        head_fields=limits.header_count,
        body_seconds=limits.body_seconds,
        body_bytes=limits.body,
        write_idle=limits.write_idle,
    )


def _address(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _log_lines() -> None:
    """Of libraries only warnings and worse: they know nothing of what may be said. The gateway's own lines: `logs`."""
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
