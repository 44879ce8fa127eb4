"""Weirgate as a user starts it: the installed command, one upstream, no file.

Only the command line and HTTP are used; nothing is imported from the package, so the demo shows what people get.
"""

from __future__ import annotations

import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from demo.children import ChildFailed, free_port, running, wait_until_ready

COMMAND = Path(sys.executable).with_name("weirgate")
READY_SECONDS = 60.0
ASK_SECONDS = 30.0


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One usage row, as `weirgate usage --format json` and the usage endpoint give it; only what the demo shows."""

    opened_at: float
    purpose: str
    status: str
    input: int
    output: int
    cached: int = 0
    projected: int | None = None
    compaction: str = "none"
    compaction_id: str | None = None
    notes_by: str | None = None
    window: int | None = None
    duration: float | None = None
    error: str | None = None


class _Rows(msgspec.Struct, frozen=True):
    data: tuple[Row, ...]


class Gateway(msgspec.Struct, frozen=True, kw_only=True):
    """A running gateway."""

    root: str

    @property
    def base_url(self) -> str:
        return f"{self.root}/v1"

    def rows(self) -> tuple[Row, ...]:
        """Its usage rows, oldest first. Raises ChildFailed where it does not give them."""
        try:
            with urllib.request.urlopen(f"{self.base_url}/weirgate/usage?limit=1000", timeout=ASK_SECONDS) as answer:
                found = msgspec.json.decode(answer.read(), type=_Rows)
        except (urllib.error.URLError, OSError, msgspec.DecodeError) as failure:
            raise ChildFailed(f"weirgate did not give its usage rows: {failure}") from failure
        return tuple(sorted(found.data, key=lambda row: row.opened_at))


@contextmanager
def served(upstream: str, window: int, folder: Path) -> Iterator[Gateway]:
    """The gateway while the block runs; its database and log lie in `folder`. Raises ChildFailed."""
    if not COMMAND.exists():
        raise ChildFailed(f"{COMMAND} is not there: run `make install`")
    port = free_port()
    command = [str(COMMAND), "serve", "--upstream", upstream, "--window", str(window), "--port", str(port)]
    log = folder / "weirgate.log"
    root = f"http://127.0.0.1:{port}"
    with running(command, log, cwd=folder) as child:
        wait_until_ready(child, f"{root}/readyz", log, seconds=READY_SECONDS)
        yield Gateway(root=root)
