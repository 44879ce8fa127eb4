"""A gateway that notes where its CPU goes: `sampling.py FOLDER serve --config ...` serves as `weirgate serve` does.

Every few milliseconds of the process's CPU a signal finds the main thread's Python stack; what that thread has used
since the last one, kernel time included, is put down to that stack. Time in a C function counts for who called it,
time in the event loop for the first function that it calls afterwards. At the end the folded stacks, which any flame
graph tool reads, stand in FOLDER/stacks.txt, in microseconds: `frame;frame;frame 1234`, frames as `file:function`.
SIGUSR1 forgets what was noted so far: the start, and the first calls.
"""

from __future__ import annotations

import runpy
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType

ROOT = Path(__file__).resolve().parent.parent
EVERY = 0.002
"""Seconds of CPU between two looks; the kernel rounds them up to its tick."""
OUTPUT = "stacks.txt"
_LIBRARY = f"python{sys.version_info.major}.{sys.version_info.minor}"


class Sampler:
    def __init__(self) -> None:
        self._used: Counter[tuple[CodeType, ...]] = Counter()
        self._before = time.thread_time_ns()

    def look(self, _number: int, frame: FrameType | None) -> None:
        now = time.thread_time_ns()
        stack: list[CodeType] = []
        while frame is not None:
            stack.append(frame.f_code)
            frame = frame.f_back
        self._used[tuple(reversed(stack))] += now - self._before
        self._before = time.thread_time_ns()  # not what looking took

    def forget(self, _number: int, _frame: FrameType | None) -> None:
        self._used.clear()

    def folded(self) -> str:
        """Functions of equal name in one file are one."""
        lines: Counter[str] = Counter()
        for stack, used in self._used.items():
            lines[";".join(map(_named, stack))] += used
        return "".join(f"{line} {used // 1000}\n" for line, used in lines.items())


def _named(code: CodeType) -> str:
    """Without a path of this machine: a file of a package from there, one of the house from its root."""
    file = Path(code.co_filename)
    packages = [place for place, part in enumerate(file.parts) if part in ("site-packages", _LIBRARY)]
    if packages:
        name = "/".join(file.parts[packages[-1] + 1 :])
    else:
        name = str(file.relative_to(ROOT)) if file.is_relative_to(ROOT) else file.name
    return f"{name}:{code.co_qualname}".replace(" ", "").replace(";", "")


def main() -> None:
    folder = Path(sys.argv.pop(1))
    sampler = Sampler()
    signal.signal(signal.SIGPROF, sampler.look)
    signal.signal(signal.SIGUSR1, sampler.forget)
    signal.setitimer(signal.ITIMER_PROF, EVERY, EVERY)
    try:
        runpy.run_module("proxy", run_name="__main__", alter_sys=True)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        (folder / OUTPUT).write_text(sampler.folded())


if __name__ == "__main__":
    main()
