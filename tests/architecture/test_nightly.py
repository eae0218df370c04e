"""The nightly workflow runs every check whose sample CI runs."""

from pathlib import Path

import yaml

from benchmarks.full_size import CHECKS

ROOT = Path(__file__).resolve().parents[2]


def test_every_check_runs_at_full_size_each_night() -> None:
    (job,) = yaml.safe_load((ROOT / ".github/workflows/nightly.yml").read_text())["jobs"].values()
    assert job["strategy"]["matrix"]["check"] == sorted(CHECKS)


def test_the_files_of_every_check_exist() -> None:
    paths = [argument.partition("::")[0] for check in CHECKS.values() for argument in check if "/" in argument]
    assert [path for path in paths if not (ROOT / path).exists()] == []
