"""Child processes of a benchmark: pinned to a core, measured from /proc, stopped by their own pid whatever happens."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

STOP_SECONDS = 6.0


class Cores(msgspec.Struct, frozen=True, kw_only=True):
    """Where things run: the system under test on one core, upstream and generator on another. None: not pinned."""

    tested: int | None
    rest: int | None


def cores() -> Cores:
    """Two of the cores that we may use; no pinning where there is only one."""
    allowed = sorted(os.sched_getaffinity(0))
    return Cores(tested=allowed[0], rest=allowed[1]) if len(allowed) > 1 else Cores(tested=None, rest=None)


@contextlib.contextmanager
def pinned(core: int | None) -> Iterator[None]:
    """Children started inside inherit the core; we ourselves go back to what we had."""
    before = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Child:
    """A started process. Its output goes to a file, which is shown when it does not come up."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def ends_within(self, seconds: float) -> bool:
        """Wait that long for its end; False if it still runs then."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def last_words(self, lines: int = 6) -> str:
        """The end of its output, for a person to read."""
        return "\n".join(self._log.read_text(errors="replace").strip().splitlines()[-lines:])

    def stop(self) -> None:
        """Ask, wait, insist: after this it is gone, and the processes that it started. Safe to call twice."""
        if self.ended:
            return
        family = tree(self.pid)[1:]
        self._process.terminate()
        try:
            self.ends_within(STOP_SECONDS)
        finally:  # also where a second Ctrl-C cuts the waiting short
            self._process.kill()
            self._process.wait()
            for pid in family:  # by their own ids; those that it has ended itself are gone by now
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)


def start(
    command: Sequence[str], *, core: int | None, folder: Path, log: Path, environment: Mapping[str, str] | None = None
) -> Child:
    """Start `command` in `folder`; without an `environment` it inherits ours. Raises OSError where it cannot be run."""
    with log.open("wb") as output, pinned(core):
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    return Child(process, log)


def allow_many_files() -> None:
    """A thousand open streams are two thousand sockets in a proxy: our children may open what the system allows us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def tree(pid: int) -> tuple[int, ...]:
    """`pid` and everything below it, as far as it is alive."""
    parents: dict[int, int] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                # the name in parentheses may hold spaces and parentheses: the fields follow the last one
                fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
    found = [pid]
    for member in found:
        found += [child for child, parent in parents.items() if parent == member]
    return tuple(found)


def cpu_ns(pids: Sequence[int]) -> int:
    """CPU time in nanoseconds that these processes have used, with all threads, also those that ended: the kernel's
    process clocks, which count scheduler run time and not ticks."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            total += time.clock_gettime_ns((~pid << 3) | 2)  # the clock id of a process, see clock_getcpuclockid(3)
    return total


def rss_bytes(pids: Sequence[int]) -> int:
    """Resident memory of these processes, pages they share counted in each."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            total += pages * os.sysconf("SC_PAGE_SIZE")
    return total
