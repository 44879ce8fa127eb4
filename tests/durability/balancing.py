"""Replicas of the gateway behind nginx, on one PostgreSQL: each can be restarted while the others serve.

    async with Fleet(up.url, folder, server.url("name")) as fleet:
        await fleet.ask(request); await fleet.replicas[0].restart()

nginx is set as docs/deploying.md says: nothing buffered, a refused connection goes to the next replica, no request is
sent twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from tests.conftest import IN_CI
from tests.durability.asking import Line, Reply
from tests.durability.process import STARTS, Weir, start
from tests.postgres import free_port

CONFIG = """\
{user}worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 8192; }}
http {{
    access_log off;
    client_max_body_size 64m;
    client_body_buffer_size 128k;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    upstream weirgate {{
        {servers}
    }}
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        location / {{
            proxy_pass http://weirgate;
            proxy_http_version 1.1;
            proxy_set_header Host $http_host;
            proxy_buffering off;
            proxy_next_upstream error;
            proxy_connect_timeout 3s;
            proxy_read_timeout 3700s;
        }}
    }}
}}
"""


def nginx() -> str | None:
    return shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def absent() -> str | None:
    """Why there can be no nginx here; None where there can. In CI that is an error."""
    if nginx() is not None:
        return None
    reason = "no nginx: `apt-get install nginx-light`"
    if IN_CI:
        raise RuntimeError(reason)
    return reason


class Replica:
    """One gateway after another on one port."""

    def __init__(self, upstream: str, folder: Path, arguments: Sequence[str], settings: dict[str, object]) -> None:
        folder.mkdir()
        self.port = free_port()
        self.codes: list[int] = []
        """How its processes ended."""
        self._upstream = upstream
        self._folder = folder
        self._arguments = *arguments, "--port", str(self.port)
        self._settings = settings
        self.weir: Weir | None = None

    async def start(self) -> None:
        self.weir = await start(self._upstream, self._folder, *self._arguments, **self._settings)
        await self.weir.ready()

    async def stop(self) -> None:
        if self.weir is not None:
            self.codes.append(await self.weir.stop())

    async def restart(self) -> None:
        await self.stop()
        await self.start()


class Fleet:
    """Two of them; `arguments` and `settings` are both's, as those of `process.start`."""

    def __init__(self, upstream: str, folder: Path, store: str, *arguments: str, **settings: object) -> None:
        self.folder = folder
        self.port = free_port()
        told = ("--store", store, *arguments)
        self.replicas = [Replica(upstream, folder / name, told, settings) for name in ("one", "other")]
        self._nginx: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Fleet:
        try:
            for replica in self.replicas:
                await replica.start()
            await self._balance()
        except BaseException:
            await self._end(kill=True)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, _: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._end(kill=kind is not None)

    async def ask(self, request: bytes) -> Reply:
        with await Line.open(self.port) as line:
            await line.send(request)
            return await line.whole()

    async def _balance(self) -> None:
        binary = nginx()
        assert binary is not None, "ask `absent` first"
        # As root its worker would become somebody who may not write into our folder.
        user = "user root;\n" if os.getuid() == 0 else ""
        servers = "\n        ".join(f"server 127.0.0.1:{each.port} max_fails=0;" for each in self.replicas)
        config = self.folder / "nginx.conf"
        config.write_text(CONFIG.format(user=user, folder=self.folder, port=self.port, servers=servers))
        self._nginx = await asyncio.create_subprocess_exec(
            *(binary, "-p", str(self.folder), "-e", "stderr", "-c", str(config)), start_new_session=True
        )
        async with asyncio.timeout(STARTS):
            while not self._listens():
                assert self._nginx.returncode is None, "nginx did not start"
                await asyncio.sleep(0.02)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    async def _end(self, *, kill: bool) -> None:
        if self._nginx is not None:
            self._nginx.terminate()
            await self._nginx.wait()
        for replica in self.replicas:
            if kill and replica.weir is not None:
                with contextlib.suppress(ProcessLookupError):
                    replica.weir.signal(signal.SIGKILL)
                await replica.weir.ended()
            else:
                await replica.stop()
