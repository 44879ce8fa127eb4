"""Hundreds of hostile skill files, folders and slugs: nothing outside the root is opened, nothing raises, and each
refusal says why. A child process reads them, under an audit hook and under the kernel's own watch on the files outside.
"""

from __future__ import annotations

import ctypes
import html
import json
import os
import re
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from proxy.tools.skill_files import unfit
from proxy.tools.skill_folders import shown
from proxy.tools.skills import Library, load
from proxy.tools.skills_tool import answer
from tests.data import ROOT
from tests.tools.hostile import CANARY, GOOD, Case, cases, outside

LEAST = 300
IN_OPEN = 0x20

READER = """
import json, os, sys
from pathlib import Path
from proxy.tools.skills import load

root = Path(sys.argv[1])
(root.parent / "first" / "one").mkdir(parents=True)
(root.parent / "first" / "one" / "SKILL.md").write_text("---\\ndescription: Use: it\\n---\\n")
load([root.parent / "first"])  # whatever is imported on the way is imported now
opened = []
sys.addaudithook(lambda event, given: opened.append(given) if event == "open" else None)
library = load([root])
opened = list(opened)
print(json.dumps({
    "opened": [[os.fsdecode(path) if isinstance(path, bytes) else path, flags] for path, _, flags in opened],
    "skills": {id: [s.when, s.text] for id, s in ((s.id, s) for s in library.skills())},
    "problems": [[p.file, str(p.message)] for p in library.problems],
    "warnings": [[p.file, str(p.message)] for p in library.warnings],
}))
"""


class Done(NamedTuple):
    root: Path
    cases: list[tuple[str, Case]]
    told: dict[str, Any]
    touched: int


@contextmanager
def watched(folder: Path) -> Iterator[list[int]]:
    """Counts how often anything in `folder` is opened, by anybody, as the kernel tells it."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.inotify_init1(os.O_NONBLOCK)
    assert descriptor >= 0, "no inotify here"
    try:
        for path in [folder, *folder.rglob("*")]:
            assert libc.inotify_add_watch(descriptor, os.fsencode(path), IN_OPEN) >= 0
        count = [0]
        yield count
        try:
            count[0] = len(os.read(descriptor, 65_536))
        except BlockingIOError:
            pass  # no event
    finally:
        os.close(descriptor)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """All cases, forty to an organisation, between a victim's own skills and the shared ones; read in a child."""
    where = tmp_path_factory.mktemp("hostile")
    root, out = where / "root", outside(where / "outside")
    for owner, slug in (("victim", "own"), ("shared", "all")):
        (root / owner / slug).mkdir(parents=True)
        (root / owner / slug / "SKILL.md").write_bytes(GOOD)
    made = []
    for number, case in enumerate(cases()):
        owner = f"t{number // 40:02d}"
        (root / owner).mkdir(exist_ok=True)
        case.make(root / owner / os.fsdecode(case.folder), out)
        made.append((owner, case))
    with watched(out) as count:
        child = subprocess.run(
            [sys.executable, "-c", READER, str(root)],
            capture_output=True,
            text=True,
            timeout=50,
            cwd=ROOT,
            check=False,
        )
    assert child.returncode == 0, child.stderr
    assert child.stderr == ""
    return Done(root, made, json.loads(child.stdout), count[0])


@pytest.fixture(scope="module")
def library(done: Done) -> Library:
    return load([done.root])


def test_the_set_is_large_and_no_case_stands_for_another(done: Done) -> None:
    names = [case.name for _, case in done.cases]
    refused = [case for _, case in done.cases if case.told is not None]
    print(f"{len(names)} hostile cases: {len(refused)} to be refused, {len(names) - len(refused)} to be harmless")
    assert len(names) >= LEAST and len(refused) >= LEAST
    assert len(set(names)) == len(names)


def test_every_refusal_says_why(done: Done) -> None:
    told: dict[str, str] = {}
    for file, message in done.told["problems"]:
        told.setdefault(file, message)
    wrong = []
    for owner, case in done.cases:
        folder = shown(str(done.root / owner / os.fsdecode(case.folder)))
        reasons = [message for file, message in told.items() if file == folder or file.startswith(folder + "/")]
        if case.told is None:
            wrong += [(case.name, "refused", reasons)] if reasons else []
        elif not reasons or not any(case.told in reason and reason for reason in reasons):
            wrong.append((case.name, case.told, reasons))
    assert wrong == []


def test_what_is_refused_is_in_no_library_and_what_is_harmless_is(done: Done) -> None:
    skills = done.told["skills"]
    for owner, case in done.cases:
        assert (f"{owner}/{os.fsdecode(case.folder)}" in skills) == (case.told is None), case.name
    assert {"victim/own", "shared/all"} <= skills.keys(), "the neighbours are there as if nothing had been"
    assert len(skills) == 2 + sum(case.told is None for _, case in done.cases)


def test_no_file_outside_the_root_is_opened(done: Done) -> None:
    assert done.touched == 0, "the kernel saw a file outside being opened"
    assert CANARY not in json.dumps(done.told)
    names = [(path, flags) for path, flags in done.told["opened"] if isinstance(path, str)]
    root = [path for path, _ in names if path == str(done.root)]
    inner = [(path, flags) for path, flags in names if path != str(done.root)]
    assert len(root) == 1 and len(inner) > LEAST
    for path, flags in inner:
        # One name, relative to an open folder, and no link: so whatever is opened lies in the root.
        assert "/" not in path and path not in ("", ".", ".."), path
        assert flags & os.O_NOFOLLOW and flags & os.O_NONBLOCK and not flags & (os.O_WRONLY | os.O_RDWR), path
        assert path == "SKILL.md" or flags & os.O_DIRECTORY, path


def test_the_watch_on_files_outside_sees_one_being_opened(tmp_path: Path) -> None:
    out = outside(tmp_path / "outside")
    with watched(out) as count:
        (out / "secret.md").read_bytes()
    assert count[0] > 0


def test_no_body_gets_out_of_its_wrapper_and_no_line_out_of_its_line(done: Done) -> None:
    for id, (when, text) in done.told["skills"].items():
        slug = id.partition("/")[2]
        start, end = f'<skill_content name="{slug}">\n', "\n</skill_content>"
        assert text.startswith(start) and text.endswith(end), id
        inside = plainest(text[len(start) : -len(end)])
        assert re.search(r"</?skill[-_]?content|</?available[-_]?skill|</?conversation-notes", inside) is None, id
        assert "".join(when.splitlines()) == when and when.strip() and len(when) <= 1024, id
        assert all(each.isprintable() or each in "\u200c\u200d" for each in when), id
        assert len(text.encode()) < 160 * 1024


def plainest(text: str) -> str:
    """`text` as a careless reader might see it."""
    seen = "".join(
        each for each in unicodedata.normalize("NFKC", html.unescape(text)) if unicodedata.category(each) != "Cf"
    )
    for slash in "\u2215\u2044":
        seen = seen.replace(slash, "/")
    for less in "\u2039\u3008":
        seen = seen.replace(less, "<")
    return re.sub(r"\s", "", seen).lower()


@pytest.mark.parametrize(
    "name",
    ["", "..", ".", "../x", "a/b", "/etc", "a\\b", "a\0", "\0", "x\n", "a" * 65, "compact", "shared/all", "тone"],
)
def test_a_slug_that_could_be_a_path_is_none(name: str, library: Library) -> None:
    assert unfit(name)
    shelf = library.of("victim")
    asked = answer(json.dumps({"name": name}), shelf, None, tuple(shelf), frozenset())
    unknown = answer('{"name": "no-such-skill"}', shelf, None, tuple(shelf), frozenset())
    assert asked.skill is None
    named = re.compile(' "[a-z0-9-]+"| of this name')
    assert named.sub("", asked.text) == named.sub("", unknown.text)


@pytest.mark.parametrize(
    "tenant",
    [
        "",
        ".",
        "..",
        "../root/victim",
        "victim/",
        "/",
        "victim/own",
        "victim\0",
        "Victim",
        "VICTIM",
        "victim ",
        "\u0475ictim",
        "shared",
        "no-such",
    ],
)
def test_a_tenant_of_no_folder_has_the_shared_skills_alone(tenant: str, library: Library) -> None:
    assert {skill.id for skill in library.of(tenant).values()} == {"shared/all"}


def test_an_organisation_sees_nothing_of_another(done: Done, library: Library) -> None:
    for owner in {owner for owner, _ in done.cases}:
        assert {id.partition("/")[0] for id in (skill.id for skill in library.of(owner).values())} <= {owner, "shared"}
    assert {skill.id for skill in library.of("victim").values()} == {"victim/own", "shared/all"}
