"""Fixtures of a checkout on a new machine."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launcher.checkout import Checkout, PackageIndex, build_wheel


@pytest.fixture
def index() -> Iterator[PackageIndex]:
    with PackageIndex() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.released.set()
            server.shutdown()
            thread.join()


@pytest.fixture
def checkout(tmp_path: Path, index: PackageIndex) -> Checkout:
    """Return a checkout configured with the package index of the test."""
    checkout = Checkout.create(root=tmp_path / "checkout", home=tmp_path / "home")
    checkout.variables["PIP_INDEX_URL"] = index.url
    return checkout


@pytest.fixture
def wheel(tmp_path: Path, index: PackageIndex) -> Path:
    """Return the wheel of the package `tinything`, which the index has."""
    # Large enough for the limits of the tests.
    files = {"tinything.py": b"value = 1\n", "tinything_data.bin": bytes(3_000_000)}
    wheel = build_wheel(directory=tmp_path, name="tinything", version="1.0", files=files)
    index.wheels.append(wheel)
    return wheel
