"""The command line: options, their help, and which command they are for. The work is in `commands`, imported when it is
asked for, so that `--help` is quick.

Exit codes are the same everywhere: 0 done, 1 not done or something was found, 2 wrong use or configuration.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import typer

from proxy import __version__

CODES = "Exit codes: 0 done, 1 not done (the reason is on stderr), 2 wrong use or configuration."

app = typer.Typer(
    name="weirgate",
    help="An OpenAI-compatible gateway that keeps every conversation inside its model's context window.",
    epilog=f"{CODES} NO_COLOR is honoured.",
    no_args_is_help=True,
    # Plain help: rich's would cost three times as much CPU as everything else that `--help` does.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
keys = typer.Typer(
    help="Client keys: add, list, limit, revoke.", no_args_is_help=True, rich_markup_mode=None, epilog=CODES
)
app.add_typer(keys, name="keys")
settings = typer.Typer(
    help="Settings of your own conversations: show, set, reset.",
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog=CODES,
)
app.add_typer(settings, name="settings")
database = typer.Typer(help="The database: upgrade.", no_args_is_help=True, rich_markup_mode=None, epilog=CODES)
app.add_typer(database, name="db")
skills = typer.Typer(
    help="Skills of all organisations: list, check.", no_args_is_help=True, rich_markup_mode=None, epilog=CODES
)
app.add_typer(skills, name="skills")

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        envvar="WEIRGATE_CONFIG",
        metavar="FILE",
        help="Configuration file; without it weirgate.yaml, if this folder has one.",
        show_default=False,
    ),
]
ServerUrl = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="Address of the running server; without it the one in the configuration. Its admin secret is taken from "
        "the configuration or from WEIRGATE_ADMIN.",
    ),
]
AskedUrl = Annotated[
    str | None,
    typer.Option(
        "--url", metavar="URL", help="Address of the running server; without it the one in the configuration."
    ),
]
ClientKey = Annotated[
    str | None,
    typer.Option(
        "--key",
        envvar="WEIRGATE_KEY",
        show_envvar=False,
        metavar="KEY",
        help="The client's key; better in WEIRGATE_KEY, where nobody else sees it. A gateway without keys tells its "
        "clients apart by what they send here.",
        show_default=False,
    ),
]
EndUser = Annotated[
    str | None,
    typer.Option("--user", metavar="NAME", help="An end user, as requests name it (safety_identifier, else user)."),
]
SkillFolders = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[FOLDER]...",
        help="Folders of skills; without them those of the configuration.",
        show_default=False,
    ),
]
Text = Annotated[Literal["text", "json"], typer.Option("--format", help="For people, or for programs.")]


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


def _end(work: Callable[[], int]) -> None:
    """Leave with the exit code of a command; what stops it is told in one line."""
    from proxy.commands.outcome import attempt

    raise typer.Exit(attempt(work))


@app.command(
    epilog="Exit codes: 0 all running answers finished, 1 some were cut off at the end, 2 it must not or cannot start."
)
def serve(
    config: ConfigFile = None,
    upstream: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Base URL of an OpenAI-compatible server, up to /v1; no file is needed then."),
    ] = None,
    window: Annotated[
        int | None, typer.Option(min=64, metavar="TOKENS", help="Window of the models whose policy states none.")
    ] = None,
    host: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Address to bind; not loopback needs keys.  [127.0.0.1]")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, metavar="PORT", help="Port to bind; 0 takes a free one.  [8400]")
    ] = None,
    store: Annotated[
        str | None, typer.Option(metavar="URL", help="Where to remember.  [sqlite:///weirgate.db]")
    ] = None,
) -> None:
    """Run the gateway; on SIGTERM or Ctrl-C running answers finish.

    Clients use http://127.0.0.1:8400/v1 as base URL. SIGHUP reads the policies again.
    """
    # Nothing that is loaded at a start is garbage; to look for some takes a tenth of it. The server, once started, puts
    # what is there out of the collector's sight and turns it on.
    gc.disable()
    from proxy.commands.serving import UPSTREAM, run

    overrides = {
        UPSTREAM: upstream,
        "window": window,
        "server.host": host,
        "server.port": port,
        "store.url": store,
    }
    try:
        _end(lambda: run(config, dict(os.environ), overrides))
    finally:
        gc.enable()


@app.command(epilog=CODES)
def usage(
    by: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[,NAME]",
            help="Add up by model, conversation, day, key, tenant, end_user, purpose, status, upstream or asked_model; "
            "without it single calls, the newest first.",
            autocompletion=lambda: "model conversation day key tenant end_user purpose status upstream".split(),
        ),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Only calls of this tenant, key, model, end_user, conversation ..."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="From here on: 1h, 7d, 2026-11-01, 2026-11-01T12:30 (UTC) or unix."),
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Up to here, without it.")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, max=100_000, help="Most lines; 50 single calls in a table by default.")
    ] = None,
    format: Annotated[
        Literal["table", "csv", "json", "focus"],
        typer.Option(help="Costs are in dollars. focus: CSV in the columns of FOCUS 1.2, for cost tools."),
    ] = "table",
    url: ServerUrl = None,
    config: ConfigFile = None,
) -> None:
    """What was spent: calls, tokens, cost, compactions and recoveries.

    Asks the running server; where none runs, reads its database.

    With a client key in WEIRGATE_KEY it shows that key's tenant alone.
    """
    from proxy.commands.usage import Asked, run

    asked = Asked(by=by, since=since, until=until, limit=limit, format=format, where=tuple(where or ()))
    _end(lambda: run(asked, url, config, dict(os.environ)))


@app.command(
    epilog="Exit codes: 0 it fits or was compacted, 1 nothing can make it fit, 2 wrong use or an unreadable file."
)
def compact(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A chat request, a list of messages, or JSONL of either; - for stdin.")
    ],
    window: Annotated[
        int | None,
        typer.Option(min=64, metavar="TOKENS", help="The window; without it the policy's or the catalogue's."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Whose policy and tokenizer; without it the file's.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Output to reserve; without it the file's.")] = None,
    line: Annotated[int | None, typer.Option(min=1, help="Which line of a JSONL file.  [1]")] = None,
    show: Annotated[bool, typer.Option("--show", help="Show the text of the notes as well.")] = False,
    json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    config: ConfigFile = None,
) -> None:
    """Dry run: what a compaction would make of a saved conversation.

    Before and after, what goes where, what is cut. Nothing is sent or stored; sizes are counted exactly.
    """
    from proxy.commands.compact import Asked, run

    asked = Asked(file=file, window=window, model=model, max_tokens=max_tokens, line=line, as_json=json, text=show)
    _end(lambda: run(asked, config, dict(os.environ)))


@app.command(
    epilog="Exit codes: 0 done, 1 the request is refused or nothing would be sent, 2 wrong use or configuration."
)
def explain(
    file: Annotated[
        str, typer.Argument(metavar="REQUEST", help="A chat completions request as it would be posted; - for stdin.")
    ],
    window: Annotated[
        int | None, typer.Option(min=64, metavar="TOKENS", help="In another window than the known one.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Another model or agent than the request names.")] = None,
    line: Annotated[int | None, typer.Option(min=1, help="Which line of a JSONL file.")] = None,
    label: Annotated[
        str | None, typer.Option(metavar="ID", help="The conversation's id where the client sends it in a header.")
    ] = None,
    diff: Annotated[
        str | None, typer.Option(metavar="OTHER", help="Hold it against another request.", show_default=False)
    ] = None,
    policy: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Hold it against itself under this policy file.")
    ] = None,
    body: Annotated[bool, typer.Option("--body", help="Only the body that would go upstream, as it is.")] = False,
    json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    key: ClientKey = None,
    url: AskedUrl = None,
    config: ConfigFile = None,
) -> None:
    """What would go upstream for a request, layer by layer, and why.

    Nothing is sent or stored. Asks the running server; where none runs, reads the configuration and its database.
    """
    from proxy.commands.explain import Asked, run

    asked = Asked(
        file=file,
        window=window,
        model=model,
        line=line,
        label=label,
        other=diff,
        policy=policy,
        body=body,
        as_json=json,
    )
    _end(lambda: run(asked, url, key, config, dict(os.environ)))


@app.command(epilog="Exit codes: 0 fit to serve (there may be warnings), 1 it is not.")
def check(config: ConfigFile = None, format: Text = "text") -> None:
    """Check the configuration and its policies.

    Each problem with its file, its line and what was probably meant.
    """
    from proxy.commands.checking import run

    _end(lambda: run(config, dict(os.environ), format))


@app.command(epilog="Exit codes: 0 nothing fails (there may be warnings), 1 something does.")
def doctor(
    config: ConfigFile = None,
    upstream: Annotated[
        str | None, typer.Option(metavar="URL", help="Examine this upstream; no file is needed then.")
    ] = None,
    url: ServerUrl = None,
    format: Text = "text",
) -> None:
    """Examine the installation, from versions to upstreams.

    One next step for each trouble. A provider is asked for its list of models, which costs nothing.
    """
    from proxy.commands.doctor import run

    _end(lambda: run(config, upstream, url, dict(os.environ), format))


@database.command("upgrade", epilog=CODES)
def db_upgrade(config: ConfigFile = None) -> None:
    """Bring the database to this version's schema.

    `serve` does it by itself, unless store.migrate is false. Of several at once, one does it and the others wait.
    """
    from proxy.commands.database import upgrade

    _end(lambda: upgrade(config, dict(os.environ)))


@app.command(epilog=CODES)
def purge(
    before: Annotated[
        str | None, typer.Option(metavar="TIME", help="A day, a time (UTC) or unix seconds.", show_default=False)
    ] = None,
    older_than: Annotated[
        str | None, typer.Option(metavar="AGE", help="How long ago: 12h, 90d, 52w.", show_default=False)
    ] = None,
    tenant: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this tenant's; without it everybody's.")
    ] = None,
    config: ConfigFile = None,
) -> None:
    """Delete conversations and usage rows of before a time.

    It cannot be taken back. On SQLite the server must be stopped. Prints how many rows went.
    """
    from proxy.commands.database import Old, purge

    old = Old(before=before, older_than=older_than, tenant=tenant)
    _end(lambda: purge(old, config, dict(os.environ)))


@keys.command("add", epilog=CODES)
def keys_add(
    tenant: Annotated[str, typer.Option(help="Whose key; tenants never see each other's conversations.")] = "default",
    id: Annotated[str | None, typer.Option(help="Name of the key in rows and logs; made up where not given.")] = None,
    models: Annotated[
        list[str] | None, typer.Option("--model", help="A model or pattern it may ask for; may be repeated.  [*]")
    ] = None,
    limits: Annotated[
        list[str] | None,
        typer.Option("--limit", metavar="NAME=VALUE", help="As of `weirgate keys limit`; may be repeated."),
    ] = None,
    url: ServerUrl = None,
    config: ConfigFile = None,
    format: Text = "text",
) -> None:
    """Make a client key. Its secret is shown this once, alone on stdout."""
    from proxy.commands.keys import add, site
    from proxy.commands.limits import wanted

    _end(lambda: add(site(config, url, dict(os.environ)), wanted(tenant, id, models, limits), format))


@keys.command("list", epilog=CODES)
def keys_list(url: ServerUrl = None, config: ConfigFile = None, format: Text = "text") -> None:
    """Show every key: id, tenant, models, state. Secrets are not kept."""
    from proxy.commands.keys import show_list, site

    _end(lambda: show_list(site(config, url, dict(os.environ)), format))


@keys.command("limit", epilog=CODES)
def keys_limit(
    id: Annotated[str, typer.Argument(metavar="ID", help="The key's id, as `weirgate keys list` shows it.")],
    limits: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=VALUE...",
            help="requests_per_minute, requests_per_day, tokens_per_minute, tokens_per_day, cost_per_day (dollars), "
            "streams, expires (a date), stopped (yes, no). none: as the configuration says.",
        ),
    ],
    tenant: Annotated[str | None, typer.Option(help="Whose, where two tenants have a key of this id.")] = None,
    url: ServerUrl = None,
    config: ConfigFile = None,
) -> None:
    """Limit what a key may use, or stop it. What is not named stays as it is."""
    from proxy.commands.keys import site
    from proxy.commands.limits import limit

    _end(lambda: limit(site(config, url, dict(os.environ)), id, tenant, tuple(limits)))


@keys.command("revoke", epilog=CODES)
def keys_revoke(
    id: Annotated[str, typer.Argument(metavar="ID", help="The key's id, as `weirgate keys list` shows it.")],
    tenant: Annotated[str | None, typer.Option(help="Whose, where two tenants have a key of this id.")] = None,
    url: ServerUrl = None,
    config: ConfigFile = None,
) -> None:
    """Close a key. A running server refuses it from the next request on."""
    from proxy.commands.keys import revoke, site

    _end(lambda: revoke(site(config, url, dict(os.environ)), id, tenant))


@settings.command("show", epilog=CODES)
def settings_show(
    user: EndUser = None, key: ClientKey = None, url: AskedUrl = None, config: ConfigFile = None, format: Text = "text"
) -> None:
    """Show what you have set; everything else is the operator's policy."""
    from proxy.commands.settings import show_settings, site

    _end(lambda: show_settings(site(config, url, key, user, dict(os.environ)), format))


@settings.command("set", epilog=CODES)
def settings_set(
    automatic: Annotated[
        Literal["on", "off"] | None,
        typer.Option(help="Whether conversations are compacted unasked; /compact works either way."),
    ] = None,
    threshold: Annotated[
        str | None,
        typer.Option(metavar="SHARE", help="Where that happens: 0.30 to 0.95 of the window, or 30% to 95%; none."),
    ] = None,
    models: Annotated[
        list[str] | None,
        typer.Option("--model", metavar="NAME=SHARE", help="The same for one model; NAME=none takes it back."),
    ] = None,
    summary_model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Who writes the notes: a model that the key may call; none.")
    ] = None,
    user: EndUser = None,
    key: ClientKey = None,
    url: AskedUrl = None,
    config: ConfigFile = None,
    format: Text = "text",
) -> None:
    """Change some settings and leave the others. They hold for conversations that have begun, too."""
    from proxy.commands.settings import Wanted, change, site

    wanted = Wanted(automatic=automatic, threshold=threshold, models=tuple(models or ()), summary_model=summary_model)
    _end(lambda: change(site(config, url, key, user, dict(os.environ)), wanted, format))


@settings.command("reset", epilog=CODES)
def settings_reset(
    user: EndUser = None, key: ClientKey = None, url: AskedUrl = None, config: ConfigFile = None
) -> None:
    """Take everything back that you have set."""
    from proxy.commands.settings import reset, site

    _end(lambda: reset(site(config, url, key, user, dict(os.environ))))


@skills.command("list", epilog=CODES)
def skills_list(
    folders: SkillFolders = None,
    tenant: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only what this organisation has: its own and the shared ones.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    config: ConfigFile = None,
) -> None:
    """Show every skill: whose it is, when to use it, who may see it."""
    from proxy.commands.skills import found, show_list

    _end(lambda: show_list(found(folders, config, dict(os.environ)), tenant, json))


@skills.command(
    "check", epilog="Exit codes: 0 every skill is fit (there may be warnings), 1 one is refused, 2 no folder."
)
def skills_check(
    folders: SkillFolders = None,
    json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    config: ConfigFile = None,
) -> None:
    """Check every SKILL.md: what is refused and why, what is odd.

    A running server leaves out what is refused here and keeps the rest.
    """
    from proxy.commands.skills import check_all, found

    _end(lambda: check_all(found(folders, config, dict(os.environ)), json))


def main() -> None:
    app()


if __name__ == "__main__":
    main()
