"""Programs of the system that tests start."""

import os
import shutil

import pytest


def need(program: str, *, package: str) -> str:
    """Return the path of a program, or skip the test. In CI, which installs it, a missing one is a failure."""
    path = shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    if path is None and os.environ.get("CI"):
        pytest.fail(f"{program} is not installed here: apt-get install {package}", pytrace=False)
    if path is None:
        pytest.skip(f"There is no {program} here: apt-get install {package}")
    return path
