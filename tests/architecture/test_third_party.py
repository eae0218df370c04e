"""Copied files of other projects equal the published ones, and their licences are included."""

import hashlib
from pathlib import Path

STATIC = Path(__file__).resolve().parents[2] / "static"


def test_our_copy_of_redoc_equals_the_published_file() -> None:
    content = (STATIC / "redoc" / "redoc.standalone.js").read_bytes()
    published = "dcaf76612bc4a3fbcc923a8966dee2f6146a5f32e5ce1b6f02dd60cbbf89500b"
    assert hashlib.sha256(content).hexdigest() == published


def test_our_copy_of_alpine_equals_the_published_file() -> None:
    content = (STATIC / "alpine" / "alpine.csp.js").read_bytes()
    published = "0d18d7f8d7910e2e0212f0f056b12f50bebc3abb7d88d2f7c7cb4c336fe4519a"
    assert hashlib.sha256(content).hexdigest() == published


def test_our_copy_of_alpine_contains_its_licences() -> None:
    licences = (STATIC / "alpine" / "LICENSE").read_text()
    assert "Caleb Porzio" in licences
    assert "Evan" in licences


def test_our_copy_of_redoc_contains_its_licences() -> None:
    assert "MIT" in (STATIC / "redoc" / "LICENSE").read_text()
    assert "react" in (STATIC / "redoc" / "redoc.standalone.js.LICENSE.txt").read_text()
