"""Directories of regular backups: the latest ones are kept."""

from pathlib import Path

import pytest

from server.database import dated
from server.database.backup import MANIFEST


def add(folder: Path, *names: str, is_complete: bool = True) -> None:
    for name in names:
        (folder / name / "files").mkdir(parents=True)
        if is_complete:
            (folder / name / MANIFEST).write_text("{}")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_directory_is_named_by_the_time_in_the_order_of_time(tmp_path: Path) -> None:
    first = dated.new_directory(tmp_path)
    add(tmp_path, first.name)
    assert dated.delete_old(tmp_path, keep=1) == []
    assert first.parent == tmp_path
    assert first.name > "2026-11-22T020000Z"


def test_all_but_the_latest_backups_are_deleted(tmp_path: Path) -> None:
    add(tmp_path, *(f"2026-11-2{day}T023000Z" for day in range(5)))
    deleted = dated.delete_old(tmp_path, keep=2)
    assert [path.name for path in deleted] == ["2026-11-20T023000Z", "2026-11-21T023000Z", "2026-11-22T023000Z"]
    assert names(tmp_path) == ["2026-11-23T023000Z", "2026-11-24T023000Z"]


def test_incomplete_backups_do_not_displace_complete_ones(tmp_path: Path) -> None:
    add(tmp_path, "2026-11-20T023000Z", "2026-11-22T023000Z")
    add(tmp_path, "2026-11-19T023000Z", "2026-11-21T023000Z", "2026-11-23T023000Z", is_complete=False)
    dated.delete_old(tmp_path, keep=2)
    assert names(tmp_path) == [f"2026-11-2{day}T023000Z" for day in range(4)]


@pytest.mark.parametrize("name", ["monday", "2026-11-20", "2026-11-20T023000Z.keys", "2026-11-20T023000Z-old"])
def test_other_directories_are_left_alone(tmp_path: Path, name: str) -> None:
    add(tmp_path, name, "2026-11-21T023000Z", "2026-11-22T023000Z")
    dated.delete_old(tmp_path, keep=1)
    assert names(tmp_path) == sorted([name, "2026-11-22T023000Z"])
