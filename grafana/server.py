"""A Prometheus of our own on a free port, and what it answers: for tests and pictures.

Belongs here: Debian's `prometheus`, started with rules and targets, asked over its HTTP API, and stopped. Never: what
is asked (`panels`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec

STARTS: Final = 30.0
RULES: Final = Path(__file__).with_name("rules")


class Series(msgspec.Struct, frozen=True):
    """One series of an answer: its labels, and its (seconds, value) pairs."""

    labels: dict[str, str]
    points: tuple[tuple[float, float], ...]


class Prometheus:
    """A server that runs."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def now(self, expr: str) -> tuple[Series, ...]:
        """The value of each series now. Raises ValueError where the query is refused."""
        return _series(await self._ask("query", query=expr))

    async def over(self, expr: str, start: float, end: float, step: float) -> tuple[Series, ...]:
        """The values of each series from `start` to `end`, one each `step` seconds."""
        return _series(await self._ask("query_range", query=expr, start=start, end=end, step=step))

    async def up(self, count: int) -> None:
        """Wait until `count` targets have been scraped."""
        async with asyncio.timeout(STARTS):
            while sum(found.points[0][1] for found in await self.now("up")) < count:
                await asyncio.sleep(0.2)

    async def rules(self) -> list[dict[str, Any]]:
        """Every rule that it evaluates, with its health."""
        groups = (await self._ask("rules"))["groups"]
        return [rule for group in groups for rule in group["rules"]]

    async def _ask(self, what: str, **asked: str | float) -> Any:
        answer = (await self._client.get(f"/api/v1/{what}", params=asked)).json()
        if answer["status"] != "success":
            raise ValueError(f"{answer.get('error')}: {asked.get('query')}")
        return answer["data"]


def _series(data: Any) -> tuple[Series, ...]:
    found = []
    for each in data["result"]:
        points = each["values"] if "values" in each else [each["value"]]
        found.append(Series(each["metric"], tuple((float(at), float(value)) for at, value in points)))
    return tuple(found)


def installed() -> bool:
    return shutil.which("prometheus") is not None


@asynccontextmanager
async def prometheus(folder: Path, targets: Sequence[str], *, every: str = "1s") -> AsyncIterator[Prometheus]:
    """A Prometheus that scrapes `targets` as job `weirgate` and evaluates our rules; its data lies in `folder`."""
    settings = {
        "global": {"scrape_interval": every, "evaluation_interval": every},
        "rule_files": [str(RULES / "*.yaml")],
        "scrape_configs": [{"job_name": "weirgate", "static_configs": [{"targets": list(targets)}]}],
    }
    written = folder / "prometheus.yaml"
    written.write_text(json.dumps(settings))  # JSON is YAML
    port, log = _free_port(), folder / "prometheus.log"
    with log.open("wb") as output:
        child = await asyncio.create_subprocess_exec(
            *("prometheus", f"--config.file={written}", f"--storage.tsdb.path={folder / 'tsdb'}"),
            f"--web.listen-address=127.0.0.1:{port}",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=folder,
            start_new_session=True,
        )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            await _ready(client, child, log)
            yield Prometheus(client)
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STARTS):
                await child.wait()
        except TimeoutError:
            child.kill()
            await child.wait()


async def _ready(client: httpx.AsyncClient, child: asyncio.subprocess.Process, log: Path) -> None:
    async with asyncio.timeout(STARTS):
        while child.returncode is None:
            with contextlib.suppress(httpx.TransportError):
                if (await client.get("/-/ready")).status_code == 200:
                    return
            await asyncio.sleep(0.1)
    raise RuntimeError(f"prometheus did not start: {log.read_text(errors='replace')[-2000:]}")


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
