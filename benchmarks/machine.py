"""What the figures were measured on: processor, memory, kernel and versions. Never a name, an address or a path."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path

from benchmarks import nginx
from benchmarks.build import Unavailable
from benchmarks.processes import Cores

PACKAGES = ("uvicorn", "uvloop", "httptools", "aiohttp", "starlette", "msgspec")


def _after_colon(file: str, key: str) -> str:
    for line in Path(file).read_text().splitlines():
        if line.startswith(key):
            return line.partition(":")[2].strip()
    return "unknown"


def _system() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    except OSError:
        return "Linux"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "missing"


def description(cores: Cores) -> tuple[str, ...]:
    """A few lines for the head of the results."""
    gib = int(_after_colon("/proc/meminfo", "MemTotal").split()[0]) / 2**20
    placed = (
        f"contender on core {cores.tested}, upstream and generator on core {cores.rest}"
        if cores.tested is not None
        else "one core only, nothing pinned: read no ratio to nginx or direct from this run"
    )
    try:
        nginx_version = nginx.version(nginx.find_nginx())
    except Unavailable:
        nginx_version = "missing"
    versions = ", ".join(f"{package} {_version(package)}" for package in PACKAGES)
    kernel = ".".join(platform.release().split("-")[0].split(".")[:2])
    load = os.getloadavg()[0]
    return (
        f"{_after_colon('/proc/cpuinfo', 'model name')}, {os.cpu_count()} cores, {gib:.0f} GiB; {placed}",
        f"{_system()}, Linux {kernel}, Python {platform.python_version()}, nginx {nginx_version}, {versions}",
        f"load average when it began: {load:.1f}" + (" (a noisy machine: compare ratios only)" if load > 1 else ""),
    )
