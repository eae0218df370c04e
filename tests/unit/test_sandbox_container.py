"""Host files visible in containers, as far as it can be tested without starting one."""

from pathlib import Path

import pytest

from sandbox.container import _hide_platform


@pytest.mark.parametrize(
    ("ours", "folders", "hidden"),
    [
        ("/usr/src/app", ["/usr", "/lib"], True),
        ("/opt/platform", ["/usr", "/opt"], True),
        ("/srv/platform", ["/usr", "/lib"], False),
        ("/usrlocal/platform", ["/usr"], False),
    ],
)
def test_platform_files_below_a_mounted_directory_are_hidden(ours: str, folders: list[str], *, hidden: bool) -> None:
    arguments = _hide_platform(Path(ours), folders)
    assert arguments == (["--tmpfs", ours, "--remount-ro", ours] if hidden else [])
