"""nginx, Caddy and HAProxy with the documented configuration: TLS, events at once, WebSockets, no metrics."""

import asyncio
import json
import socket
import socketserver
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2
import orjson
import pytest
from typing_extensions import override
from websockets.asyncio.client import connect

from launcher.address import any_free_port, is_free
from tests.support.api import Caller, MakeCaller
from tests.support.certificates import self_signed
from tests.support.chunks import text
from tests.support.programs import need
from tests.support.raw_http import RawConnection
from tests.support.upstream import Answer, Gate, Script, ScriptedUpstream, stream
from tests.support.waiting import HANGS_AFTER, PATIENCE, eventually
from tests.support.web import WebProcess, running_web

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
NAME = "localhost"
PROXIES = ["nginx", "caddy", "haproxy"]


@contextmanager
def _nginx(web: str, port: int, directory: Path) -> Iterator[Path]:
    program = need("nginx", package="nginx-light")
    certificate, key = self_signed(directory, NAME)
    site = (ROOT / "deploy" / "nginx" / "responses-platform.conf").read_text()
    for old, new in {
        "listen 443 ssl http2;": f"listen 127.0.0.1:{port} ssl http2;",
        "listen 80;": f"listen 127.0.0.1:{any_free_port()};",
        "server 127.0.0.1:8000;": f"server {web};",
        "/etc/letsencrypt/live/api.example.com/fullchain.pem": str(certificate),
        "/etc/letsencrypt/live/api.example.com/privkey.pem": str(key),
        "api.example.com": NAME,
    }.items():
        assert old in site, old
        site = site.replace(old, new)
    site = "\n".join(line for line in site.splitlines() if "listen [::]" not in line)
    temporary = "".join(
        f"{kind}_temp_path {directory}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (directory / "nginx.conf").write_text(
        f"daemon off;\npid {directory}/nginx.pid;\nerror_log stderr;\nevents {{}}\n"
        f"http {{\naccess_log off;\n{temporary}{site}\n}}\n"
    )
    command = [program, "-c", str(directory / "nginx.conf"), "-p", str(directory)]
    checked = subprocess.run([*command, "-t"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    with _running(command, {}, port):
        yield certificate


@contextmanager
def _caddy(web: str, port: int, directory: Path) -> Iterator[Path]:
    # A self-signed certificate, because Caddy would request one from the internet.
    certificate, key = self_signed(directory, NAME)
    site = (ROOT / "deploy" / "caddy" / "Caddyfile").read_text()
    heading = "{$PLATFORM_HOST:localhost} {\n"
    assert heading in site
    site = site.replace(heading, f"{heading}\ttls {certificate} {key}\n\tbind 127.0.0.1\n")
    ports = f"{{\n\thttps_port {port}\n\thttp_port {any_free_port()}\n\tadmin off\n\tauto_https disable_redirects\n"
    (directory / "Caddyfile").write_text(site.replace("\n{\n", f"\n{ports}", 1))
    program = str(Path(sys.executable).with_name("caddy"))
    variables = {"PLATFORM_HOST": NAME, "PLATFORM_WEB": web, "HOME": str(directory), "PATH": ""}
    command = [program, "run", "--adapter", "caddyfile", "--config", str(directory / "Caddyfile")]
    with _running(command, variables, port):
        yield certificate


@contextmanager
def _haproxy(web: str, port: int, directory: Path) -> Iterator[Path]:
    program = need("haproxy", package="haproxy")
    certificate, key = self_signed(directory, NAME)
    both = directory / "both.pem"
    both.write_bytes(certificate.read_bytes() + key.read_bytes())
    site = (ROOT / "deploy" / "haproxy" / "haproxy.cfg").read_text()
    for old, new in {
        "    user haproxy\n    group haproxy\n": "",
        # Each needs two files, and most shells allow fewer than that.
        "maxconn 20000": "maxconn 500",
        "bind :443 ": f"bind 127.0.0.1:{port} ",
        "bind :80\n": f"bind 127.0.0.1:{any_free_port()}\n",
        "/etc/haproxy/certs/api.example.com.pem": str(both),
        "api.example.com": NAME,
        "127.0.0.1:8000\n": f"{web}\n",
    }.items():
        assert old in site, old
        site = site.replace(old, new)
    (directory / "haproxy.cfg").write_text(site)
    command = [program, "-db", "-f", str(directory / "haproxy.cfg")]
    checked = subprocess.run([*command, "-c"], capture_output=True, text=True, check=False)
    # Warnings are errors in the file, too.
    assert (checked.returncode, checked.stderr) == (0, ""), checked.stderr
    with _running(command, {}, port):
        yield certificate


@contextmanager
def _running(command: list[str], variables: dict[str, str], port: int) -> Iterator[None]:
    process = subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, text=True)
    try:
        eventually(lambda: process.poll() is not None or not is_free(host="127.0.0.1", port=port))
        assert process.poll() is None, process.communicate()[1]
        yield
    finally:
        process.terminate()
        process.communicate(timeout=HANGS_AFTER)


class Front:
    """A running proxy: its URL, and a context that trusts its certificate."""

    def __init__(self, port: int, certificate: Path) -> None:
        self.port = port
        self.trust = ssl.create_default_context(cafile=str(certificate))
        self.http = httpx2.Client(base_url=f"https://{NAME}:{port}", verify=self.trust, timeout=PATIENCE)

    def has_started(self) -> bool:
        """Return whether this proxy listens at its port, and not a server that took it in between."""
        try:
            with (
                socket.create_connection((NAME, self.port)) as connection,
                self.trust.wrap_socket(connection, server_hostname=NAME),
            ):
                return True
        except ssl.SSLError:
            return False

    def connect(self) -> RawConnection:
        """Open a connection for requests that no HTTP client would send."""
        return RawConnection(f"https://{NAME}:{self.port}", trust=self.trust)


@contextmanager
def _front(proxy: str, web: str, directory: Path) -> Iterator[Front]:
    start = {"nginx": _nginx, "caddy": _caddy, "haproxy": _haproxy}[proxy]
    for _ in range(5):
        port = any_free_port()
        with start(web, port, directory) as certificate:
            made = Front(port, certificate)
            if made.has_started():
                yield made
                made.http.close()
                return
    pytest.fail(f"{proxy} found no free port")


@pytest.fixture(scope="module")
def proxied_web(upstream: ScriptedUpstream) -> Iterator[WebProcess]:
    """A web process that trusts one proxy, and accepts the name that clients use."""
    with running_web(TRUSTED_PROXIES="1", ALLOWED_HOSTS=NAME) as process:
        yield process


@pytest.fixture(scope="module", params=PROXIES)
def front(
    request: pytest.FixtureRequest, proxied_web: WebProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Front]:
    """A proxy in front of a web process."""
    address = proxied_web.url.removeprefix("http://")
    with _front(request.param, address, tmp_path_factory.mktemp(request.param)) as made:
        yield made


def _bearer(caller: Caller) -> str:
    return f"Bearer {caller.secret}"


def test_events_arrive_while_the_model_generates(front: Front, caller: Caller, script: Script) -> None:
    first, *rest = text("Hello", " world")[1:]
    gate = Gate()
    script.then(stream(first, gate, *rest))
    headers = {"Authorization": _bearer(caller), "Accept-Encoding": "gzip"}
    body = {"model": script.model, "input": "Hi", "stream": True}
    with front.http.stream("POST", "/v1/responses", json=body, headers=headers) as response:
        assert response.status_code == 200, response.read()
        lines = response.iter_lines()
        # The model sends nothing more before this has arrived.
        assert any('"delta":"Hello"' in line for line in lines)
        gate.open()
        assert any("response.completed" in line for line in lines)


async def test_websockets_are_forwarded(front: Front, caller: Caller, script: Script) -> None:
    script.say("Hello")
    url = f"wss://{NAME}:{front.port}/v1/responses"
    headers = {"Authorization": _bearer(caller)}
    # Not the threaded client: it reads and writes at the same time, and OpenSSL may then lose written data.
    async with connect(url, ssl=front.trust, additional_headers=headers, open_timeout=PATIENCE) as socket:
        await socket.send(json.dumps({"type": "response.create", "model": script.model, "input": "Hi"}))
        kinds = [""]
        while kinds[-1] != "response.completed":
            kinds.append(json.loads(await asyncio.wait_for(socket.recv(), PATIENCE))["type"])
        assert "response.created" in kinds


def test_large_files_are_accepted(front: Front, caller: Caller) -> None:
    content = b"x" * (20 * 1024 * 1024)
    headers = {"Authorization": _bearer(caller)}
    files = {"file": ("large.txt", content)}
    stored = front.http.post("/v1/files", files=files, data={"purpose": "user_data"}, headers=headers)
    assert (stored.status_code, stored.json()["bytes"]) == (200, len(content))


@pytest.mark.parametrize("streamed", [False, True])
def test_the_upstream_stops_when_the_client_leaves(
    front: Front, caller: Caller, script: Script, streamed: bool
) -> None:
    script.then(Answer(pieces=[Gate()], delayed_head=True))
    body = orjson.dumps({"model": script.model, "messages": [{"role": "user", "content": "Hi"}], "stream": streamed})
    with front.connect() as peer:
        peer.send_head("POST", "/v1/chat/completions", Authorization=_bearer(caller), Content_Length=len(body))
        peer.send(body)
        received = script.wait_for_call()
    assert received.was_closed()


_INTERNAL = ["metrics", "readyz", "livez"]
_SPELLINGS = ["/{}", "/{}?a", "/{}/", "//{}", "/./{}", "/a/../{}", "/%2e/{}", "http://localhost/{}", "/{}%2f", "%2f{}"]


@pytest.mark.parametrize("name", _INTERNAL)
def test_pages_for_operators_are_not_public(front: Front, name: str) -> None:
    encoded = f"%{ord(name[0]):02x}{name[1:]}"
    for path in [*(spelling.format(name) for spelling in _SPELLINGS), f"/{encoded}", f"http://localhost/{encoded}"]:
        with front.connect() as peer:
            peer.send(f"GET {path} HTTP/1.1\r\nHost: {NAME}\r\nConnection: close\r\n\r\n".encode())
            status = int(peer.rest().split()[1])
        # Proxies refuse some of these, and redirect others to the usual path.
        assert status in {301, 308, 400, 404}, path
    assert front.http.get("/version").status_code == 200


_FORGED = [
    "X-Forwarded-For: 10.9.8.7",
    "X-Forwarded-For: 10.9.8.7\r\nX-Forwarded-For: 10.9.8.7",
    "X-Forwarded-For: 10.9.8.7, 10.9.8.7,",
    "X_Forwarded_For: 10.9.8.7",
    "x-forwarded-for:\t10.9.8.7",
    "Connection: close, X-Forwarded-For\r\nX-Forwarded-For: 10.9.8.7",
    "Forwarded: for=10.9.8.7",
    "X-Real-IP: 10.9.8.7",
    "X-Client-IP: 10.9.8.7",
    "Transfer-Encoding: chunked\r\nTrailer: X-Forwarded-For\r\n\r\n0\r\nX-Forwarded-For: 10.9.8.7",
]


@pytest.mark.parametrize("forged", _FORGED)
def test_clients_cannot_forge_their_address(front: Front, make_caller: MakeCaller, forged: str) -> None:
    codes = {}
    for address in ("10.9.8.7", "127.0.0.1"):
        key = _bearer(make_caller(allowed_addresses=[address]))
        head = f"POST /v1/responses HTTP/1.1\r\nHost: {NAME}\r\nAuthorization: {key}\r\n"
        with front.connect() as peer:
            peer.send(f"{head}{forged}\r\n\r\n".encode())
            codes[address] = peer.response().status
    assert codes == {"10.9.8.7": 403, "127.0.0.1": 400}


@pytest.mark.parametrize(
    "lines", [{"X_Large": "a" * 30_000, "X_More": "b" * 30_000}, {f"X-{n}": "a" for n in range(90)}]
)
def test_headers_up_to_the_limit_of_web_are_accepted(front: Front, caller: Caller, lines: dict[str, str]) -> None:
    assert front.http.get("/v1/models", headers={"Authorization": _bearer(caller), **lines}).status_code == 200


@pytest.mark.parametrize("proxy", PROXIES)
def test_no_proxy_repeats_a_request(proxy: str, tmp_path: Path) -> None:
    """The web process closes each connection once it has received a request."""
    received: list[bytes] = []

    class Closing(socketserver.StreamRequestHandler):
        @override
        def handle(self) -> None:
            line = self.rfile.readline()
            while self.rfile.readline().strip():
                pass
            if b"/readyz" in line:
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            else:
                received.append(line)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Closing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with _front(proxy, f"127.0.0.1:{server.server_address[1]}", tmp_path) as front:
            for number in range(3):
                # HAProxy also closes the connection unless it is new.
                with suppress(httpx2.RemoteProtocolError):
                    assert front.http.post(f"/v1/{number}", content=b"{}").status_code == 502
        server.shutdown()
    assert [line.split()[1] for line in received] == [b"/v1/0", b"/v1/1", b"/v1/2"]
