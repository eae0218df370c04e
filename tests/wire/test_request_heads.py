"""URLs and headers beyond the limits are answered with 414 and 431."""

import pytest

from tests.support.raw_http import RawConnection
from tests.support.web import WebProcess

KIB = 1024


@pytest.fixture(params=["web", "daphne_web"])
def server(request: pytest.FixtureRequest) -> WebProcess:
    process: WebProcess = request.getfixturevalue(request.param)
    return process


@pytest.mark.parametrize("size", [33 * KIB, 100 * KIB, 2000 * KIB])
@pytest.mark.parametrize("path", ["/v1/responses/", "/v1/responses?model=", "/admin/"])
def test_a_long_url_gets_414(server: WebProcess, path: str, size: int) -> None:
    with RawConnection(server.url) as peer:
        peer.send_head("GET", path + "a" * size)
        answer = peer.response()
        assert (answer.status, answer.headers["connection"]) == (414, "close")
        assert answer.error["code"] == "url_too_long"
        assert answer.headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize("size", [65 * KIB, 2000 * KIB])
def test_a_large_header_gets_431(server: WebProcess, size: int) -> None:
    with RawConnection(server.url) as peer:
        peer.send_head("GET", "/v1/models", X_Large="a" * size)
        answer = peer.response()
        assert (answer.status, answer.error["code"]) == (431, "headers_too_large")
        assert answer.headers["connection"] == "close"


def test_headers_that_are_large_together_get_431(server: WebProcess) -> None:
    with RawConnection(server.url) as peer:
        peer.send_head("POST", "/v1/responses", **{f"X-{n}": "a" * KIB for n in range(70)}, Content_Length=5)
        assert peer.response().status == 431


def test_too_many_headers_get_431(server: WebProcess) -> None:
    with RawConnection(server.url) as peer:
        peer.send_head("GET", "/v1/models", **{f"X-{n}": "a" for n in range(600)})
        assert peer.response().status == 431


def test_headers_that_never_end_get_431(server: WebProcess) -> None:
    with RawConnection(server.url) as peer:
        peer.socket.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n")
        for number in range(5000):
            if not peer.send(b"X-%d: " % number + b"a" * 90 + b"\r\n"):
                break
        assert peer.response().status == 431


def test_a_websocket_with_a_long_url_gets_414(server: WebProcess) -> None:
    upgrade = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec_WebSocket_Version": 13}
    with RawConnection(server.url) as peer:
        peer.send_head("GET", "/v1/responses?" + "a" * 40 * KIB, **upgrade, Sec_WebSocket_Key="A" * 22 + "==")
        assert peer.response().status == 414


@pytest.mark.parametrize("path", ["/v1/models?" + "a=1&" * 4000, "/admin/?" + "b" * 30 * KIB])
def test_long_urls_within_the_limit_are_served(server: WebProcess, path: str) -> None:
    with RawConnection(server.url) as peer:
        peer.send_head("GET", path, X_Large="a" * 30 * KIB)
        assert peer.response().status in {301, 302, 400, 401}
        peer.send_head("GET", "/livez")
        assert peer.response().status == 200


def test_requests_that_arrive_together_are_answered_in_order(server: WebProcess) -> None:
    paths = [f"/v1/nothing/{number}" for number in range(4)]
    with RawConnection(server.url) as peer:
        peer.socket.sendall(b"".join(b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % path.encode() for path in paths))
        messages = [peer.response().error["message"] for _ in paths]
    assert [message.split()[-1].rstrip(")") for message in messages] == paths
