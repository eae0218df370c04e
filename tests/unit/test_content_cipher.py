"""Encrypted content can be decrypted only by this server, for the same team and purpose, with any of its keys."""

import pytest
from cryptography.fernet import Fernet

from core.crypto import ContentCipher, InvalidToken

OLD, NEW = Fernet.generate_key().decode(), Fernet.generate_key().decode()
TEAM = {"team_id": "team_a", "purpose": "reasoning"}


def test_decrypting_returns_what_was_encrypted() -> None:
    content_cipher = ContentCipher([NEW])
    token = content_cipher.encrypt(b"thoughts", **TEAM)
    assert token.startswith("s1.")
    assert content_cipher.decrypt(token, **TEAM) == b"thoughts"


def test_equal_content_has_different_ciphertexts() -> None:
    content_cipher = ContentCipher([NEW])
    assert content_cipher.encrypt(b"thoughts", **TEAM) != content_cipher.encrypt(b"thoughts", **TEAM)


def test_content_is_compressed() -> None:
    assert len(ContentCipher([NEW]).encrypt(b"so " * 10_000, **TEAM)) < 300


@pytest.mark.parametrize(
    "stranger", [{"team_id": "team_b", "purpose": "reasoning"}, {"team_id": "team_a", "purpose": "compaction"}]
)
def test_another_team_or_purpose_cannot_decrypt(stranger: dict[str, str]) -> None:
    content_cipher = ContentCipher([NEW])
    token = content_cipher.encrypt(b"thoughts", **TEAM)
    with pytest.raises(InvalidToken):
        content_cipher.decrypt(token, **stranger)


def test_older_keys_decrypt_and_the_first_key_encrypts() -> None:
    before, after = ContentCipher([OLD]), ContentCipher([NEW, OLD])
    assert after.decrypt(before.encrypt(b"thoughts", **TEAM), **TEAM) == b"thoughts"
    assert ContentCipher([NEW]).decrypt(after.encrypt(b"thoughts", **TEAM), **TEAM) == b"thoughts"


@pytest.mark.parametrize("token", ["", "s1.", "s1.AAAA", "s1.é", "s2.AAAAAAAAAAAAAAAAAAAAAAAA", "gAAAAABm", "s1.%%%%"])
def test_an_invalid_token_is_rejected(token: str) -> None:
    with pytest.raises(InvalidToken):
        ContentCipher([NEW]).decrypt(token, **TEAM)


def test_a_modified_token_is_rejected() -> None:
    content_cipher = ContentCipher([NEW])
    token = content_cipher.encrypt(b"thoughts", **TEAM)
    other = "A" if token[20] != "A" else "B"
    with pytest.raises(InvalidToken):
        content_cipher.decrypt(token[:20] + other + token[21:], **TEAM)
