"""Redaction of known secrets in texts of other servers."""

import base64
import html
import json
import re
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest

from core.redaction import redact, secrets_of_url

KEY = "sk-upstream/4f6bd1a9c3e7"
PASSWORD = 'pass "word"/9f+8é'
SPELLINGS = {
    "plain": str,
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "base64 for URLs": lambda text: base64.urlsafe_b64encode(text.encode()).decode().rstrip("="),
    "percent-encoded": lambda text: quote(text, safe=""),
    "percent-encoded in lower case": lambda text: re.sub("%..", lambda code: code[0].lower(), quote(text, safe="")),
    "form-encoded": quote_plus,
    "JSON": json.dumps,
    "JSON with characters": lambda text: json.dumps(text, ensure_ascii=False),
    "HTML": html.escape,
}


@pytest.mark.parametrize(
    "shown",
    [KEY, f"Bearer {KEY}", "sk-upstream%2F4f6bd1a9c3e7", "sk-up****c3e7", "sk-u...c3e7", "sk-upstr…", "sk-u••••"],
)
def test_a_secret_is_redacted_in_every_spelling(shown: str) -> None:
    assert redact(f"Bad key: {shown}!", [f"Bearer {KEY}"]) == "Bad key: [redacted]!"


@pytest.mark.parametrize("spelled", SPELLINGS.values(), ids=SPELLINGS.keys())
@pytest.mark.parametrize("prefix", ["", "Bearer "])
def test_an_encoded_secret_is_redacted(spelled: Callable[[str], str], prefix: str) -> None:
    shown = redact(f"Bad: {spelled(PASSWORD.replace(' ', '_'))}", [prefix + PASSWORD.replace(" ", "_")])
    # In base64, up to two characters at an end also depend on the neighbours.
    assert re.fullmatch(r'Bad: "?\w{0,2}\[redacted\]\w{0,2}={0,2}"?', shown)


@pytest.mark.parametrize("before", ["", "a", "ab", "abc", "Bearer "])
@pytest.mark.parametrize("after", ["", "d", "de", "def"])
def test_a_secret_within_an_encoded_text_is_redacted(before: str, after: str) -> None:
    secret = "sk-up/9f27+c1d04be8a6"
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        shown = redact(encode(f"{before}{secret}{after}".encode()).decode(), [secret])
        assert "[redacted]" in shown
        assert len(shown) < 32


@pytest.mark.parametrize("spelled", SPELLINGS.values(), ids=SPELLINGS.keys())
@pytest.mark.parametrize("shown", [PASSWORD, f"user:{PASSWORD}"], ids=["password", "pair"])
def test_a_secret_of_basic_authentication_is_redacted(spelled: Callable[[str], str], shown: str) -> None:
    header = "Basic " + base64.b64encode(f"user:{PASSWORD}".encode()).decode()
    url = f"https://user:{quote(PASSWORD, safe='')}@host.example/v1"
    for secrets in ([header], secrets_of_url(url)):
        text = redact(f"Bad: {spelled(shown)}", secrets)
        assert PASSWORD not in text
        assert "[redacted]" in text


def test_ordinary_text_is_unchanged() -> None:
    text = "Values like sk-upper or 1... are invalid ****."
    assert redact(text, [KEY, "short", ""]) == text


def test_the_longer_of_two_secrets_is_redacted_first() -> None:
    assert redact("secret-one-and-two", ["secret-one", "secret-one-and-two"]) == "[redacted]"


def test_credentials_of_urls_are_secrets() -> None:
    url = "https://user:password-1@host.example/v1?api_key=key-2&page=3"
    assert secrets_of_url(url) == ["user:password-1", "password-1", "key-2"]
    assert secrets_of_url("https://token-3@host.example/") == ["token-3:", "token-3"]
    assert secrets_of_url("https://host.example/?page=3") == []
