"""Removal of known secrets from texts of other servers."""

import pytest

from kernel.redaction import redact, secrets_of_url

KEY = "sk-upstream/4f6bd1a9c3e7"


@pytest.mark.parametrize(
    "shown",
    [KEY, f"Bearer {KEY}", "sk-upstream%2F4f6bd1a9c3e7", "sk-up****c3e7", "sk-u...c3e7", "sk-upstr…", "sk-u••••"],
)
def test_a_secret_is_redacted_in_every_spelling(shown: str) -> None:
    assert redact(f"Bad key: {shown}!", [f"Bearer {KEY}"]) == "Bad key: [redacted]!"


def test_ordinary_text_is_unchanged() -> None:
    text = "Values like sk-upper or 1... are invalid ****."
    assert redact(text, [KEY, "short", ""]) == text


def test_the_longer_of_two_secrets_is_redacted_first() -> None:
    assert redact("secret-one-and-two", ["secret-one", "secret-one-and-two"]) == "[redacted]"


def test_credentials_of_urls_are_secrets() -> None:
    url = "https://user:password-1@host.example/v1?api_key=key-2&page=3"
    assert secrets_of_url(url) == ["password-1", "key-2"]
