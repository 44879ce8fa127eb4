"""Where a command finds what it works on: the configuration file, the running server, the database.

Belongs here: looking, and saying what was found. Never: speaking to the server (`running`) or reading the database
beyond opening it. One process owns a SQLite file, so a command opens it only where no server answers.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from proxy.commands.outcome import WRONG, NotDone, say
from proxy.configfile import ConfigError
from proxy.configfile.fields import base_url
from proxy.core.errors import StoreUnavailable
from proxy.settings import load_part
from proxy.store import Store
from proxy.store.address import from_url, is_postgres, shown

if TYPE_CHECKING:
    from proxy.commands.running import Running

HERE: Final = Path("weirgate.yaml")
"""The configuration file that is taken where none is named."""
ADMIN: Final = "WEIRGATE_ADMIN"
KEY: Final = "WEIRGATE_KEY"


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """`server` is its address without /v1, `store` the database's, with its password. `secret` opens the server's
    operator's routes."""

    server: str
    store: str
    content: bool = True
    migrate: bool = True
    secret: str | None = None

    @property
    def database(self) -> str:
        """The database, as it may be shown."""
        return shown(self.store) if self.file is None else str(self.file)

    @property
    def file(self) -> Path | None:
        """SQLite's; None where the database is a server."""
        return None if is_postgres(self.store) else Path(self.store.removeprefix("sqlite:///"))

    @property
    def known(self) -> bool:
        """Whether there is a database that may hold something."""
        return self.file is None or self.file.is_file()


def configuration(named: Path | None) -> Path | None:
    """The file to read: the named one, else weirgate.yaml in this folder, else none."""
    if named is not None or not HERE.is_file():
        return named
    say(f"using {HERE}")
    return HERE


def find(config: Path | None, url: str | None, environ: Mapping[str, str]) -> Where:
    """What `config` (as found by `configuration`) and the environment say. Raises ConfigError."""
    settings = load_part(config, environ, ("server", "store"))
    return Where(
        server=_root(url) if url else _address(settings.server.host, settings.server.port),
        store=settings.store.url,
        content=settings.store.content != "strict",
        migrate=settings.store.migrate,
        secret=_secret(config, environ),
    )


def _secret(config: Path | None, environ: Mapping[str, str]) -> str | None:
    """The configured admin secret, else that in WEIRGATE_ADMIN, else a client key, which opens its tenant's view."""
    try:
        configured = load_part(config, environ, ("admin",)).admin.secret
    except ConfigError:
        configured = None  # its reference names what this shell does not hold; the server will say if it is needed
    if configured is not None:
        return configured.reveal()
    for name in (ADMIN, KEY):
        value = environ.get(name, "").strip()
        if not value.isascii() or not value.isprintable():
            raise NotDone(f"{name} holds something that is no secret", WRONG)
        if value:
            return value
    return None


def _root(url: str) -> str:
    try:
        return base_url(url).removesuffix("/v1")
    except ValueError as error:
        raise NotDone(f"--url {error}; it is the server's, such as http://127.0.0.1:8400", WRONG) from None


def _address(host: str, port: int) -> str:
    """An address that leads to a server bound to `host`: one that listens everywhere listens on loopback too."""
    reached = {"0.0.0.0": "127.0.0.1", "::": "::1", "[::]": "::1"}.get(host, host).strip("[]")
    return f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"


def running(place: Where, *, named: bool) -> Running | None:
    """The server, if one answers. `named`: the user gave its address, so that nothing else will do."""
    # Here, because it speaks HTTP: `serve` looks for its configuration in this file too, and asks nobody.
    from proxy.commands.running import Running

    server = Running(place.server, place.secret)
    if server.answers():
        return server
    if named:
        raise NotDone(f"no server answers at {place.server}")
    return None


@asynccontextmanager
async def opened(place: Where, *, make: bool = False) -> AsyncIterator[Store]:
    """The database, whose file no server holds. Raises NotDone where there is none (unless `make`) or one has it.

    A database that others may be using is brought to this version's schema only where `make` says so.
    """
    if not make and not place.known:
        raise NotDone(
            f"no server answers at {place.server} and there is no database {place.database} yet; "
            "name the server with --url or its configuration with --config"
        )
    migrate = place.migrate and (make or place.file is not None)
    store = from_url(place.store, content=place.content, migrate=migrate)
    try:
        await store.open(time.time())
    except StoreUnavailable as failure:
        hint = "; name that server with --url" if "in use" in failure.message else ""
        raise NotDone(failure.message.partition(": SQLite serves one")[0] + hint) from None
    try:
        yield store
    finally:
        await store.close()
