"""`weirgate skills`: the table, what is wrong with a skill, exit codes; and the page for operators, whose examples run.

What a skill is and where it may stand is tested in `tests/tools`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.commands.conftest import Cli, here
from tests.commands.test_main import terminal
from tests.data import ROOT, folder
from tests.test_readme import complaint, examples, execute
from tests.tools.shelves import write

PAGE = ROOT / "docs" / "skills.md"
RECORDED = folder() / "skills"  # asked here: the command line is run without Weirgate's own variables
CONFIG = "upstreams: {main: {base_url: 'https://api.openai.com/v1'}}\nskills: {folders: [skills]}\n"


def write_one(path: str, front: str) -> None:
    Path(path).mkdir(parents=True)
    (Path(path) / "SKILL.md").write_text(f"---\nname: {Path(path).name}\n{front}\n---\nDo it.\n")


def test_every_skill_is_listed_with_who_may_use_it(cli: Cli) -> None:
    write(Path("skills"), "acme/tone", "shared/help")
    write_one("skills/acme/draft", "description: Not yet.\npublished: false")
    write_one("skills/acme/ops", "description: For ops.\nusers: kim, ops-*\ndisable-model-invocation: true")
    write_one("skills/globex/long", f"description: {'word ' * 100}")
    result = cli("skills", "list", "skills")
    assert result.exit_code == 0, here(result)
    lines = [line.split("  ") for line in result.stdout.splitlines()]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    assert cells[0] == ["skill", "when to use it", "for", "chars"]
    assert [line[:3] for line in cells[1:]] == [
        ["acme/draft", "Not yet.", "nobody yet"],
        ["acme/ops", "For ops.", "kim, ops-*, by name"],
        ["acme/tone", "For tone.", "everybody"],
        ["globex/long", ("word " * 14).strip() + "…", "everybody"],
        ["shared/help", "For help.", "everybody"],
    ]
    assert "Be kind" not in result.stdout and result.stderr == ""


def test_the_skills_of_one_organisation_are_its_own_and_the_shared_ones(cli: Cli) -> None:
    write(Path("skills"), "acme/tone", "shared/help", "globex/tone")
    told = json.loads(cli("skills", "list", "skills", "--tenant", "acme", "--json").stdout)
    assert [each["id"] for each in told["data"]] == ["shared/help", "acme/tone"]
    told = json.loads(cli("skills", "list", "skills", "--tenant", "../globex", "--json").stdout)
    assert [each["id"] for each in told["data"]] == ["shared/help"]
    nothing = cli("skills", "list", str(write(Path("more"), "acme/a/b")), "--tenant", "globex")
    assert nothing.exit_code == 0 and nothing.stdout == "" and "no skills for globex" in nothing.stderr


def test_for_programs_a_skill_is_an_object_without_its_text(cli: Cli) -> None:
    write(Path("skills"), "acme/tone")
    told = json.loads(cli("skills", "list", "skills", "--json").stdout)
    assert told["object"] == "list" and len(told["hash"]) == 16
    assert told["data"] == [
        {
            "id": "acme/tone",
            "slug": "tone",
            "when": "For tone.",
            "users": ["*"],
            "published": True,
            "offered": True,
            "characters": len('<skill_content name="tone">\nBe kind.\n</skill_content>'),
            "file": "skills/acme/tone/SKILL.md",
        }
    ]


def test_a_refused_skill_is_1_with_its_file_and_the_reason(cli: Cli) -> None:
    write(Path("skills"), "acme/tone", "acme/Bad")
    write_one("skills/acme/mute", "license: x")
    result = cli("skills", "check", "skills")
    assert result.exit_code == 1, here(result)
    rows = [line.split(maxsplit=2) for line in result.stdout.splitlines()]
    assert [row[:2] for row in rows[1:]] == [
        ["error", "skills/acme/Bad/SKILL.md"],
        ["error", "skills/acme/mute/SKILL.md:2"],
    ]
    assert "capital letters" in rows[1][2] and rows[2][2].startswith("description: is missing")
    assert "1 skill fit to be used, 2 refusals, 0 warnings" in result.stderr
    listed = cli("skills", "list", "skills")
    assert listed.exit_code == 0 and "2 refusals; `weirgate skills check` says why" in listed.stderr


def test_warnings_alone_are_0(cli: Cli) -> None:
    write_one("skills/acme/tone", "description: Use when: asked")
    result = cli("skills", "check", "skills")
    assert result.exit_code == 0 and result.stdout.splitlines()[1].startswith("warning  skills/acme/tone/SKILL.md:2")
    told = json.loads(cli("skills", "check", "skills", "--json").stdout)
    assert (told["ok"], told["skills"], told["problems"], len(told["warnings"])) == (True, 1, [], 1)


def test_skills_without_fault_leave_stdout_empty(cli: Cli) -> None:
    write(Path("skills"), "acme/tone")
    result = cli("skills", "check", "skills")
    assert (result.exit_code, result.stdout) == (0, "") and "1 skill fit to be used" in result.stderr


def test_without_an_argument_the_configured_folders_are_read(cli: Cli) -> None:
    write(Path("home/skills"), "acme/tone")
    Path("home/weirgate.yaml").write_text(CONFIG)
    result = cli("skills", "list", "--config", "home/weirgate.yaml")
    assert result.exit_code == 0 and "acme/tone" in result.stdout, here(result)
    assert cli("skills", "check", WEIRGATE_CONFIG="home/weirgate.yaml").exit_code == 0


def test_no_folder_and_an_unreadable_one_are_2(cli: Cli) -> None:
    for asked in (("skills", "list"), ("skills", "check")):
        result = cli(*asked)
        assert result.exit_code == 2 and "set skills.folders" in result.stderr and result.stdout == ""
        gone = cli(*asked, "gone")
        assert gone.exit_code == 2 and "gone: the folder of skills cannot be read" in gone.stderr


def test_several_folders_are_read_as_the_server_reads_them(cli: Cli) -> None:
    write(Path("one"), "acme/tone")
    write(Path("two"), "acme/tone", "shared/help")
    result = cli("skills", "check", "one", "two")
    assert result.exit_code == 0 and "hides one/acme/tone/SKILL.md" in result.stdout


def test_names_on_the_disk_do_not_reach_the_terminal_as_they_are(cli: Cli) -> None:
    write(Path("skills"), "acme/\x1b[31mred", "acme/b\udce9d")
    for form in ((), ("--json",)):
        result = cli("skills", "check", "skills", *form)
        assert result.exit_code == 1 and "\x1b" not in result.stdout and "\udce9" not in result.stdout


def test_at_a_terminal_a_slug_is_never_broken_in_two(tmp_path: Path) -> None:
    slug = "a-rather-long-name-of-a-skill-that-says-much"
    write(tmp_path / "skills", f"acme/{slug}")
    shown = terminal("skills", "list", "skills", cwd=tmp_path, NO_COLOR="1", COLUMNS="80")
    assert f"acme/{slug}" in shown and "─" in shown


@pytest.mark.parametrize("command", ["skills", "skills list", "skills check"])
def test_the_help_says_what_it_does_and_its_exit_codes(cli: Cli, command: str) -> None:
    result = cli(*command.split(), "--help", COLUMNS="100")
    assert result.exit_code == 0 and "Exit codes" in result.stdout
    assert result.stdout.split("\n\n")[1].rstrip().endswith(".")


@pytest.mark.data
def test_the_recorded_skills_are_fit(cli: Cli) -> None:
    result = cli("skills", "check", str(RECORDED))
    assert result.exit_code == 0 and "12 skills fit to be used, 0 refusals, 4 warnings" in result.stderr


# -- docs/skills.md ----------------------------------------------------------------------------------------------------


def test_every_example_of_the_page_says_how_it_is_kept_true(tmp_path: Path) -> None:
    written = examples(PAGE.read_text(encoding="utf-8"))
    assert [why for one in written if (why := complaint(one))] == []
    runnable = [one for one in written if one.mark == "run"]
    assert runnable
    for one in runnable:  # in one folder, one after the other, as somebody would follow them
        status, said = execute(one, tmp_path)
        assert status == 0, f"docs/skills.md:{one.line}\n{one.code}\n{said}"
