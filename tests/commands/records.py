"""A database with a few usage rows, as a server that is gone would have left it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from proxy.core.usage import UsageRow
from proxy.store import Calibration
from proxy.store.sqlite import from_url

NOV_1 = 1_793_491_200.0
"""2026-11-01T00:00:00Z"""


def row(id: str, **more: Any) -> UsageRow:
    fields: dict[str, Any] = {
        "id": id,
        "request": f"req_{id}",
        "tenant": "acme",
        "key": "k1",
        "conversation": "conv_1",
        "upstream": "main",
        "asked_model": "fast",
        "model": "gpt-4o",
        "status": "ok",
        "opened_at": NOV_1,
        "input": 1_234_567,
        "output": 1_000,
        "cached": 400,
        "cost": 1_500_000_000,
        "projected": 6_000,
        "window": 8_000,
    }
    return UsageRow(**(fields | more))


ROWS = (
    row("a"),
    row("b", opened_at=NOV_1 + 86_400, model="small", cost=20_000, compaction="auto", estimated=True),
    row("c", opened_at=NOV_1 + 90_000, key="k2", status="failed", error="upstream_timeout", cost=0, input=0, output=0),
    row("d", opened_at=NOV_1 + 95_000, model="local", cost=None, unpriced=True, compaction="recovered", tenant="other"),
)


def database(path: Path, rows: tuple[UsageRow, ...] = ROWS, learned: tuple[Calibration, ...] = ()) -> Path:
    """The file at `path`, closed."""

    async def make() -> None:
        store = from_url(f"sqlite:///{path}")
        await store.open(NOV_1)
        for one in rows:
            store.open_row(one)
        await asyncio.gather(*(store.close_row(one) for one in rows))
        for each in learned:
            await store.calibrate(each)
        await store.close()

    asyncio.run(make())
    return path
