"""The gateway as its users run it: the installed command in a process of its own, on its own file, sent real signals.

    async with running(up.url, folder, "--window", "2048", server__limits__write_idle=2) as weir:
        weir.port, weir.pid; weir.signal(SIGTERM); await weir.ended()

Afterwards the file is read without the gateway: `weir.file` is the database. Nothing here is a pause.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tests.durability.asking import Line, Reply

COMMAND = Path(sys.executable).with_name("weirgate")
STARTS = 60.0
ENDS = 30.0
STILL = 15.0

_BOUND = re.compile(rb"listening on http://127\.0\.0\.1:(\d+)")

Row = dict[str, Any]


class Weir:
    """One process. `file` outlives it."""

    def __init__(self, child: asyncio.subprocess.Process, file: Path) -> None:
        self.child = child
        self.file = file
        self.port = 0
        self.log = b""
        self._listening = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    @property
    def pid(self) -> int:
        return self.child.pid

    async def ready(self) -> None:
        async with asyncio.timeout(STARTS):
            await self._listening.wait()
        assert self.port, f"the gateway did not start (exit {self.child.returncode}): {self.log.decode()[-2000:]}"

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    async def ended(self) -> int:
        """The exit code."""
        async with asyncio.timeout(ENDS):
            code = await self.child.wait()
            await self._reading
        return code

    async def stop(self) -> int:
        with contextlib.suppress(ProcessLookupError):
            self.signal(signal.SIGTERM)
        try:
            return await self.ended()
        except TimeoutError:
            self.child.kill()
            await self.child.wait()
            raise AssertionError(f"the gateway did not leave: {self.log.decode()[-2000:]}") from None

    async def connect(self, *, receive: int | None = None) -> Line:
        return await Line.open(self.port, receive=receive)

    async def get(self, path: str) -> Reply:
        with await self.connect() as line:
            await line.send(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
            return await line.whole()

    async def ask(self, request: bytes) -> Reply:
        """The answer, which may be half of a stream only in what it says."""
        with await self.connect() as line:
            await line.send(request)
            return await line.whole()

    async def metric(self, name: str) -> float:
        """The sum over its labels."""
        text = (await self.get("/metrics")).body.decode()
        values = [line.rsplit(" ", 1)[1] for line in text.splitlines() if re.match(rf"{name}(\{{| )", line)]
        return sum(map(float, values))

    async def still(self) -> None:
        """Until nobody is served any more, but for who asks."""
        serving = 0.0
        try:
            async with asyncio.timeout(STILL):
                while (serving := await self.metric("weirgate_in_flight")) > 1:
                    pass
        except TimeoutError:
            said = self.log.decode()[-2000:]
            raise AssertionError(f"{serving:g} requests are still being served after {STILL} s: {said}") from None

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def resident(self) -> int:
        """Bytes in memory."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) * 1024  # type: ignore[index]

    async def _read(self) -> None:
        assert self.child.stderr is not None
        while piece := await self.child.stderr.read(65_536):
            self.log += piece
            found = _BOUND.search(self.log)
            if found and not self.port:
                self.port = int(found[1])
                self._listening.set()
        self._listening.set()


@contextlib.asynccontextmanager
async def running(upstream: str, folder: Path, *arguments: str, **settings: object) -> AsyncIterator[Weir]:
    """A gateway that listens. One that still runs at the end of the block must leave cleanly."""
    weir = await start(upstream, folder, *arguments, **settings)
    try:
        await weir.ready()
        yield weir
    except BaseException:
        if weir.child.returncode is None:
            weir.child.kill()
            await weir.ended()
        raise
    if weir.child.returncode is None:
        await weir.stop()


async def start(upstream: str, folder: Path, *arguments: str, **settings: object) -> Weir:
    """The process alone. `settings` are those of weirgate.yaml, `__` between the parts of a name."""
    file = folder / "weirgate.db"
    told = {f"WEIRGATE_{name.upper()}": str(value) for name, value in settings.items()}
    command = [str(COMMAND), "serve", "--upstream", upstream, "--port", "0", "--store", f"sqlite:///{file}"]
    child = await asyncio.create_subprocess_exec(
        *command,
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        cwd=folder,
        env={**os.environ, **told},
        start_new_session=True,
    )
    return Weir(child, file)


class Database:
    """A copy of a database that nobody writes to any more, as the next process would find it."""

    def __init__(self, file: Path, name: str = "copy") -> None:
        copy = file.with_name(f"{file.stem}-{name}.db")
        for suffix in ("", "-wal"):
            if (found := Path(f"{file}{suffix}")).exists():
                shutil.copyfile(found, f"{copy}{suffix}")
        self._connection = sqlite3.connect(copy)
        self._connection.row_factory = sqlite3.Row

    def rows(self) -> list[Row]:
        return self.ask("SELECT * FROM usage ORDER BY opened_at")

    def ask(self, sql: str) -> list[Row]:
        return [dict(row) for row in self._connection.execute(sql)]

    def sound(self) -> bool:
        return [tuple(row) for row in self._connection.execute("PRAGMA integrity_check")] == [("ok",)]

    def close(self) -> None:
        self._connection.close()


def database(file: Path, name: str = "copy") -> contextlib.closing[Database]:
    return contextlib.closing(Database(file, name))


def usage_rows(file: Path) -> list[Row]:
    with database(file) as found:
        return found.rows()
