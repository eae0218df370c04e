"""URLs with forbidden targets get the same answer in every part of the API that takes a URL.

`tests/unit/test_egress.py` has more spellings, and names whose addresses change; these tests use the API.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest

from core.errors import EgressRefused
from tests.support.api import Api
from tests.support.mcp_requests import calling
from tests.support.search_engine import engine, search_server
from tests.support.upstream import Script

REFUSED = str(EgressRefused())
SPELLINGS = [
    "https://127.0.0.1/",
    "https://127.8.9.10/",
    "https://2130706433/",
    "https://0x7f000001/",
    "https://0x7f.1/",
    "https://017700000001/",
    "https://0177.0.0.1/",
    "https://127.1/",
    "https://127.0.0.1./",
    "https://%31%32%37.0.0.1/",
    "https://１２７.0.0.1/",  # full-width digits
    "https://①②⑦.⓪.⓪.①/",
    "https://127。0。0。1/",  # ideographic full stops
    "https://0/",
    "https://0.0.0.0/",
    "https://10.0.0.1/",
    "https://172.16.0.1/",
    "https://192.168.1.1/",
    "https://100.64.0.1/",
    "https://169.254.169.254/latest/meta-data/",
    "https://169.254.170.2/v2/credentials",
    "https://168.63.129.16/",
    "https://192.0.0.192/",
    "https://100.100.100.200/latest/meta-data/",
    "https://[::1]/",
    "https://[::]/",
    "https://[::ffff:127.0.0.1]/",
    "https://[::ffff:7f00:1]/",
    "https://[64:ff9b::7f00:1]/",
    "https://[64:ff9b::a9fe:a9fe]/",
    "https://[2002:7f00:1::]/",
    "https://[fd00:ec2::254]/",
    "https://[fe80::1%25eth0]/",
    "https://[fc00::1]/",
    "https://localhost/",
    "https://LOCALHOST./",
    "https://metadata.google.internal/computeMetadata/v1/",
    "https://redis/",
    "https://example.com@127.0.0.1/",
    "https://127.0.0.1\\@example.com/",
    "https://user:password@example.com/",
    "https://example.com:6379/",
    "http://example.com/",
    "ftp://example.com/",
    "file:///etc/passwd",
    "gopher://127.0.0.1:6379/_FLUSHALL",
]
OF_THE_WEB = [url for url in SPELLINGS if url.startswith("http")]
Door = Callable[[Api, str], str]


def _said(answer: Any) -> str:
    """Return the message of a rejection."""
    assert answer.status_code == 400, answer.text
    message: str = answer.json()["error"]["message"]
    return message


def _asking(api: Api, **body: Any) -> str:
    return _said(api.post("/responses", {"model": "m", "input": "Hi", **body}))


DOORS: dict[str, Door] = {
    "mcp": lambda api, url: _asking(api, tools=[{"type": "mcp", "server_label": "box", "server_url": url}]),
    "webhook": lambda api, url: _said(
        api.post("/webhook_endpoints", {"name": "w", "url": url, "event_types": ["response.completed"]})
    ),
}


@pytest.mark.parametrize("door", list(DOORS))
def test_every_forbidden_url_gets_the_same_answer(api: Api, door: str) -> None:
    messages = {url: DOORS[door](api, url) for url in SPELLINGS}
    assert {url: message for url, message in messages.items() if REFUSED not in message} == {}


@pytest.mark.parametrize("part", [{"type": "input_image", "image_url": ""}, {"type": "input_file", "file_url": ""}])
def test_image_and_file_urls_get_the_same_answer(api: Api, script: Script, part: dict[str, str]) -> None:
    messages = {}
    for url in OF_THE_WEB:
        filled = {name: value or url for name, value in part.items()}
        messages[url] = _asking(api, model=script.model, input=[{"role": "user", "content": [filled]}])
    assert {url: message for url, message in messages.items() if REFUSED not in message} == {}


@pytest.mark.slow
def test_pages_of_a_web_search_get_the_same_error(reaching: Api, script: Script) -> None:
    script.then(calling(*[("open_page", json.dumps({"url": url})) for url in OF_THE_WEB])).say("Oh.")
    with search_server() as served:
        engine(reaching.caller.team, served)
        response = reaching.create(
            model=script.model, input="Hi", tools=[{"type": "web_search"}], include=["web_search_call.results"]
        )
    calls = [item for item in response["output"] if item["type"] == "web_search_call"]
    others = [call["action"]["url"] for call in calls if REFUSED not in call["results"][0]["text"]]
    assert others == ["https://127.0.0.1/", "https://localhost/"]  # which this server's EGRESS_ALLOW opens
    assert served.pages == []
