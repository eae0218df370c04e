"""DNS rebinding: a name that has a public address when it is checked, and one of this machine when it is used."""

import os
import socket
import ssl
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

from tests.support import workers
from tests.support.api import Api, MakeCaller
from tests.support.background import ended
from tests.support.certificates import self_signed
from tests.support.name_server import NameServer, name_server
from tests.support.sampling import rest_at_night
from tests.support.upstream import Script, ScriptedUpstream
from tests.support.waiting import eventually
from tests.support.web import running_web
from tests.support.workers import running_worker

pytestmark = pytest.mark.slow
DOMAIN = "rebinding.example"
# Separate addresses, as tests may run in parallel: a public one, added to this machine for the test, and an internal
# one.
_PROCESS = os.getpid() % 60_000
PUBLIC = f"11.255.{_PROCESS // 250}.{_PROCESS % 250 + 1}"
INTERNAL = f"127.77.{_PROCESS // 250}.{_PROCESS % 250 + 1}"
ANSWERS = {
    "flips": [[PUBLIC], [INTERNAL]],
    "alternates": [[PUBLIC], [INTERNAL], [PUBLIC], [INTERNAL], [PUBLIC], [INTERNAL]],
    "redirects": [[PUBLIC]],
    "both": [[PUBLIC, INTERNAL]],
    "internal": [[INTERNAL]],
    "mapped": [[f"::ffff:{INTERNAL}"]],
    "six": [[PUBLIC], [PUBLIC, "::1"]],
}


class Listener:
    """A server on port 443 of an address that counts its connections, and redirects to a name that changes."""

    def __init__(self, address: str, tls: ssl.SSLContext) -> None:
        self.connections = 0
        self._tls = tls
        self.socket = socket.create_server((address, 443))
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                peer = self.socket.accept()[0]
                self.connections += 1
                threading.Thread(target=self._answer, args=[peer], daemon=True).start()

    def _answer(self, peer: socket.socket) -> None:
        peer.settimeout(10)
        with suppress(OSError), self._tls.wrap_socket(peer, server_side=True) as stream:
            name = "internal" if b"\r\nHost: redirects" in stream.recv(65536) else "flips"
            target = f"https://{name}-{uuid.uuid4().hex}.{DOMAIN}/"
            stream.sendall(f"HTTP/1.1 302 Found\r\nLocation: {target}\r\nContent-Length: 0\r\n\r\n".encode())


@dataclass
class Site:
    """A platform that uses the name server, with a public and an internal server that its URLs can reach."""

    url: str
    names: NameServer
    public: Listener
    internal: Listener


@contextmanager
def _public_address() -> Iterator[None]:
    subprocess.run(["ip", "address", "add", f"{PUBLIC}/32", "dev", "lo"], check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "address", "del", f"{PUBLIC}/32", "dev", "lo"], check=True)


@pytest.fixture(scope="module")
def site(upstream: ScriptedUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A web process and a worker that trust the certificate of the servers."""
    directory = tmp_path_factory.mktemp("names")
    certificate, key = self_signed(directory, f"*.{DOMAIN}")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    names = NameServer(ANSWERS)
    with ExitStack() as stack:
        prefix = stack.enter_context(name_server(names, INTERNAL, directory))
        stack.enter_context(_public_address())
        for process in workers.RUNNING:
            # They would use another name server.
            stack.enter_context(process.suspended())
        public, internal = Listener(PUBLIC, tls), Listener(INTERNAL, tls)
        stack.callback(public.socket.close)
        stack.callback(internal.socket.close)
        variables: dict[str, Any] = {"SSL_CERT_FILE": str(certificate), "EGRESS_ALLOW": "", "prefix": prefix}
        web = stack.enter_context(running_web(**variables))
        stack.enter_context(running_worker(WEBHOOK_CONCURRENCY="4", **variables))
        yield Site(web.url, names, public, internal)


@pytest.fixture
def api(site: Site, http: httpx2.Client, make_caller: MakeCaller) -> Api:
    """The API of that platform."""
    return Api(http, url=site.url, caller=make_caller())


def _image(url: str) -> dict[str, Any]:
    return {"type": "input_image", "image_url": url}


def _in_chat(part: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [part]}]}


def _in_responses(part: dict[str, Any]) -> dict[str, Any]:
    return {"input": [{"role": "user", "content": [part]}]}


def _mcp(url: str) -> dict[str, Any]:
    return {"input": "Hi", "tools": [{"type": "mcp", "server_label": "box", "server_url": url}]}


Request = tuple[str, dict[str, Any]]
# By parameter: the path and the body of a request that uses the URL.
REQUESTS: dict[str, Callable[[str], Request]] = {
    "image_url": lambda url: ("/responses", _in_responses(_image(url))),
    "file_url": lambda url: ("/responses", _in_responses({"type": "input_file", "file_url": url})),
    "image_url of input_tokens": lambda url: ("/responses/input_tokens", _in_responses(_image(url))),
    "image_url in the background": lambda url: ("/responses", {**_in_responses(_image(url)), "background": True}),
    "server_url": lambda url: ("/responses", _mcp(url)),
    "server_url of a stream": lambda url: ("/responses", {**_mcp(url), "stream": True}),
    "server_url in the background": lambda url: ("/responses", {**_mcp(url), "background": True}),
    "image_url of chat": lambda url: (
        "/chat/completions",
        _in_chat({"type": "image_url", "image_url": {"url": url}}),
    ),
    "image_url of moderations": lambda url: (
        "/moderations",
        {"input": [{"type": "image_url", "image_url": {"url": url}}]},
    ),
    "url of messages": lambda url: (
        "/messages",
        {"max_tokens": 9, **_in_chat({"type": "image", "source": {"type": "url", "url": url}})},
    ),
}


def _names(site: Site) -> dict[str, str]:
    return {kind: f"{kind}-{uuid.uuid4().hex}.{DOMAIN}" for kind in site.names.answers}


@pytest.mark.parametrize("parameter", rest_at_night(REQUESTS, first=4))
def test_no_parameter_reaches_an_internal_address(site: Site, api: Api, script: Script, parameter: str) -> None:
    names, before = _names(site), site.public.connections
    for name in names.values():
        # The address has changed for a second request.
        for _ in range(2):
            path, body = REQUESTS[parameter](f"https://{name}/a.png")
            answer = api.post(path, {"model": script.model, **body})
            assert answer.status_code < 500, answer.text
            if body.get("background") and answer.status_code == 200:
                assert ended(api, answer.json()["id"])["status"] == "failed"
    assert site.internal.connections == 0
    assert [kind for kind, name in names.items() if not site.names.was_asked(name)] == []
    # The names could be reached as long as they were public.
    assert site.public.connections - before >= 3


def test_no_webhook_reaches_an_internal_address(site: Site, api: Api, script: Script) -> None:
    names, before = _names(site), site.public.connections
    for name in names.values():
        hook = {"name": name[:30], "url": f"https://{name}/", "event_types": ["response.completed"]}
        assert api.post("/webhook_endpoints", hook).status_code == 200
    for _ in range(2):
        script.say("Hello")
        response = api.create(model=script.model, input="Hi", background=True)
        assert ended(api, response["id"])["status"] == "completed"
    assert eventually(lambda: all(map(site.names.was_asked, names.values())))
    assert eventually(lambda: site.public.connections - before >= 3)
    assert site.internal.connections == 0
