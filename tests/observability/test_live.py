"""A live Prometheus scrapes two live gateways under load: every query of every panel is answered, every rule works."""

from __future__ import annotations

import asyncio
import math
import subprocess
from pathlib import Path

import httpx
import pytest

from grafana.generate import BOARDS
from grafana.panels import filled
from grafana.server import Prometheus, prometheus
from grafana.traffic import Stage, rehearsal
from tests.scenarios.conftest import Figure

CALLS = 300
"""Of a dozen and more conversations, enough for each kind to have outgrown its window."""


@pytest.mark.timeout(180)
async def test_every_query_of_every_panel_is_answered_under_load(
    promtool: str, prometheus_there: None, tmp_path: Path, figure: Figure
) -> None:
    async with rehearsal(tmp_path) as stage, prometheus(tmp_path, stage.targets) as server:
        await server.up(2)
        async with asyncio.timeout(75):
            await stage.play(calls=CALLS)
        await scraped_once_more(server)
        await asyncio.to_thread(checked, promtool, await scraped(stage))
        asked = [
            (board.uid, panel.title, query) for board in BOARDS for panel in board.panels for query in panel.queries
        ]
        empty = []
        async with asyncio.timeout(20):
            for uid, title, query in asked:
                found = await server.now(filled(query, rate="2m", range="2m"))
                if not any(math.isfinite(series.points[0][1]) for series in found):
                    empty.append((uid, title, query.expr))
        unwell = [(rule["name"], rule.get("lastError")) for rule in await server.rules() if rule["health"] != "ok"]
    assert empty == []
    assert unwell == []
    figure.all(("70 queries of panels", len(asked), ">= 50"), ("70 queries without data", len(empty), "== 0"))


async def scraped_once_more(server: Prometheus) -> None:
    """Until what was counted last has been seen."""
    before = await at(server)
    async with asyncio.timeout(20):
        while await at(server) <= before + 1:
            await asyncio.sleep(0.1)


async def at(server: Prometheus) -> float:
    """When the last scrape was made, of the target that was scraped longest ago."""
    return min(series.points[0][1] for series in await server.now("timestamp(up)"))


async def scraped(stage: Stage) -> bytes:
    async with httpx.AsyncClient() as client:
        return (await client.get(f"http://{stage.targets[0]}/metrics")).content


def checked(promtool: str, text: bytes) -> None:
    """What Prometheus' own linter says of a scrape: nothing."""
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, timeout=30, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")
