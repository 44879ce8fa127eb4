"""Whether this process is behind its work, so that new calls are refused while they have cost nothing yet.

Belongs here: how many calls it may serve at once, and finding that out. Never: refusing (`guard` does, before a body is
read), or what runs: that goes on.

How many streams a process can carry depends on the machine, the models and the clients; no setting knows it. So it is
found by trying, as TCP finds the width of a line: while the event loop is late, the bound is a tenth lower than what is
served; while it is not, the bound grows again, up to the configured one. A loop that was late once has had a long piece
of work to do, or a neighbour who took the processor; only one that is late on average has too many calls.
"""

from __future__ import annotations

import asyncio
from typing import Final

from proxy.counted import Count

_TICK: Final = 0.025
"""Seconds between two looks while calls are served; nobody looks at an idle loop."""
_LATE: Final = 0.02
"""Seconds that looks come too late on average, for the loop to count as late: what a refusal waits for its turn."""
_FINE: Final = _LATE / 2
"""Below this the bound grows."""
_WORST: Final = 0.05
"""Seconds that a single look counts as late at most: one that comes very late is one piece of work, or a neighbour."""
_WEIGHT: Final = 0.2
"""Of the newest look in the average."""
_LEAST: Final = 64
"""Calls served at once that are never too many: a turn of the loop for each of them takes no longer than _LATE."""
_CALLS: Final = (b"/v1/chat/", b"/v1/embeddings")


class Overload:
    """`most` is the configured bound; `limit` the one that holds now, `shed` counts who was refused by it. Whoever
    takes a place adds to `serving`, and calls `watch` where it is not `watched`."""

    def __init__(self, most: int, shed: Count) -> None:
        self.most = most
        self.limit = most
        self.serving = 0
        self.shed = shed
        self._late = 0.0
        self._due = 0.0
        self._coming = 0
        self.watched = False

    def sheds(self, url: bytes) -> bool:
        """Whether a call to `url` is refused unread; it is counted then. Operators and probes are answered."""
        if not url.startswith(_CALLS):
            return False
        if self.serving + self._coming < self.limit:
            if not self._coming:
                asyncio.get_running_loop().call_soon(self._came)
            self._coming += 1
            return False
        self.shed.value += 1.0
        return True

    def _came(self) -> None:
        """Whose heads were read in the last turn of the loop have their places now, or none."""
        self._coming = 0

    def watch(self) -> None:
        """Look again and again, until nothing is served and the bound is the configured one."""
        self.watched = True
        loop = asyncio.get_running_loop()
        self._due = loop.time() + _TICK
        loop.call_at(self._due, self._look)

    def _look(self) -> None:
        late = asyncio.get_running_loop().time() - self._due
        self._late += (max(0.0, min(late, _WORST)) - self._late) * _WEIGHT
        self.limit = adjusted(self.limit, self.serving, self.most, self._late)
        self.watched = False
        if self.serving or self.limit < self.most:
            self.watch()


def adjusted(limit: int, serving: int, most: int, late: float) -> int:
    """The bound that follows `limit`, with so many calls served and looks so many seconds late."""
    if late > _LATE:
        return min(most, max(_LEAST, min(limit, serving) * 9 // 10))
    return min(most, limit + max(1, limit // 100)) if late < _FINE else limit
