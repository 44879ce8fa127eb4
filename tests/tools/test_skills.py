"""The library: whose a skill is, what hides what, and a watch that swaps whole."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.configfile import ConfigError
from proxy.core.agent import EMPTY
from proxy.tools import skill_folders, skills
from proxy.tools.skills import Library, SkillWatch, load
from tests.data import folder
from tests.tools.shelves import ids, problems, warnings, write


def test_an_organisations_own_skill_hides_the_shared_one(tmp_path: Path) -> None:
    write(tmp_path, "shared/tone", text="for all")
    library = load([write(tmp_path, "acme/tone", text="ours")])
    assert "ours" in library.of("acme")["tone"].text and library.of("acme")["tone"].id == "acme/tone"
    assert "for all" in library.of("globex")["tone"].text
    assert ids(library) == ["acme/tone", "shared/tone"]


def test_a_later_root_hides_an_earlier_ones_skill_and_says_so(tmp_path: Path) -> None:
    one = write(tmp_path / "one", "acme/tone", "acme/kept", "shared/help", text="old")
    two = write(tmp_path / "two", "acme/tone", "shared/more", text="new")
    library = load([one, two])
    assert ids(library, "acme") == ["shared/help", "acme/kept", "shared/more", "acme/tone"]
    assert "new" in library.of("acme")["tone"].text and library.files["acme/tone"] == f"{two}/acme/tone/SKILL.md"
    assert warnings(library, tmp_path) == [f"two/acme/tone/SKILL.md: hides {one}/acme/tone/SKILL.md"]
    assert "old" in load([two, one]).of("acme")["tone"].text


def test_a_broken_skill_does_not_hide_the_good_one_of_an_earlier_root(tmp_path: Path) -> None:
    one = write(tmp_path / "one", "acme/tone")
    two = write(tmp_path / "two", "acme/tone")
    (two / "acme/tone/SKILL.md").write_text("nothing")
    library = load([one, two])
    assert ids(library) == ["acme/tone"] and library.files["acme/tone"].startswith(str(one))
    assert len(library.problems) == 1 and library.warnings == ()


def test_no_folder_is_an_empty_library() -> None:
    assert load([]).of("acme") is EMPTY or dict(load([]).of("acme")) == {}
    assert dict(Library().of("acme")) == {} and Library().skills() == ()


def test_a_shelf_cannot_be_written_to(tmp_path: Path) -> None:
    shelf = load([write(tmp_path, "acme/tone")]).of("acme")
    with pytest.raises(TypeError):
        shelf["other"] = shelf["tone"]  # type: ignore[index]


def test_the_hash_changes_with_every_text_and_right_and_with_nothing_else(tmp_path: Path) -> None:
    root = write(tmp_path / "a", "acme/tone", "shared/help")
    first = load([root]).hash
    assert load([write(tmp_path / "b", "shared/help", "acme/tone")]).hash == first
    seen = {first}
    file = root / "acme/tone/SKILL.md"
    plain = file.read_text()
    for old, new in (
        ("Be kind.", "Be brief."),
        ("For tone.", "For mails."),
        ("---\nBe", "published: false\n---\nBe"),
        ("---\nBe", "users: kim\n---\nBe"),
        ("---\nBe", "disable-model-invocation: true\n---\nBe"),
    ):
        file.write_text(plain.replace(old, new))
        seen.add(load([root]).hash)
    file.write_text(plain)
    assert len(seen) == 6
    (root / "acme/tone/more.md").touch()
    assert load([root]).hash not in seen
    (root / "acme/tone/more.md").unlink()
    (root / "README.md").write_text("for people")
    assert load([root]).hash == first


def test_an_unreadable_root_is_an_error_that_names_every_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError) as caught:
        load([tmp_path / "gone", write(tmp_path / "good", "acme/tone"), tmp_path / "file", Path("a\0b")])
    assert [str(each).rpartition("/")[2] for each in caught.value.problems] == [
        "gone: the folder of skills cannot be read: No such file or directory",
        "file: the folder of skills cannot be read: Not a directory",
        "a\ufffdb: the folder of skills cannot be read: not the name of a folder",
    ]


def test_problems_and_warnings_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skills, "MAX_TOLD", 3)
    root = write(tmp_path, *(f"acme/s{number}" for number in range(5)))
    for number in range(5):
        (root / f"acme/s{number}/SKILL.md").write_text("---\ndescription: x\n---\nx")
    assert str(load([root]).warnings[-1]) == "skills: 2 more warnings are not told"
    for number in range(5):
        (root / f"acme/s{number}/SKILL.md").write_text("nothing")
    assert str(load([root]).problems[-1]) == "skills: 2 more problems are not told"


@given(st.text(max_size=12))
def test_only_a_folders_own_name_opens_more_than_the_shared_skills(tenant: str) -> None:
    library = Library(shared=EMPTY, shelves={"acme": {}})
    assert (library.of(tenant) is library.shared) == (tenant != "acme")


@pytest.mark.data
def test_the_recorded_skills_load_all_of_them(tmp_path: Path) -> None:
    library = load([folder() / "skills"])
    print(f"{len(library.skills())} skills, {len(library.problems)} refused, {len(library.warnings)} warnings")
    assert len(ids(library, "anybody")) == 12 and library.problems == ()
    assert warnings(library, folder() / "skills") == [
        "malformed-colon/SKILL.md:2: is not valid YAML; it was read as if its texts stood in quotes",
        "malformed-too-long/SKILL.md:3: description: has 1861 characters, of which 1024 are used",
        "malformed-too-long/SKILL.md:2: name: has more than 64 characters",
        'malformed-too-long/SKILL.md:2: name: is not the folder\'s, which counts: "malformed-too-long"',
    ]
    shelf = library.of("anybody")
    assert shelf["malformed-colon"].when == "Use this when: the user asks for a report: weekly, monthly or yearly"
    for slug, skill in shelf.items():
        body = (folder() / "skills" / slug / "SKILL.md").read_text("utf-8").split("---\n", 2)[2].strip()
        assert body in skill.text, "the body is given whole"
    assert "- reference/node_mcp_server.md" in shelf["mcp-builder"].text
    (tmp_path / ".claude").mkdir()
    (tmp_path / ".claude" / "skills").symlink_to(folder() / "skills")
    assert load([tmp_path / ".claude" / "skills"]).hash == library.hash


# -- watching ----------------------------------------------------------------------------------------------------------


def test_nothing_changed_nothing_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = SkillWatch([write(tmp_path, "acme/tone", "acme/group/other", "shared/help")])
    before = watch.current
    opened: list[object] = []
    monkeypatch.setattr(os, "open", lambda *given, **more: opened.append(given))
    monkeypatch.setattr(os, "scandir", lambda *given: opened.append(given))
    assert watch.poll() is None
    assert opened == [] and watch.current is before


@pytest.mark.parametrize(
    "change",
    [
        "echo more >> acme/tone/SKILL.md",
        "mkdir acme/new && cp acme/tone/SKILL.md acme/new/",
        "mkdir globex && mv acme/tone globex/",
        "rm -r acme/tone",
        "rm acme/tone/SKILL.md",
        "mv acme/tone acme/tune",
        "touch acme/tone/notes.md",
        "touch acme/tone/refs/notes.md",
        "mkdir -p fresh/tone && cp acme/tone/SKILL.md fresh/tone/",
        "cp acme/tone/SKILL.md acme/group/SKILL.md",
        "rm acme/big/SKILL.md && cp acme/tone/SKILL.md acme/big/",
        "head -c 100 acme/tone/SKILL.md > acme/big/SKILL.md",
        "rm acme/linked && mkdir acme/linked && cp acme/tone/SKILL.md acme/linked/",
    ],
)
def test_any_change_is_seen_once_and_swapped_whole(tmp_path: Path, change: str) -> None:
    root = write(tmp_path, "acme/tone", "shared/help", "acme/big")
    (root / "acme/tone/refs").mkdir()
    (root / "acme/group/inner").mkdir(parents=True)
    (root / "acme/big/SKILL.md").write_bytes(b"x" * 200_000)
    (root / "acme/linked").symlink_to("tone")
    watch = SkillWatch([root])
    before = watch.current
    subprocess.run(["bash", "-euc", change], cwd=root, check=True, timeout=20)
    reload = watch.poll()
    assert reload is not None and reload.changed and not reload.kept
    assert watch.current is reload.current and reload.current.hash != before.hash
    assert "shared/help" in ids(watch.current)
    assert reload.problems == watch.current.problems
    assert watch.poll() is None


def test_a_skill_that_broke_is_left_out_and_told_and_the_others_stay(tmp_path: Path) -> None:
    root = write(tmp_path, "acme/tone", "acme/other")
    watch = SkillWatch([root])
    (root / "acme/tone/SKILL.md").write_text("---\nname: tone\n---\n")
    reload = watch.poll()
    assert reload is not None and reload.changed and not reload.kept
    assert ids(watch.current) == ["acme/other"]
    said = "description: is missing or empty, so nobody could know when to use the skill"
    assert [str(each) for each in reload.problems] == [f"{root}/acme/tone/SKILL.md:2: {said}"]
    write(root, "acme/tone")
    reload = watch.poll()
    assert reload is not None and reload.problems == () and ids(watch.current) == ["acme/other", "acme/tone"]


def test_a_change_without_meaning_is_no_change(tmp_path: Path) -> None:
    root = write(tmp_path, "acme/tone")
    watch = SkillWatch([root])
    (root / "acme/tone/SKILL.md").write_text((root / "acme/tone/SKILL.md").read_text() + "\n\n")
    reload = watch.poll()
    assert reload is not None and not reload.changed and not reload.kept


def test_a_root_that_cannot_be_read_keeps_the_whole_old_set_and_is_told_once(tmp_path: Path) -> None:
    one, two = write(tmp_path / "one", "acme/tone"), write(tmp_path / "two", "shared/help")
    watch = SkillWatch([one, two])
    before = watch.current
    one.rename(tmp_path / "away")
    write(two, "shared/more")
    reload = watch.poll()
    assert reload is not None and reload.kept and not reload.changed
    assert reload.current is before and watch.current is before
    assert [str(each) for each in reload.problems] == [
        f"{one}: the folder of skills cannot be read: No such file or directory"
    ]
    assert watch.poll() is None
    (tmp_path / "away").rename(one)
    reload = watch.poll()
    assert reload is not None and reload.changed
    assert ids(watch.current) == ["acme/tone", "shared/help", "shared/more"]


def test_a_root_that_is_a_link_may_be_swapped(tmp_path: Path) -> None:
    write(tmp_path / "v1", "acme/tone", text="first")
    write(tmp_path / "v2", "acme/tone", text="second")
    link = tmp_path / "current"
    link.symlink_to("v1")
    watch = SkillWatch([link])
    assert watch.poll() is None
    link.unlink()
    link.symlink_to("v2")
    reload = watch.poll()
    assert reload is not None and "second" in watch.current.of("acme")["tone"].text
    assert watch.poll() is None
    write(tmp_path / "v2", "globex/tone")
    assert watch.poll() is not None and ids(watch.current) == ["acme/tone", "globex/tone"]


def test_a_watch_on_what_is_not_there_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        SkillWatch([tmp_path / "gone"])


def test_a_fault_in_reading_keeps_the_old_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write(tmp_path, "acme/tone")
    watch = SkillWatch([root])

    def broken(_: Path) -> skill_folders.Walked:
        raise LookupError("secret of somebody")

    monkeypatch.setattr(skills, "walk", broken)
    reload = watch.reload()
    assert reload.kept and ids(watch.current) == ["acme/tone"]
    assert [str(each) for each in reload.problems] == ["skills: cannot be read: LookupError"]


def test_what_changes_while_it_is_read_is_seen_at_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write(tmp_path, "acme/tone")
    real = skills.walk

    def interrupted(folder: Path) -> skill_folders.Walked:
        walked = real(folder)
        write(root, "acme/tone", "acme/late", text="meanwhile it became longer")
        return walked

    monkeypatch.setattr(skills, "walk", interrupted)
    watch = SkillWatch([root])
    assert ids(watch.current) == ["acme/tone"]
    monkeypatch.undo()
    assert watch.poll() is not None and ids(watch.current) == ["acme/late", "acme/tone"]


@pytest.mark.skipif(sys.platform != "linux", reason="counts system calls by what the tests replace")
def test_a_look_costs_one_stat_for_each_folder_and_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write(tmp_path, *(f"acme/s{number}" for number in range(50)))
    watch = SkillWatch([root])
    count = [0]
    real = os.stat

    def counting(path: str, *, follow_symlinks: bool = True) -> os.stat_result:
        count[0] += 1
        return real(path, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(os, "stat", counting)
    assert watch.poll() is None
    assert count[0] == 1 + 1 + 2 * 50
    assert problems(watch.current, root) == []
