"""Which files a folder holds, and whether one looks other than before."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from proxy.configfile.folders import print_of, yaml_files


def test_yaml_files_come_by_name_and_hidden_ones_not_at_all(tmp_path: Path) -> None:
    for name in ("b.yaml", "a.yml", "c.json", ".d.yaml", "e.yaml.bak"):
        (tmp_path / name).touch()
    (tmp_path / "..data").mkdir()
    assert [file.name for file in yaml_files(tmp_path)] == ["a.yml", "b.yaml"]


@pytest.mark.parametrize("name", ["gone", "nul\0"])
def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path, name: str) -> None:
    with pytest.raises((OSError, ValueError)):
        yaml_files(tmp_path / name)


def test_a_print_changes_with_content_time_place_and_existence(tmp_path: Path) -> None:
    file = tmp_path / "f"
    seen = [print_of(file)]
    file.write_text("one")
    seen.append(print_of(file))
    file.write_text("three")
    seen.append(print_of(file))
    os.utime(file, ns=(1, 1))
    seen.append(print_of(file))
    (tmp_path / "g").write_text("three")
    os.utime(tmp_path / "g", ns=(1, 1))
    (tmp_path / "g").rename(file)
    seen.append(print_of(file))
    assert len(set(seen)) == len(seen)
    assert print_of(file) == print_of(file)


def test_a_print_is_of_what_a_link_leads_to(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text("same")
    link = tmp_path / "link"
    link.symlink_to("a")
    before = print_of(link)
    link.unlink()
    link.symlink_to("b")
    assert print_of(link) != before


@pytest.mark.parametrize("name", ["gone", "nul\0", "x" * 300])
def test_a_file_that_cannot_be_looked_at_has_a_print_too(tmp_path: Path, name: str) -> None:
    assert print_of(tmp_path / name)[0] == name
