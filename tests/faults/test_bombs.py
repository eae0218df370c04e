"""Decompression bombs: small images, documents and JSON that expand when read. The web process stays responsive.

`python -m benchmarks bombs` sends all of them, on both servers.
"""

import io
import struct
import threading
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx2
import orjson
import pytest

from tests.support import documents
from tests.support.api import Caller
from tests.support.chunks import text
from tests.support.machine_clock import machine_time
from tests.support.memory import MemoryMeter
from tests.support.sampling import sampled, sized
from tests.support.upstream import Script, stream
from tests.support.waiting import HANGS_AFTER
from tests.support.web import WebProcess

pytestmark = pytest.mark.slow
MIB = 1024 * 1024
REQUESTS = sized(24, full=60)
CONNECTIONS = 6
PROBE_SECONDS = 1.0
DEPTH = 100_000


@pytest.fixture(params=["web", "daphne_web"])
def server(request: pytest.FixtureRequest) -> WebProcess:
    process: WebProcess = request.getfixturevalue(request.param)
    return process


def huge_png() -> bytes:
    """Return a PNG of 50,000 x 50,000 black pixels."""
    squeeze = zlib.compressobj(1)
    rows = b"".join(squeeze.compress(bytes(6251 * 500)) for _ in range(100)) + squeeze.flush()

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 50_000, 50_000, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def many_frames() -> bytes:
    """Return a GIF with 50,000 frames of 65,535 x 65,535 pixels."""
    screen = struct.pack("<HHBBB", 65_535, 65_535, 0x80, 0, 0) + bytes(6)
    frame = b"," + struct.pack("<HHHHB", 0, 0, 65_535, 65_535, 0) + b"\x02\x02\x4c\x01\x00"
    return b"GIF89a" + screen + frame * 50_000 + b";"


def svg() -> bytes:
    """Return an SVG whose entities become a billion characters."""
    entities = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 10))
    return f'<!DOCTYPE svg [<!ENTITY e0 "a">{entities}]><svg xmlns="http://www.w3.org/2000/svg">&e9;</svg>'.encode()


def office(part: str) -> bytes:
    """Return an archive with a part of 100 MiB."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("[Content_Types].xml", "<Types/>")
        with archive.open(part, "w") as body:
            for _ in range(100):
                body.write(b" " * MIB)
    return out.getvalue()


def _image(content: bytes, kind: str) -> bytes:
    part = {"type": "input_image", "image_url": documents.data_url(content, f"image/{kind}")}
    return orjson.dumps({"model": "MODEL", "input": [{"role": "user", "content": [part]}]})


def _file(content: bytes, name: str) -> bytes:
    data = documents.data_url(content, "application/octet-stream")
    part = {"type": "input_file", "filename": name, "file_data": data}
    return orjson.dumps({"model": "MODEL", "input": [{"role": "user", "content": [part]}]})


def _json(value: bytes) -> bytes:
    tool = b'{"type":"function","name":"f","parameters":{"a":%b}}' % value
    return b'{"model":"MODEL","input":"Hi","metadata":{"a":"b"},"tools":[%b]}' % tool


# By name: the body of a request, made once.
BOMBS: dict[str, Callable[[], bytes]] = {
    "a PNG of 50,000 x 50,000": lambda: _image(huge_png(), "png"),
    "a truncated PNG": lambda: _image(huge_png()[:60], "png"),
    "a GIF of many frames": lambda: _image(many_frames(), "gif"),
    "an SVG of entities": lambda: _image(svg(), "svg+xml"),
    "DOCX": lambda: _file(office("word/document.xml"), "a.docx"),
    "PPTX": lambda: _file(office("ppt/presentation.xml"), "a.pptx"),
    "XLSX": lambda: _file(office("xl/workbook.xml"), "a.xlsx"),
    "lists": lambda: _json(b"[" * DEPTH + b"]" * DEPTH),
    "objects": lambda: _json(b'{"a":' * DEPTH + b"1" + b"}" * DEPTH),
    "lists without an end": lambda: b'{"model":"MODEL","input":' + b"[" * DEPTH,
    "a number of a million digits": lambda: _json(b"9" * 1_000_000),
    "a large exponent": lambda: _json(b"1e999999999"),
    "many numbers": lambda: _json(b"[" + b"1e308," * 100_000 + b"1]"),
}


class _Probes:
    """The response times of `/livez`, in seconds."""

    def __init__(self, server: WebProcess) -> None:
        self.slowest = 0.0
        self._http = httpx2.Client(base_url=server.url, timeout=HANGS_AFTER)

    def ask(self) -> None:
        began = machine_time()
        assert self._http.get("/livez").status_code == 200
        self.slowest = max(self.slowest, machine_time() - began)

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Send probes without a pause inside the block."""
        is_over = threading.Event()

        def ask() -> None:
            while not is_over.wait(0.02):
                self.ask()

        with ThreadPoolExecutor(1) as threads:
            asked = threads.submit(ask)
            try:
                yield
            finally:
                is_over.set()
            asked.result()


@pytest.mark.parametrize("bomb", sampled(BOMBS, 4, key="bombs"))
def test_a_flood_of_bombs_delays_no_probe(server: WebProcess, caller: Caller, script: Script, bomb: str) -> None:
    script.always(stream(*text("Hello")))
    body = BOMBS[bomb]().replace(b"MODEL", script.model.encode())
    headers = {"Authorization": f"Bearer {caller.secret}", "Content-Type": "application/json"}
    idle, busy = _Probes(server), _Probes(server)
    for _ in range(20):
        idle.ask()
    with (
        httpx2.Client(base_url=server.url, headers=headers, timeout=HANGS_AFTER) as http,
        ThreadPoolExecutor(CONNECTIONS) as threads,
        MemoryMeter(server.pid) as memory,
        busy.asking(),
    ):
        answers = list(threads.map(lambda _: http.post("/v1/responses", content=body), range(REQUESTS)))
    # Images are sent to the model as they are; everything else is refused.
    statuses = Counter(answer.status_code for answer in answers)
    assert statuses.keys() <= {200, 400, 503}, (statuses, answers[0].text[:300])
    assert statuses[503] < REQUESTS
    assert busy.slowest < max(PROBE_SECONDS, 10 * idle.slowest)
    assert memory.most < 300 * MIB
