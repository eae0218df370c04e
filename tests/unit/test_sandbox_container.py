"""What containers are shown of the machine, as far as it can be told without one."""

from pathlib import Path

import pytest

from sandbox.container import _hidden


@pytest.mark.parametrize(
    ("ours", "folders", "hidden"),
    [
        ("/usr/src/app", ["/usr", "/lib"], True),
        ("/opt/platform", ["/usr", "/opt"], True),
        ("/srv/platform", ["/usr", "/lib"], False),
        ("/usrlocal/platform", ["/usr"], False),
    ],
)
def test_the_platforms_files_are_covered_where_they_would_be_seen(
    ours: str, folders: list[str], *, hidden: bool
) -> None:
    words = _hidden(Path(ours), folders)
    assert words == (["--tmpfs", ours, "--remount-ro", ours] if hidden else [])
