"""Programs and rights of the machine that tests need."""

import os
import shutil
from typing import NoReturn

import pytest


def need(program: str, *, package: str) -> str:
    """Return the path of a program, or skip the test. In CI, which installs it, a missing one is a failure."""
    path = shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    if path is None:
        skip(f"{program} is not installed here: apt-get install {package}")
    return path


def skip(reason: str) -> NoReturn:
    """Skip the test because of the machine. In CI, which runs as root, that is a failure."""
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
