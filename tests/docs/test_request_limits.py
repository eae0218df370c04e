"""The page of limits names settings that exist, their defaults, and tests that exist."""

import ast
import re
from pathlib import Path

from conversations.files.uploads import MAX_PART_BYTES
from core.admission import request_bodies
from core.json.storable_json import MAX_DEPTH
from responses.api.socket_streams import MAX_WAITING
from server import settings
from server.web import request_heads

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/reference/request-limits.md").read_text()
ROW = re.compile(r"^\| (?!limit \||---)(.+) \|$", re.MULTILINE)
ROWS: list[list[str]] = [[cell.strip() for cell in row.split("|")] for row in ROW.findall(PAGE)]
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
KIB, MIB = 1024, 1024 * 1024


def default_of(limit: str) -> str:
    """Return the documented default of a limit."""
    return next(default for name, default, *_ in ROWS if name == limit)


def test_every_limit_names_a_test_that_exists() -> None:
    assert len(ROWS) > 20
    for limit, *_, last in ROWS:
        named = TEST.fullmatch(last)
        assert named, f"“{limit}” names no test"
        functions = {one.name for one in ast.walk(ast.parse((ROOT / named[1]).read_text())) if hasattr(one, "name")}
        assert named[2] in functions, f"“{limit}” names a test that does not exist: {last}"


def test_every_setting_is_documented() -> None:
    configuration = (ROOT / "docs/reference/configuration.md").read_text()
    for _, _, settings_of_row, *_ in ROWS:
        for name in re.findall(r"`(\w+)`", settings_of_row):
            assert f"| `{name}` |" in configuration


def test_constants_are_documented() -> None:
    assert default_of("URL") == f"{request_heads.MAX_URL_BYTES // KIB} KiB"
    assert default_of("request line and headers together") == f"{request_heads.MAX_HEAD_BYTES // KIB} KiB"
    assert default_of("number of headers") == str(request_heads.MAX_HEADERS)
    assert f"A connection is kept for {request_heads.KEEP_ALIVE_SECONDS} s" in PAGE
    assert default_of("body without a valid key") == f"{request_bodies.FREE_BYTES // KIB} KiB"
    assert default_of("JSON body") == f"{settings.MAX_BODY_BYTES // MIB} MiB"
    assert default_of("message on a WebSocket, also after decompression") == default_of("JSON body")
    assert default_of("file") == f"{settings.MAX_UPLOAD_BYTES // MIB} MiB"
    assert default_of("part of an upload") == f"{MAX_PART_BYTES // MIB} MiB"
    assert default_of("form of the console").startswith(f"{settings.MAX_PAGE_BODY_BYTES // MIB} MiB")
    assert default_of("depth of JSON") == f"{MAX_DEPTH} levels"
    assert default_of("requests that wait on a WebSocket connection") == str(MAX_WAITING)
