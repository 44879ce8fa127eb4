"""Where skills may stand below a root, whose they are then, and the bounds of looking for them."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from proxy.configfile import ConfigError
from proxy.tools import skill_folders
from proxy.tools.skill_folders import print_of, shown, walk
from proxy.tools.skills import Library, load
from tests.tools.shelves import ids, problems, write


def test_each_organisation_has_a_folder_and_shared_is_everybodys(tmp_path: Path) -> None:
    library = load([write(tmp_path, "acme/tone", "acme/refund-policy", "globex/tone", "shared/help")])
    assert ids(library, "acme") == ["shared/help", "acme/refund-policy", "acme/tone"]
    assert ids(library, "globex") == ["shared/help", "globex/tone"]
    assert ids(library, "initech") == ids(library, "shared") == ["shared/help"]
    assert library.problems == () and library.warnings == ()


def test_an_organisation_may_group_its_skills(tmp_path: Path) -> None:
    library = load([write(tmp_path, "acme/sales/tone", "acme/a/b/c/d/deep", "acme/Group with blanks/one")])
    assert ids(library, "acme") == ["acme/deep", "acme/one", "acme/tone"]
    deeper = load([write(tmp_path, "acme/a/b/c/d/e/deeper")])
    assert ids(deeper, "acme") == ["acme/deep", "acme/one", "acme/tone"]
    assert problems(deeper, tmp_path) == ["acme/a/b/c/d/e/deeper: stands deeper than 6 folders and is not looked into"]


def test_below_a_skill_there_are_files_and_no_skills(tmp_path: Path) -> None:
    library = load([write(tmp_path, "acme/tone", "acme/tone/examples/other")])
    assert ids(library) == ["acme/tone"]
    assert "- examples/other/SKILL.md" in library.of("acme")["tone"].text


def test_the_other_files_are_named_and_hidden_or_linked_ones_are_not(tmp_path: Path) -> None:
    tone = write(tmp_path, "acme/tone") / "acme/tone"
    for name in ("b.md", "a.md", "refs/c.md", "refs/more/d.md", "refs/more/most/e.md", ".git/config"):
        (tone / name).parent.mkdir(parents=True, exist_ok=True)
        (tone / name).write_text("never read")
    (tone / "link.md").symlink_to("a.md")
    (tone / "linked").symlink_to("refs")
    text = load([tmp_path]).of("acme")["tone"].text
    assert [line for line in text.splitlines() if line.startswith("- ")] == [
        "- a.md",
        "- b.md",
        "- refs/c.md",
        "- refs/more/d.md",
    ]
    assert "never read" not in text
    for number in range(60):
        (tone / f"f{number}.md").touch()
    text = load([tmp_path]).of("acme")["tone"].text
    assert len([line for line in text.splitlines() if line.startswith("- ")]) == skill_folders.MAX_FILES
    assert "(and 24 more)" in text


@pytest.mark.parametrize("home", [".agents", ".claude"])
def test_a_root_of_another_client_holds_shared_skills_directly(tmp_path: Path, home: str) -> None:
    root = write(tmp_path / home / "skills", "tone", "group/refund-policy", "shared")
    assert walk(root).flat
    assert ids(load([root])) == ["shared/refund-policy", "shared/shared", "shared/tone"]
    link = tmp_path / "mounted"
    link.symlink_to(root)
    assert ids(load([link]), "acme") == ["shared/refund-policy", "shared/shared", "shared/tone"]


def test_a_root_of_nothing_but_skills_is_shared(tmp_path: Path) -> None:
    root = write(tmp_path, "tone", "refund-policy")
    (root / "empty" / "inner").mkdir(parents=True)
    (root / "README.md").write_text("for people")
    library = load([root])
    assert walk(root).flat
    assert ids(library, "acme") == ["shared/refund-policy", "shared/tone"] and library.problems == ()
    write(root, "Tone-2")
    assert ids(load([root])) == ids(library)
    assert problems(load([root]), root) == [
        "Tone-2/SKILL.md: the folder's name has capital letters; a slug is made of a-z, 0-9 and hyphens, up to 64"
    ]


@pytest.mark.parametrize("neighbour", ["globex/tone", "shared/tone", "globex/sales/tone", "globex/BAD"])
def test_an_organisation_cannot_make_its_folder_everybodys_skill(tmp_path: Path, neighbour: str) -> None:
    root = write(tmp_path, neighbour, "acme", "acme/refund-policy")
    library = load([root])
    assert "acme" not in {skill.slug for skill in library.skills()}
    assert "acme/refund-policy" in ids(library, "acme")
    assert (
        "acme/SKILL.md: stands where an organisation's folder is expected: move it to shared/ or below one"
        in problems(library, root)
    )


def test_an_empty_folder_called_shared_says_that_every_other_is_an_organisations(tmp_path: Path) -> None:
    root = write(tmp_path, "acme")
    assert ids(load([root])) == ["shared/acme"]
    (root / "shared").mkdir()
    assert ids(load([root])) == []
    (root / "shared").rmdir()
    (root / "shared").symlink_to("/nowhere")
    assert ids(load([root])) == []


def test_a_folder_that_is_a_skill_and_holds_skills_is_refused_alone(tmp_path: Path) -> None:
    root = write(tmp_path, "acme", "acme/inner", "tone")
    library = load([root])
    assert ids(library) == ["shared/tone"]
    assert problems(library, root) == [
        "acme/SKILL.md: is refused because its folder holds other skills: "
        "an organisation's folder has no skill of its own"
    ]


def test_hidden_folders_are_nobodys(tmp_path: Path) -> None:
    library = load([write(tmp_path, ".acme/tone", "acme/.git/hooks", "acme/.tone", "acme/tone", ".tone")])
    assert ids(library) == ["acme/tone"] and library.problems == ()


def test_a_file_in_the_wrong_place_is_told(tmp_path: Path) -> None:
    root = write(tmp_path, "acme/tone")
    (root / "SKILL.md").write_text("x")
    (root / "skill.md").write_text("x")
    (root / "globex").mkdir()
    (root / "globex" / "skill.md").write_text("x")
    assert problems(load([root]), root) == [
        "SKILL.md: stands in the root itself; a skill needs a folder of its own",
        "skill.md: stands in the root itself; a skill needs a folder of its own",
        "globex/skill.md: must be called SKILL.md",
    ]


def test_two_folders_of_one_slug_leave_the_first(tmp_path: Path) -> None:
    root = write(tmp_path, "acme/a/tone", text="first")
    write(root, "acme/b/tone", text="second")
    library = load([root])
    assert "first" in library.of("acme")["tone"].text
    assert problems(library, root) == [
        f'acme/b/tone/SKILL.md: there is another skill "tone" of "acme": {root}/acme/a/tone/SKILL.md'
    ]


def test_a_folder_that_no_tenant_can_be_called_is_told_once(tmp_path: Path) -> None:
    root = write(tmp_path, "a b/tone", "a b/other", "аcme/tone", "_acme/tone", "acme/tone")
    library = load([root])
    assert ids(library) == ["acme/tone"]
    assert [each.partition(": ")[2] for each in problems(library, root)] == [
        "stands in the folder of an organisation that nobody can be called"
    ] * 3


def test_a_root_may_be_a_link_and_what_is_no_folder_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "real", "acme/tone")
    (tmp_path / "link").symlink_to("real")
    assert ids(load([tmp_path / "link"])) == ["acme/tone"]
    (tmp_path / "file").write_text("x")
    for bad in ("gone", "file", "no\0name"):
        with pytest.raises((OSError, ValueError)):
            walk(tmp_path / bad)


# -- bounds ------------------------------------------------------------------------------------------------------------


def test_one_organisation_cannot_crowd_out_another(tmp_path: Path) -> None:
    for number in range(skill_folders.MAX_FOLDERS + 50):
        (tmp_path / "acme" / f"d{number:05d}").mkdir(parents=True)
    write(tmp_path, "acme/zzz", "globex/tone")
    library = load([tmp_path])
    assert ids(library) == ["globex/tone"]
    assert problems(library, tmp_path) == ["acme: is left out, with what follows: there are too many folders"]


def test_a_thousand_skills_are_one_organisations_most(tmp_path: Path) -> None:
    slugs = [f"s{number:04d}" for number in range(skill_folders.MAX_SKILLS + 3)]
    write(tmp_path / "tenants", *(f"acme/{slug}" for slug in slugs), "shared/help")
    library = load([tmp_path / "tenants"])
    assert ids(library) == [*(f"acme/{slug}" for slug in slugs[:-3]), "shared/help"]
    assert problems(library, tmp_path / "tenants") == [
        "acme: is left out, with what follows: there are more than 1000 skills"
    ]
    flat = load([write(tmp_path / "flat", *slugs)])
    assert len(ids(flat)) == skill_folders.MAX_SKILLS and len(flat.problems) == 3
    several = load([tmp_path / "tenants", write(tmp_path / "later", "acme/s0000", "acme/one-more")])
    assert len(ids(several, "acme")) == skill_folders.MAX_SKILLS + 1
    assert '"acme" has 1000 skills already' in str(several.problems[-1])


def test_bytes_folders_names_and_problems_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write(tmp_path / "tenants", "acme/a", "acme/b", "globex/c")
    size = (root / "acme/a/SKILL.md").stat().st_size
    monkeypatch.setattr(skill_folders, "MAX_BYTES", size)
    library = load([root])
    assert ids(library) == ["acme/a", "globex/c"]
    assert problems(library, root) == ["acme: is left out, with what follows: there are too many bytes of skills"]
    assert ids(load([write(tmp_path / "flat", "a", "b")])) == ["shared/a"], "skills of one owner draw on one bound"
    monkeypatch.setattr(skill_folders, "MAX_ALL_BYTES", size)
    assert ids(load([root])) == ["acme/a"]
    monkeypatch.undo()
    monkeypatch.setattr(skill_folders, "MAX_ALL_FOLDERS", 2)
    assert ids(load([root])) == ["acme/a"]
    monkeypatch.undo()
    monkeypatch.setattr(skill_folders, "MAX_ENTRIES", 2)
    assert ids(load([root])) == ["acme/a", "acme/b", "globex/c"]
    write(root, "acme/d")
    assert problems(load([root]), root) == ["acme: holds more than 2 names"]
    write(root, "initech/e")
    with pytest.raises(ConfigError) as caught:
        load([root])
    assert str(caught.value) == f"{root}: the folder of skills cannot be read: holds more than 2 names"


def test_problems_are_told_up_to_a_number_and_the_rest_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write(tmp_path, *(f"{owner}/B{number}" for owner in ("acme", "globex") for number in range(150)))
    library = load([root])
    assert len(library.problems) == 2 * skill_folders.MAX_PROBLEMS + 1
    assert str(library.problems[-1]) == f"{root}: 100 more problems are not told"
    monkeypatch.setattr(skill_folders, "MAX_ALL_PROBLEMS", 120)
    assert str(load([root]).problems[-1]) == f"{root}: 180 more problems are not told"


def test_a_folder_that_became_a_link_while_it_was_looked_at_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look and the opening somebody swaps a folder, then a file, for a link to one outside."""
    secret = write(tmp_path / "outside", "skill", text="secret") / "skill"
    root = write(tmp_path / "root", "acme/tone", "acme/other")
    real = os.open

    def swapping(path: str, flags: int, *rest: int, dir_fd: int | None = None) -> int:
        folder = root / "acme" / "tone"
        if path == "tone" and not folder.is_symlink():
            folder.rename(root.parent / "was")
            folder.symlink_to(secret)
        if path == "SKILL.md" and (root / "acme/other").exists():
            file = root / "acme/other/SKILL.md"
            if not file.is_symlink():
                file.unlink()
                file.symlink_to(secret / "SKILL.md")
        return real(path, flags, *rest, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", swapping)
    library = load([root])
    assert ids(library) == []
    assert [each.partition(": ")[2] for each in problems(library, root)] == [
        "cannot be read: Too many levels of symbolic links",
        "cannot be read: Not a directory",
    ]


def test_a_pipe_that_took_the_place_of_a_file_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write(tmp_path, "acme/tone")
    file = root / "acme/tone/SKILL.md"
    real = os.open

    def swapping(path: str, flags: int, *rest: int, dir_fd: int | None = None) -> int:
        if path == "SKILL.md" and not file.is_fifo():
            file.unlink()
            os.mkfifo(file)
        return real(path, flags, *rest, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", swapping)
    found: list[Library] = []
    reader = threading.Thread(target=lambda: found.append(load([root])), daemon=True)
    reader.start()
    reader.join(20)
    assert found, "it waits for somebody to write to the pipe"
    assert problems(found[0], root) == ["acme/tone/SKILL.md: is not a regular file"]


def test_a_file_that_grows_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write(tmp_path, "acme/tone")
    real = os.open

    def growing(path: str, flags: int, *rest: int, dir_fd: int | None = None) -> int:
        if path == "SKILL.md":
            with (root / "acme/tone/SKILL.md").open("ab") as file:
                file.write(b"x" * 200_000)
        return real(path, flags, *rest, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", growing)
    assert problems(load([root]), root) == ["acme/tone/SKILL.md: is larger than 128 KiB, and a skill is never cut"]


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    root = write(tmp_path, "acme/tone", "acme/a/b/c/d/e/f", "shared/BAD")
    (root / "acme" / "tone" / "refs").mkdir()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        load([root])
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_may_not_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write(tmp_path, "acme/tone", "globex/x", "initech/y")
    (root / "initech/y/private").mkdir()
    (root / "initech/y/private/diary.md").touch()
    real = os.open
    denied = (root / "acme/tone").stat().st_ino

    def denying(path: str, flags: int, *rest: int, dir_fd: int | None = None) -> int:
        # Denied by hand: nothing is unreadable to root, who may run this.
        inside = dir_fd is not None and os.fstat(dir_fd).st_ino == denied
        if path in ("globex", "private") or (path == "SKILL.md" and inside):
            raise PermissionError(13, "Permission denied")
        return real(path, flags, *rest, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", denying)
    library = load([root])
    assert ids(library) == ["initech/y"] and "diary" not in library.of("initech")["y"].text
    assert sorted(problems(library, root)) == [
        "acme/tone/SKILL.md: cannot be read: Permission denied",
        "globex: cannot be read: Permission denied",
    ]


def test_a_folder_that_may_be_opened_and_not_listed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write(tmp_path, "acme/tone", "globex/tone")
    real = os.scandir
    denied = (root / "acme").stat().st_ino

    def denying(folder: int) -> object:
        if os.fstat(folder).st_ino == denied:
            raise PermissionError(13, "Permission denied")
        return real(folder)

    monkeypatch.setattr(os, "scandir", denying)
    library = load([root])
    assert ids(library) == ["globex/tone"]
    assert problems(library, root) == ["acme: cannot be read: Permission denied"]


def test_names_are_shown_without_what_a_terminal_obeys() -> None:
    assert shown("tone") == "tone"
    assert shown("a\x1b[31m\n\udce9\u202e") == "a\ufffd[31m\ufffd\ufffd\ufffd"


def test_a_print_of_nothing_is_a_print(tmp_path: Path) -> None:
    assert print_of(str(tmp_path / "gone")) != print_of(str(tmp_path))
    assert print_of("a\0b") == (0,)
