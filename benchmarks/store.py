"""What a usage row costs: rows per second and CPU per row, opened and closed through the store, each close awaited.

Run: .venv/bin/python benchmarks/store.py [--seconds 2] [--folder DIR]. DIR decides which disk syncs. `recall` is that
of a conversation of 400 messages: as it grows by one turn that is remembered, as asked again, and as first met.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import msgspec
import uvloop

from proxy.core.steps import Anchor, Recall, Remember
from proxy.core.usage import UsageRow
from proxy.store.sqlite import SqliteStore

SCOPE = b"scope" * 6


def row(number: int) -> UsageRow:
    return UsageRow(
        id=f"row_{number:032d}",
        request=f"req_{number}",
        tenant="tenant",
        key="key",
        conversation="conv_1",
        upstream="main",
        asked_model="fast",
        model="some-model-2026",
        opened_at=1.8e9 + number,
        input=1200,
        output=300,
        cost=1_234_567,
        policy="default",
        policy_hash="0123456789abcdef",
    )


async def pairs(store: SqliteStore, concurrency: int, seconds: float, first: int) -> tuple[int, float, float, float]:
    """(rows, elapsed seconds, CPU seconds, median milliseconds to the durable close)."""
    count, waits = first, []
    end = time.perf_counter() + seconds

    async def worker() -> None:
        nonlocal count
        while time.perf_counter() < end:
            count += 1
            opened = row(count)
            store.open_row(opened)
            closed = msgspec.structs.replace(opened, status="ok", duration=1.5, first_token=0.2)
            start = time.perf_counter()
            await store.close_row(closed)
            waits.append(time.perf_counter() - start)

    start, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(worker() for _ in range(concurrency)))
    return count - first, time.perf_counter() - start, time.process_time() - cpu, sorted(waits)[len(waits) // 2] * 1e3


async def timed(what: Callable[[int], Awaitable[object]], times: int) -> tuple[float, float]:
    """(microseconds, CPU microseconds) of one."""
    start, cpu = time.perf_counter(), time.process_time()
    for number in range(times):
        await what(number)
    return (time.perf_counter() - start) / times * 1e6, (time.process_time() - cpu) / times * 1e6


async def recalls(store: SqliteStore) -> None:
    path = [number.to_bytes(32, "little") for number in range(400)]
    anchor = Anchor(upstream="main", model="m", shape=b"shape", reported=1000, estimated=990)

    async def turn(number: int) -> None:
        path.insert(0, (1000 + 2 * number).to_bytes(32, "little"))
        await store.recall("tenant", ask(tuple(path)), 1.8e9)
        reply = (1001 + 2 * number).to_bytes(32, "little")
        await store.remember(
            "tenant",
            Remember(scope=SCOPE, agent="a", conversation="conv_1", request=path[0], reply=reply, anchor=anchor),
            1.8e9,
        )
        path.insert(0, reply)

    async def again(number: int) -> None:
        await store.recall("tenant", ask((number.to_bytes(32, "big"), *path[:399])), 1.8e9)

    async def new(number: int) -> None:
        fresh = tuple((number * 400 + place + 1 << 64).to_bytes(32, "big") for place in range(400))
        await store.recall("tenant", ask(fresh), 1.8e9)

    def ask(digests: tuple[bytes, ...]) -> Recall:
        return Recall(scope=SCOPE, agent="a", label=None, named=False, digests=digests)

    for name, what, times in (("turn: recall + remember", turn, 300), ("recall", again, 2000), ("first met", new, 300)):
        wall, cpu = await timed(what, times)
        print(f"{name:26} {wall:8.0f} us {cpu:8.0f} us CPU")


async def main(seconds: float, folder: str) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as place:
        store = SqliteStore(str(Path(place) / "bench.db"))
        await store.open(0.0)
        print(f"{'pairs (open + close)':20} {'rows/s':>9} {'CPU us/row':>11} {'p50 ms':>8}")
        first = 0
        for concurrency in (1, 16, 64):
            rows, elapsed, cpu, p50 = await pairs(store, concurrency, seconds, first)
            first += rows
            print(f"concurrency {concurrency:8} {rows / elapsed:9.0f} {cpu / rows * 1e6:11.1f} {p50:8.2f}")
        times = 1_000  # fewer than a batch: the thread is not woken
        start = time.perf_counter()
        opened = row(first + 1)
        for _ in range(times):
            store.open_row(opened)
        print(f"open_row alone       {(time.perf_counter() - start) / times * 1e6:9.2f} us")
        await store.close_row(opened)
        await recalls(store)
        await store.close()


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=2.0)
    options.add_argument("--folder", default=None)
    chosen = options.parse_args()
    uvloop.run(main(chosen.seconds, chosen.folder))
