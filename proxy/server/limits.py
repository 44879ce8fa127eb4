"""What one connection may cost; numbers only, and what they mean. `guard` holds connections to them."""

from __future__ import annotations

import msgspec


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """All finite. Seconds and bytes; sizes of bodies are as sent, before any decompression.

    A body has `body_seconds` plus the time its bytes so far would take at `body_rate` bytes a second, so that a trickle
    is cut while a large upload over a slow line is not. `keep_alive` is how long a connection may idle between two
    requests. `write_idle` is how long a client may take nothing of what waits for it. `hosts` are the Host names
    answered for; empty means any.
    """

    head_seconds: float = 10.0
    head_bytes: int = 32 * 1024
    head_fields: int = 64
    body_seconds: float = 60.0
    body_rate: int = 64 * 1024
    body_bytes: int = 64 * 1024 * 1024
    keep_alive: float = 75.0
    write_idle: float = 60.0
    linger: float = 5.0
    connections: int = 10_000
    pipelined: int = 64
    hosts: frozenset[str] = frozenset()

    @property
    def tick(self) -> float:
        """Seconds between two sweeps; a deadline is met within one of them."""
        shortest = min(self.head_seconds, self.body_seconds, self.keep_alive, self.write_idle, self.linger)
        return max(0.01, min(1.0, shortest / 4))
