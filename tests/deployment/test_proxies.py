"""nginx and Caddy, with the documented configuration: TLS, events at once, WebSockets, large bodies, no metrics."""

import json
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from websockets.sync.client import connect

from launcher.address import any_free_port, is_free
from tests.support.api import Caller
from tests.support.certificates import self_signed
from tests.support.chunks import text
from tests.support.programs import need
from tests.support.upstream import Gate, Script, stream
from tests.support.waiting import eventually
from tests.support.web import WebProcess

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
NAME = "localhost"
PROXIES = ["nginx", "caddy"]


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
    # A certificate of our own: Caddy would ask a certificate authority of the internet.
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
def _running(command: list[str], variables: dict[str, str], port: int) -> Iterator[None]:
    process = subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, text=True)
    try:
        eventually(lambda: process.poll() is not None or not is_free(host="127.0.0.1", port=port))
        assert process.poll() is None, process.communicate()[1]
        yield
    finally:
        process.terminate()
        process.communicate(timeout=20)


class Front:
    """A running proxy: its URL, and a context that trusts its certificate."""

    def __init__(self, port: int, certificate: Path) -> None:
        self.port = port
        self.trust = ssl.create_default_context(cafile=str(certificate))
        self.http = httpx2.Client(base_url=f"https://{NAME}:{port}", verify=self.trust, timeout=30)


@pytest.fixture(scope="module", params=PROXIES)
def front(request: pytest.FixtureRequest, web: WebProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """A proxy in front of the web process of most tests."""
    port, directory = any_free_port(), tmp_path_factory.mktemp(request.param)
    start = {"nginx": _nginx, "caddy": _caddy}[request.param]
    with start(web.url.removeprefix("http://"), port, directory) as certificate:
        made = Front(port, certificate)
        yield made
        made.http.close()


def test_events_arrive_while_the_model_still_writes(front: Front, caller: Caller, script: Script) -> None:
    first, *rest = text("Hello", " world")[1:]
    gate = Gate()
    script.then(stream(first, gate, *rest))
    headers = {"Authorization": f"Bearer {caller.secret}", "Accept-Encoding": "gzip"}
    body = {"model": script.model, "input": "Hi", "stream": True}
    with front.http.stream("POST", "/v1/responses", json=body, headers=headers) as response:
        assert response.status_code == 200, response.read()
        lines = response.iter_lines()
        # The model writes nothing more before this has arrived.
        assert any('"delta":"Hello"' in line for line in lines)
        gate.open()
        assert any("response.completed" in line for line in lines)


def test_websockets_are_forwarded(front: Front, caller: Caller, script: Script) -> None:
    script.say("Hello")
    url = f"wss://{NAME}:{front.port}/v1/responses"
    headers = {"Authorization": f"Bearer {caller.secret}"}
    with connect(url, ssl=front.trust, additional_headers=headers) as socket:
        socket.send(json.dumps({"type": "response.create", "model": script.model, "input": "Hi"}))
        kinds = iter(lambda: json.loads(socket.recv(timeout=30))["type"], "response.completed")
        assert "response.created" in list(kinds)


def test_large_files_are_accepted(front: Front, caller: Caller) -> None:
    content = b"x" * (20 * 1024 * 1024)
    headers = {"Authorization": f"Bearer {caller.secret}"}
    files = {"file": ("large.txt", content)}
    stored = front.http.post("/v1/files", files=files, data={"purpose": "user_data"}, headers=headers)
    assert (stored.status_code, stored.json()["bytes"]) == (200, len(content))


@pytest.mark.parametrize("path", ["/metrics", "/readyz", "/livez"])
def test_what_is_for_operators_is_not_public(front: Front, path: str) -> None:
    assert front.http.get(path).status_code == 404
    assert front.http.get("/version").status_code == 200
