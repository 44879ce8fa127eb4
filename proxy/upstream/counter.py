"""Exact token counts, off the event loop.

Here: the two public vocabularies, read from files that ship with us, in a small bounded pool of threads. Never here: a
download, an environment variable, a cache folder (tiktoken's own loader has all three), an exception that reaches the
caller. Where a count cannot be had (no file, a wrong hash, too much waiting, an encoder that panics) the answer is the
estimate of `core.measure`; a number always comes back. Why: research/performance.md 5, real-parts.md 7,
reliability.md finding 8 and I-59.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec
import tiktoken

from proxy.core.measure import estimate

DEFAULT: Final = "o200k_base"
"""Stands in for encodings we do not have; no other vocabulary is public for more models."""

_PIECE: Final = 32 * 1024
"""Bytes encoded in one go. The encoder overflows its stack at about a million blanks, and each call costs a list."""


class _Vocabulary(msgspec.Struct, frozen=True, kw_only=True):
    """`file` is the name of the rank file (what tiktoken calls it in its cache), `sha256` its hash as tiktoken 0.14
    states it, `pattern` how text is split before merging: part of the encoding's public definition."""

    file: str
    sha256: str
    pattern: str


_WORD: Final = r"[^\r\n\p{L}\p{N}]?"
_UPPER: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SHORT: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"

_VOCABULARIES: Final = MappingProxyType(
    {
        "o200k_base": _Vocabulary(
            file="fb374d419588a4632f3f557e76b4b70aebbca790",
            sha256="446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
            pattern="|".join(
                (
                    f"{_WORD}{_UPPER}*{_LOWER}+{_SHORT}",
                    f"{_WORD}{_UPPER}+{_LOWER}*{_SHORT}",
                    r"\p{N}{1,3}",
                    r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
                    r"\s*[\r\n]+",
                    r"\s+(?!\S)",
                    r"\s+",
                )
            ),
        ),
        "cl100k_base": _Vocabulary(
            file="9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
            sha256="223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
            pattern="|".join(
                (
                    r"'(?i:[sdmt]|ll|ve|re)",
                    r"[^\r\n\p{L}\p{N}]?+\p{L}++",
                    r"\p{N}{1,3}+",
                    r" ?[^\s\p{L}\p{N}]++[\r\n]*+",
                    r"\s++$",
                    r"\s*[\r\n]",
                    r"\s+(?!\S)",
                    r"\s",
                )
            ),
        ),
    }
)


class Counter:
    """Counts tokens in `workers` threads with the rank files of folder `ranks`.

    `waiting_limit` bounds the characters that wait or are being counted; what comes on top is estimated at once.
    `piece` is the most bytes given to the encoder in one go.
    """

    def __init__(
        self, ranks: Path, workers: int = 1, *, waiting_limit: int = 16 * 1024 * 1024, piece: int = _PIECE
    ) -> None:
        self._ranks = ranks
        self._waiting_limit = waiting_limit
        self._piece = piece
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="tokens")
        self._lock = threading.Lock()
        self._loading = threading.Lock()
        self._waiting = 0
        self._closed = False
        self._encodings: dict[str, tiktoken.Encoding | None] = {}

    @property
    def waiting(self) -> int:
        """Characters that wait or are being counted."""
        return self._waiting

    async def count(self, texts: tuple[str, ...], encoding: str) -> tuple[int, ...]:
        """One number per text. Text that looks like a special token counts as the text it is."""
        size = sum(map(len, texts))
        if not size:
            return (0,) * len(texts)
        if self._closed or not self._admit(size):
            return tuple(map(estimate, texts))
        task: Future[tuple[int, ...]] = self._pool.submit(self._count, texts, encoding)
        # On the thread's future, not on the awaited one: a caller that is cancelled leaves a running count behind,
        # and its characters are still being worked on.
        task.add_done_callback(lambda _: self._release(size))
        try:
            return await asyncio.wrap_future(task)
        except asyncio.CancelledError:
            if not self._dropped():
                raise
            return tuple(map(estimate, texts))

    async def warm(self, encoding: str = DEFAULT) -> bool:
        """Load an encoding before it is needed; False where it cannot be had. Call it before serving: making the
        encoder takes a third of a second in the thread, most of it without letting the event loop run."""
        return await asyncio.wrap_future(self._pool.submit(self._encoding, encoding)) is not None

    def close(self) -> None:
        """Drop what waits. A count that runs goes on to the end of its pieces, without being waited for."""
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _dropped(self) -> bool:
        """`close` cancels what waits in the pool; that is not the caller being cancelled."""
        caller = asyncio.current_task()
        return self._closed and caller is not None and not caller.cancelling()

    def _admit(self, size: int) -> bool:
        with self._lock:
            if self._waiting and self._waiting + size > self._waiting_limit:
                return False
            self._waiting += size
            return True

    def _release(self, size: int) -> None:
        with self._lock:
            self._waiting -= size

    def _count(self, texts: tuple[str, ...], name: str) -> tuple[int, ...]:
        encoding = self._encoding(name)
        if encoding is None:
            return tuple(map(estimate, texts))
        return tuple(self._count_one(encoding, text) for text in texts)

    def _count_one(self, encoding: tiktoken.Encoding, text: str) -> int:
        total = 0
        for piece in pieces(text, self._piece):
            if self._closed:
                return estimate(text)
            try:
                # No text is special here: the same as encode(disallowed_special=()), without its search.
                total += len(encoding.encode_ordinary(piece))
            except BaseException:
                # The encoder's panics are no Exception; nothing else but them can come out of a thread's encode.
                total += estimate(piece)
        return total

    def _encoding(self, name: str) -> tiktoken.Encoding | None:
        key = name if name in _VOCABULARIES else DEFAULT
        with self._loading:
            if key not in self._encodings:
                self._encodings[key] = _load(self._ranks, key)
            return self._encodings[key]


def pieces(text: str, limit: int) -> Iterator[str]:
    """`text` in parts of at most `limit` bytes of UTF-8, cut behind a line or before a blank where there is one in the
    last quarter, so that a cut moves the count by a token at most."""
    step = limit if text.isascii() else max(1, limit // 4)
    at = 0
    while len(text) - at > step:
        end = at + step
        least = end - step // 4
        line = text.rfind("\n", least, end)
        blank = text.rfind(" ", least, end) if line < 0 else -1
        cut = line + 1 if line >= 0 else blank if blank > at else end
        yield text[at:cut]
        at = cut
    yield text[at:]


def _load(folder: Path, name: str) -> tiktoken.Encoding | None:
    """None where the file is missing or not the one we know."""
    vocabulary = _VOCABULARIES[name]
    try:
        data = (folder / vocabulary.file).read_bytes()
    except OSError:
        return None
    if hashlib.sha256(data).hexdigest() != vocabulary.sha256:
        return None
    lines = (line.split() for line in data.splitlines())
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    return tiktoken.Encoding(name, pat_str=vocabulary.pattern, mergeable_ranks=ranks, special_tokens={})
