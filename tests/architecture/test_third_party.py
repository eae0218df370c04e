"""Copied files of other projects equal the published ones, and their licences are included."""

import hashlib
from pathlib import Path

STATIC = Path(__file__).resolve().parents[2] / "static"


def test_our_copy_of_alpine_equals_the_published_file() -> None:
    content = (STATIC / "alpine" / "alpine.csp.js").read_bytes()
    published = "0d18d7f8d7910e2e0212f0f056b12f50bebc3abb7d88d2f7c7cb4c336fe4519a"
    assert hashlib.sha256(content).hexdigest() == published


def test_our_copy_of_alpine_contains_its_licences() -> None:
    licences = (STATIC / "alpine" / "LICENSE").read_text()
    assert "Caleb Porzio" in licences
    assert "Evan" in licences
