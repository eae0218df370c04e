"""Lengths, compression, caching and status 405, which do not depend on an endpoint."""

import gzip
import json
import re
import socket
from urllib.parse import urlsplit

import httpx2
import pytest

from tests.support.api import Api
from tests.support.upstream import Script
from tests.support.waiting import HANGS_AFTER, PATIENCE, eventually
from tests.support.web import WebProcess

SCRIPT = "/static/console/playground.js"
PUBLIC = ["/livez", "/version", "/openapi.json", "/docs/guide/", "/favicon.ico"]


def raw(web: WebProcess, path: str, **headers: str) -> httpx2.Response:
    """Return an answer with its undecoded body."""
    sent = {"Accept-Encoding": "identity", **{name.replace("_", "-"): value for name, value in headers.items()}}
    with httpx2.Client(timeout=PATIENCE) as http, http.stream("GET", web.url + path, headers=sent) as answer:
        answer._content = b"".join(answer.iter_raw())
    return answer


@pytest.mark.slow
@pytest.mark.parametrize("server", ["web", "daphne_web"])
def test_json_answers_have_a_length(request: pytest.FixtureRequest, server: str, http: httpx2.Client) -> None:
    url = request.getfixturevalue(server).url
    for path, status in (("/v1/models", 401), ("/v1/nothing", 404), ("/livez", 200), ("/openapi.json", 200)):
        answer = http.get(url + path, headers={"Accept-Encoding": "identity"})
        assert (answer.status_code, answer.headers["content-length"]) == (status, str(len(answer.content)))
        assert "transfer-encoding" not in answer.headers


def test_responses_have_a_length(api: Api, script: Script) -> None:
    script.say("Hello")
    for answer in (
        api.post("/responses", {"model": script.model, "input": "Hi"}),
        api.get("/responses"),
        api.request("HEAD", "/responses"),
    ):
        assert answer.status_code == 200
        assert int(answer.headers["content-length"]) >= max(2, len(answer.content))


def test_head_has_the_headers_of_get_and_no_body(web: WebProcess, api: Api) -> None:
    host, port = urlsplit(web.url).netloc.split(":")
    with socket.create_connection((host, int(port)), timeout=HANGS_AFTER) as peer:
        head = f"HEAD /v1/models HTTP/1.1\r\nHost: {host}\r\nAuthorization: {api.headers['Authorization']}\r\n"
        peer.sendall(f"{head}Connection: close\r\n\r\n".encode())
        received = b""
        while chunk := peer.recv(65536):
            received += chunk
    assert received.startswith(b"HTTP/1.1 200")
    assert b"content-length: " in received.lower()
    assert received.endswith(b"\r\n\r\n")


def test_answers_of_the_api_are_not_compressed(api: Api) -> None:
    answer = api.request("GET", "/models", headers={"Accept-Encoding": "gzip, br"})
    assert "content-encoding" not in answer.headers


@pytest.mark.slow
def test_the_document_is_compressed_if_the_client_accepts_it(web: WebProcess) -> None:
    plain, compressed = raw(web, "/openapi.json"), raw(web, "/openapi.json", Accept_Encoding="br, gzip;q=0.5")
    assert "content-encoding" not in plain.headers
    assert compressed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(compressed.content) == plain.content
    assert len(compressed.content) < len(plain.content) / 5
    assert "Accept-Encoding" in compressed.headers["vary"]
    assert "content-encoding" not in raw(web, "/openapi.json", Accept_Encoding="gzip;q=0, *;q=0").headers


def test_the_document_is_not_sent_again_if_it_is_unchanged(web: WebProcess, http: httpx2.Client) -> None:
    first = http.get(f"{web.url}/openapi.json")
    again = http.get(f"{web.url}/openapi.json", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
    assert http.get(f"{web.url}/openapi.json", headers={"If-None-Match": '"other"'}).status_code == 200


def test_static_files_are_compressed_and_can_be_cached(web: WebProcess, http: httpx2.Client) -> None:
    plain, compressed = raw(web, SCRIPT), raw(web, SCRIPT, Accept_Encoding="gzip")
    assert gzip.decompress(compressed.content) == plain.content
    assert compressed.headers["content-length"] == str(len(compressed.content))
    assert "Accept-Encoding" in plain.headers["vary"]
    assert "max-age" in compressed.headers["cache-control"]
    unchanged = http.get(web.url + SCRIPT, headers={"If-Modified-Since": compressed.headers["last-modified"]})
    assert unchanged.status_code == 304
    part = raw(web, SCRIPT, Accept_Encoding="gzip", Range="bytes=0-99")
    assert (part.status_code, part.content) == (206, plain.content[:100])


@pytest.mark.slow
def test_files_with_a_hash_in_their_address_are_kept_forever(web: WebProcess, http: httpx2.Client) -> None:
    page = http.get(f"{web.url}/account/login/").text
    files = re.findall(r'(?:href|src)="(/static/[^"]+)"', page)
    styles = next(path for path in files if path.endswith(".css"))
    fonts = re.findall(r'url\("([^"]+)"\)', http.get(web.url + styles).text)
    assert len(fonts) == 5
    for path in (*files, *fonts):
        answer = http.get(web.url + path)
        assert answer.status_code == 200
        assert answer.headers["cache-control"].endswith("immutable"), path
    for path in ("/static/console/mark.svg", "/static/console/mark.svg?0123456789ab"):
        assert "immutable" not in http.get(web.url + path).headers["cache-control"]
    assert http.get(f"{web.url}/static/bundles/console.0123456789ab.css").status_code == 404


def test_bundles_are_compressed_if_the_client_accepts_it(web: WebProcess) -> None:
    page = raw(web, "/account/login/").text
    script = next(path for path in re.findall(r'src="([^"]+)"', page) if "/bundles/" in path)
    plain, compressed = raw(web, script), raw(web, script, Accept_Encoding="gzip")
    assert "content-encoding" not in plain.headers
    assert gzip.decompress(compressed.content) == plain.content
    assert len(compressed.content) < len(plain.content) / 3


def test_the_icon_is_served(web: WebProcess, http: httpx2.Client) -> None:
    icon = http.get(f"{web.url}/favicon.ico")
    assert (icon.status_code, icon.headers["content-type"]) == (200, "image/x-icon")
    assert icon.content.startswith(b"\x00\x00\x01\x00")
    assert icon.headers["cache-control"] == "public, max-age=86400"
    assert "/static/console/mark.svg" in http.get(f"{web.url}/account/login/").text
    assert http.get(f"{web.url}/static/console/mark.svg").headers["content-type"] == "image/svg+xml"


@pytest.mark.parametrize("path", PUBLIC)
def test_public_pages_refuse_other_methods_with_api_errors(web: WebProcess, http: httpx2.Client, path: str) -> None:
    refused = http.post(web.url + path, json={})
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")
    assert refused.json()["error"] == {
        "message": f"Not allowed to POST on {path}. Allowed: GET, HEAD.",
        "type": "invalid_request_error",
        "param": None,
        "code": "method_not_supported",
    }
    assert http.head(web.url + path).status_code == 200


def test_browsers_get_an_error_page(web: WebProcess, http: httpx2.Client) -> None:
    page = http.delete(f"{web.url}/docs", headers={"Accept": "text/html,*/*;q=0.8"})
    assert (page.status_code, page.headers["allow"]) == (405, "GET, HEAD")
    assert "Not allowed to DELETE on /docs. Allowed: GET, HEAD." in page.text


@pytest.mark.parametrize("method", ["PUT", "OPTIONS", "TRACE"])
def test_paths_of_streams_refuse_other_methods(api: Api, method: str) -> None:
    refused = api.request(method, "/chat/completions?stream=true", content=b'{"stream": true}')
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET, POST, HEAD")


@pytest.mark.parametrize("path", ["/docs", "/admin/", "/account/login/"])
def test_a_wrong_host_is_logged_in_one_line(web: WebProcess, http: httpx2.Client, path: str) -> None:
    written = web.written
    assert http.get(web.url + path, headers={"Host": "wrong.test"}).status_code == 400
    lines = eventually(lambda: [one for one in web.output(since=written).splitlines() if "wrong.test" in one])
    (line,) = [json.loads(one) for one in lines]
    assert (line["level"], line["path"]) == ("warning", path)
    assert "Invalid HTTP_HOST header" in line["event"]
    assert "Traceback" not in web.output(since=written)


def test_errors_outside_of_the_api_share_one_page_design(web: WebProcess, http: httpx2.Client) -> None:
    for path, headers, status in (("/nothing", {}, 404), ("/docs", {"Host": "other.test"}, 400)):
        page = http.get(web.url + path, headers=headers)
        assert page.status_code == status
        assert f'<p class="status">{status}</p>' in page.text
        assert page.headers["x-request-id"].startswith("req_")
