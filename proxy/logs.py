"""What the gateway says about itself: JSON lines on stderr.

Belongs here: the form of a line. Never: a key, a word of a conversation, or a name that a client chose.
"""

from __future__ import annotations

import sys
from typing import Literal


def log(level: Literal["info", "warning", "error"], event: str, **facts: object) -> None:
    """Write one line. May wait for whoever reads stderr: while calls are served, not to be done on the event loop."""
    # Here, because structlog brings rich along, a sixth of what a start takes, and most processes never say a word.
    import structlog

    if not structlog.is_configured():
        structlog.configure(
            processors=[
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                structlog.processors.JSONRenderer(),
            ],
            # Asked for with each line: a test that takes stderr gets the lines that are written meanwhile.
            logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
        )
    getattr(structlog.get_logger("weirgate"), level)(event, **facts)
