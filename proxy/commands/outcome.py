"""How a command ends: its exit code, and what went wrong in one line on stderr.

Belongs here: the meaning of exit codes and the one place where an exception becomes words. Never: results, which go to
stdout, and no traceback for what a person can put right.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Final

from proxy.configfile import ConfigError
from proxy.core.errors import WeirgateError

DONE: Final = 0
FAILED: Final = 1
WRONG: Final = 2


class NotDone(Exception):
    """The command cannot do what it was asked; the text says why and what would help."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.code = code


def attempt(work: Callable[[], int]) -> int:
    """The exit code of `work`. What it raises for a person to read is said on stderr."""
    try:
        code = work()
        sys.stdout.flush()
        return code
    except NotDone as failure:
        say(str(failure))
        return failure.code
    except ConfigError as failure:
        for problem in failure.problems:
            say(str(problem))
        return WRONG
    except WeirgateError as failure:
        say(failure.message)
        return FAILED
    except BrokenPipeError:
        # `weirgate usage | head`: whoever read has read enough. What is still buffered goes nowhere, without a word.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE


def say(text: str) -> None:
    """A note or a reason: on stderr, so that stdout holds the result alone."""
    sys.stderr.write(f"weirgate: {text}\n")
    sys.stderr.flush()
