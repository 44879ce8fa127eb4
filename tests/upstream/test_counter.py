"""Exact counts from the shipped vocabularies: right, bounded, offline, and a number whatever happens."""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import FunctionType

import pytest
import tiktoken_ext.openai_public
from hypothesis import given
from hypothesis import strategies as st

import proxy
from proxy.core.measure import estimate
from proxy.upstream import counter as module
from proxy.upstream.counter import Counter, pieces

RANKS = Path(proxy.__file__).parent / "catalogue" / "ranks"
PROSE = "A weir is a low barrier built across a river to raise the water level. "


@asynccontextmanager
async def counting(ranks: Path = RANKS, workers: int = 1, **more: int) -> AsyncIterator[Counter]:
    counter = Counter(ranks, workers, **more)
    try:
        yield counter
    finally:
        counter.close()


async def test_known_texts_have_their_published_counts() -> None:
    async with counting() as counter:
        texts = ("", "hello world", "tiktoken is great!", "你好，世界", "<|endoftext|>")
        assert await counter.count(texts, "o200k_base") == (0, 2, 6, 3, 7)
        assert await counter.count(texts, "cl100k_base") == (0, 2, 6, 6, 7)


@pytest.mark.parametrize("name", ["o200k_base", "cl100k_base"])
def test_patterns_and_hashes_are_those_of_the_installed_library(name: str) -> None:
    stated: dict[str, str] = {}

    def note(url: str, expected_hash: str) -> dict[bytes, int]:
        stated["hash"] = expected_hash
        return {}

    library: Callable[[], dict[str, object]] = getattr(tiktoken_ext.openai_public, name)
    assert isinstance(library, FunctionType)
    offline = FunctionType(library.__code__, {**library.__globals__, "load_tiktoken_bpe": note})
    ours = module._VOCABULARIES[name]
    assert (offline()["pat_str"], stated["hash"]) == (ours.pattern, ours.sha256)


async def test_an_unknown_encoding_is_counted_as_o200k() -> None:
    async with counting() as counter:
        text = PROSE + "Größenwahn 你好"
        assert await counter.count((text,), "no_such_encoding") == await counter.count((text,), "o200k_base")


async def test_a_million_blanks_are_counted() -> None:
    async with counting() as counter:
        (blanks, tabs) = await counter.count((" " * 1_000_000, "\t" * 1_000_000), "o200k_base")
        assert 1_000 < blanks < 50_000
        assert 1_000 < tabs < 500_000


async def test_an_encoder_that_panics_is_answered_by_the_estimate() -> None:
    text = " " * 1_500_000
    async with counting(piece=2_000_000) as counter:
        assert await counter.count((text, "hello world"), "o200k_base") == (estimate(text), 2)


async def test_cutting_a_long_text_moves_the_count_by_a_token_per_cut_at_most() -> None:
    text = PROSE * 3_000 + "你好，世界。" * 3_000 + "0123456789abcdef" * 3_000
    cuts = sum(1 for _ in pieces(text, 8192)) - 1
    async with counting(piece=8192) as cut, counting(piece=len(text) * 4) as whole:
        (some,), (exact,) = await cut.count((text,), "o200k_base"), await whole.count((text,), "o200k_base")
    assert cuts > 20
    assert abs(some - exact) <= 2 * cuts
    assert abs(some - exact) / exact < 0.001


@given(st.text(max_size=400), st.integers(1, 64))
def test_pieces_are_the_text_and_never_larger_than_the_limit(text: str, limit: int) -> None:
    parts = list(pieces(text, limit))
    assert "".join(parts) == text
    assert all(len(part.encode("utf-8", "surrogatepass")) <= max(limit, 4) for part in parts)


def test_pieces_end_behind_a_line_or_before_a_blank() -> None:
    assert list(pieces("aaaa bbbbb\nc dddd", 12)) == ["aaaa bbbbb\n", "c dddd"]
    assert list(pieces("aaaa bbbb cccc", 12)) == ["aaaa bbbb", " cccc"]
    assert list(pieces("a" * 20, 8)) == ["a" * 8, "a" * 8, "a" * 4]


async def test_many_at_once_count_the_same_as_one_by_one() -> None:
    texts = [PROSE * n for n in range(1, 60)]
    async with counting(workers=2) as counter:
        together = await asyncio.gather(*(counter.count((text,), "o200k_base") for text in texts))
        assert together == [await counter.count((text,), "o200k_base") for text in texts]
        assert counter.waiting == 0


async def test_the_loop_turns_while_a_long_text_is_counted() -> None:
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with counting() as counter:
        await counter.warm()
        spinning = asyncio.create_task(turn())
        await counter.count((PROSE * 40_000,), "o200k_base")
        spinning.cancel()
    assert turns > 20


async def test_what_would_wait_beyond_the_bound_is_estimated_at_once() -> None:
    long, short = PROSE * 20_000, "0f3a9c" * 10
    async with counting(waiting_limit=len(long) + 10) as counter:
        first = asyncio.create_task(counter.count((long,), "o200k_base"))
        await asyncio.sleep(0)  # one turn: the first count has been handed over
        assert counter.waiting == len(long)
        assert await counter.count((short,), "o200k_base") == (estimate(short),)
        assert not first.done()
        (exact,) = await first
        assert exact != estimate(long)
        assert counter.waiting == 0
        assert await counter.count((short,), "o200k_base") != (estimate(short),), "there is room again"


async def test_a_cancelled_caller_gives_its_room_back_when_the_thread_is_done_with_it() -> None:
    async with counting() as counter:
        task = asyncio.create_task(counter.count((PROSE * 10_000,), "o200k_base"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await counter.count(("behind it",), "o200k_base")
        assert counter.waiting == 0


async def test_nothing_is_downloaded_and_no_cache_folder_is_touched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    async with counting() as counter:
        assert await counter.count(("hello world",), "cl100k_base") == (2,)
        assert await counter.count(("hello world",), "no_such_encoding") == (2,)
    assert list(tmp_path.iterdir()) == []


async def test_without_its_file_or_with_a_changed_one_the_estimate_stands_in(tmp_path: Path) -> None:
    text = PROSE * 3
    async with counting(tmp_path) as counter:
        assert not await counter.warm()
        assert await counter.count((text,), "o200k_base") == (estimate(text),)
    for file in RANKS.iterdir():
        shutil.copy(file, tmp_path)
        with (tmp_path / file.name).open("ab") as changed:
            changed.write(b"QUFBQUFB 999999\n")
    names = sorted(file.name for file in tmp_path.iterdir())
    async with counting(tmp_path) as counter:
        assert await counter.count((text,), "o200k_base") == (estimate(text),)
    assert sorted(file.name for file in tmp_path.iterdir()) == names, "and is left where it is"


async def test_closing_answers_those_who_wait_with_the_estimate() -> None:
    counter = Counter(RANKS)
    running = asyncio.create_task(counter.count((PROSE * 100_000,), "o200k_base"))
    waiting = asyncio.create_task(counter.count((PROSE,), "o200k_base"))
    await asyncio.sleep(0)
    counter.close()
    counter.close()
    assert await waiting == (estimate(PROSE),)
    assert (await running)[0] > 0
    assert await counter.count((PROSE,), "o200k_base") == (estimate(PROSE),)
