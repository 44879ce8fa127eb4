"""A folder of configuration files: which they are, and whether they look other than before.

Belongs here: names and prints of files. Never: what stands in them, and no timer. What the names *lead to* is looked
at, since Kubernetes updates a mounted ConfigMap by swapping a symlink.
"""

from __future__ import annotations

from pathlib import Path


def yaml_files(folder: Path) -> list[Path]:
    """The YAML files of `folder` by name. Hidden entries are Kubernetes' own (`..data`). Raises OSError, ValueError."""
    found = [each for each in folder.iterdir() if each.suffix in (".yaml", ".yml") and not each.name.startswith(".")]
    return sorted(found, key=lambda each: each.name)


def print_of(file: Path) -> tuple[object, ...]:
    """What tells one state of a file from the next, whether it is there or not. Never raises."""
    try:
        state = file.stat()
        return (file.name, str(file.resolve()), state.st_ino, state.st_mtime_ns, state.st_ctime_ns, state.st_size)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        return (file.name, getattr(error, "errno", None))
