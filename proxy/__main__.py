"""The command line. Each command imports what it needs, so that `--help` is quick; output for people by rich."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from proxy import __version__

app = typer.Typer(
    name="weirgate",
    help="An OpenAI-compatible gateway that keeps every conversation inside its model's context window.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

ConfigFile = Annotated[
    Path | None, typer.Option("--config", envvar="WEIRGATE_CONFIG", help="The configuration file.", show_default=False)
]


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"weirgate {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Weirgate."""


@app.command()
def serve(
    config: ConfigFile = None,
    upstream: Annotated[
        str | None, typer.Option(help="Base URL of an OpenAI-compatible server, up to /v1; no file is needed then.")
    ] = None,
    window: Annotated[int | None, typer.Option(min=64, help="The window of its models, in tokens.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to bind [127.0.0.1].")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port; 0 takes a free one [8400].")] = None,
    store: Annotated[str | None, typer.Option(help="Where to remember, e.g. sqlite:///weirgate.db.")] = None,
) -> None:
    """Run the gateway until SIGTERM or Ctrl-C; running answers finish first."""
    from proxy.serving import run

    overrides = {
        "upstreams.main.base_url": upstream,
        "window": window,
        "server.host": host,
        "server.port": port,
        "store.url": store,
    }
    raise typer.Exit(run(config, dict(os.environ), overrides))


def main() -> None:
    app()


if __name__ == "__main__":
    main()
