"""Files of other projects are the published ones, and their licences are beside them."""

import hashlib
from pathlib import Path

STATIC = Path(__file__).resolve().parents[2] / "static"


def test_redoc_is_the_published_file() -> None:
    content = (STATIC / "redoc" / "redoc.standalone.js").read_bytes()
    published = "dcaf76612bc4a3fbcc923a8966dee2f6146a5f32e5ce1b6f02dd60cbbf89500b"
    assert hashlib.sha256(content).hexdigest() == published


def test_redoc_carries_its_licences() -> None:
    assert "MIT" in (STATIC / "redoc" / "LICENSE").read_text()
    assert "react" in (STATIC / "redoc" / "redoc.standalone.js.LICENSE.txt").read_text()
