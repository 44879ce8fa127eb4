"""`weirgate serve`: from settings to a process that listens, and its exit code."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from pathlib import Path

import structlog

from proxy.app import Application
from proxy.configfile import ConfigError
from proxy.server.guard import Limits
from proxy.server.lifecycle import Drain, Listen, serve
from proxy.settings import Settings, load

CONFIG_ERROR = 2


def run(config: Path | None, environ: Mapping[str, str], overrides: Mapping[str, object]) -> int:
    """Serve until a signal. 0 after a clean drain, 1 where running answers were cut, 2 where it must not start."""
    _log_lines()
    try:
        settings = load(config, environ, overrides)
        if not settings.upstreams:
            _say("no upstream: give --upstream URL or a configuration file with `upstreams`")
            return CONFIG_ERROR
        drain = Drain()
        application = Application(settings, drain)
    except ConfigError as error:
        for problem in error.problems:
            _say(str(problem))
        return CONFIG_ERROR
    server = settings.server
    try:
        return serve(
            application,
            Listen(host=server.host, port=server.port, drain=server.drain),
            _limits(settings),
            drain,
            on_reload=application.reload,
            announce=lambda host, port: _say(f"listening on http://{_address(host)}:{port}"),
        )
    except (OSError, SystemExit) as error:
        # uvicorn leaves by SystemExit where the application did not start; the application knows why.
        _say(str(application.failure or error))
        return CONFIG_ERROR


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


def _say(text: str) -> None:
    sys.stderr.write(f"weirgate: {text}\n")
    sys.stderr.flush()


def _log_lines() -> None:
    """JSON lines on stderr, warnings and worse from libraries: they know nothing of what may be said."""
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
    )
