"""Plays a rehearsal and saves what every panel would show: `python -m grafana.observed FILE [--seconds N]`.

What it saves is JSON: the boards with the answers of their queries, so that whoever draws them (`pictures`) needs
neither a Prometheus nor this package's libraries. On standard output: what `weirgate usage --by key` says of the run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import re
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from grafana.generate import BOARDS
from grafana.panels import Panel, Query, filled
from grafana.server import Prometheus, prometheus
from grafana.traffic import COMMAND, rehearsal

_STEP: Final = 2.0
_WINDOW: Final = "20s"
_LABEL: Final = re.compile(r"{{\s*(\w+)\s*}}")

Saved = dict[str, Any]


async def observed(seconds: float, folder: Path) -> Saved:
    """The boards after a rehearsal of so many seconds."""
    async with rehearsal(folder) as stage, prometheus(folder, stage.targets) as server:
        await server.up(len(stage.targets))
        began = time.time()
        try:
            async with asyncio.timeout(seconds):
                await stage.play()
        except TimeoutError:
            print(f"{stage.answered} calls in {seconds:.0f} seconds", file=sys.stderr)
        await asyncio.sleep(1.5)  # for the last scrape
        replicas = {target: f"replica {number}" for number, target in enumerate(stage.targets, 1)}
        reading = _Reading(server, began + 5, time.time(), replicas)
        boards = [
            {
                "uid": board.uid,
                "title": board.title,
                "rows": [
                    {"title": row.title, "panels": [await reading.panel(panel) for panel in row.panels]}
                    for row in board.rows
                ],
            }
            for board in BOARDS
        ]
    return {"boards": boards}


class _Reading:
    """The answers of one run, from `start` to `end`."""

    def __init__(self, server: Prometheus, start: float, end: float, replicas: Mapping[str, str]) -> None:
        self._server = server
        self._start = start
        self._end = end
        self._replicas = replicas

    async def panel(self, panel: Panel) -> Saved:
        series = [found for query in panel.queries for found in await self._series(panel, query)]
        told = {name: getattr(panel, name) for name in ("title", "kind", "unit", "width", "good", "bad", "floor")}
        return {**told, "series": series}

    async def _series(self, panel: Panel, query: Query) -> list[Saved]:
        expr = filled(query, rate=_WINDOW, range=f"{round(self._end - self._start)}s")
        if panel.kind in ("number", "bars"):
            found = await self._server.now(expr)
        else:
            found = await self._server.over(expr, self._start, self._end, _STEP)
        return [
            {
                "name": self._name(query, series.labels),
                "points": [[round(at - self._start, 1), value] for at, value in series.points if math.isfinite(value)],
            }
            for series in found
        ]

    def _name(self, query: Query, labels: Mapping[str, str]) -> str:
        def value(name: re.Match[str]) -> str:
            said = labels.get(name[1], "")
            return self._replicas.get(said, said)

        return _LABEL.sub(value, query.legend)


async def spenders(folder: Path) -> str:
    """Who spent, by the usage rows that the first gateway left behind."""
    place = folder / "gateway0"
    child = await asyncio.create_subprocess_exec(
        *(str(COMMAND), "usage", "--by", "key", "--config", "weirgate.yaml"),
        cwd=place,
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await child.communicate()
    return said.decode()


async def run(file: Path, seconds: float) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        saved = await observed(seconds, Path(scratch))
        print(await spenders(Path(scratch)))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(saved), encoding="utf-8")


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m grafana.observed", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--seconds", type=float, default=180.0)
    asked = parser.parse_args(arguments)
    asyncio.run(run(asked.file, asked.seconds))


if __name__ == "__main__":
    main(sys.argv[1:])
