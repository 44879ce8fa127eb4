"""Folders of skills for the tests of this room: written in one line each, and looked at by id."""

from __future__ import annotations

from pathlib import Path

from proxy.tools.skills import Library


def write(root: Path, *skills: str, text: str = "Be kind.") -> Path:
    """A SKILL.md in each of the named folders below `root`."""
    for each in skills:
        folder = root / each
        folder.mkdir(parents=True, exist_ok=True)
        written = f"---\nname: {folder.name}\ndescription: For {folder.name}.\n---\n{text}\n"
        (folder / "SKILL.md").write_bytes(written.encode("utf-8", "replace"))
    return root


def ids(library: Library, tenant: str | None = None) -> list[str]:
    skills = library.skills() if tenant is None else library.of(tenant).values()
    return [skill.id for skill in skills]


def problems(library: Library, root: Path) -> list[str]:
    return [str(each).removeprefix(f"{root}/") for each in library.problems]


def warnings(library: Library, root: Path) -> list[str]:
    return [str(each).removeprefix(f"{root}/") for each in library.warnings]
