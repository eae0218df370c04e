"""Encryption: secrets at rest (Fernet, with key rotation), encrypted content for clients, and digests of API keys."""

import base64
import hashlib
import hmac
import os
import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import models
from typing_extensions import override

# Version of the format: clients store encrypted content, so a later format must be able to recognise this one.
_VERSION = "s1."
_NONCE_BYTES = 12
# There are about two ciphers per team. The bound keeps the cache from growing with the number of teams.
_MAX_CACHED_CIPHERS = 1000


@lru_cache(maxsize=1)
def _fernet() -> MultiFernet:
    return MultiFernet([Fernet(key) for key in _keys()])


def _keys() -> list[str]:
    keys: list[str] = settings.ENCRYPTION_KEYS
    if not keys:
        raise ImproperlyConfigured("ENCRYPTION_KEYS is empty: secrets cannot be stored without a key.")
    return keys


def encrypt(plain: str) -> str:
    """Encrypt with the first of ENCRYPTION_KEYS."""
    return _fernet().encrypt(plain.encode()).decode()


def decrypt(token: str) -> str:
    """Decrypt with any of ENCRYPTION_KEYS; raises `InvalidToken`, and never returns the ciphertext."""
    return _fernet().decrypt(token.encode()).decode()


def rotate(token: str) -> str | None:
    """Encrypt again with the first of ENCRYPTION_KEYS; return None if that key has encrypted the token.

    Raises `InvalidToken` if no key decrypts it.
    """
    try:
        Fernet(_keys()[0]).decrypt(token.encode())
    except InvalidToken:
        return _fernet().rotate(token.encode()).decode()
    return None


class ContentCipher:
    """Cipher for content that clients store and send back, but must not read (AES-GCM).

    The first key encrypts, any key decrypts. Content can only be decrypted for the same team and purpose.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = [base64.urlsafe_b64decode(key) for key in keys]
        self._first = keys[:1]
        self._ciphers: dict[tuple[str, str], list[AESGCM]] = {}

    def encrypt(self, plain: bytes, *, team_id: str, purpose: str) -> str:
        """Compress and encrypt."""
        nonce = os.urandom(_NONCE_BYTES)
        cipher = self._ciphers_for(team_id, purpose)[0]
        return _VERSION + base64.urlsafe_b64encode(nonce + cipher.encrypt(nonce, zlib.compress(plain), None)).decode()

    def decrypt(self, token: str, *, team_id: str, purpose: str) -> bytes:
        """Return the plain content; raises `InvalidToken` unless it was encrypted here for this team and purpose."""
        if not token.startswith(_VERSION):
            raise InvalidToken
        try:
            raw = base64.b64decode(token.removeprefix(_VERSION), altchars=b"-_", validate=True)
        except ValueError as error:
            raise InvalidToken from error
        for cipher in self._ciphers_for(team_id, purpose) if len(raw) > _NONCE_BYTES else ():
            try:
                return zlib.decompress(cipher.decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], None))
            except InvalidTag:
                continue
        raise InvalidToken

    def rotate(self, token: str, *, team_id: str, purpose: str) -> str | None:
        """Encrypt again with the first key; return None if that key has encrypted the token. Raises `InvalidToken`."""
        plain = self.decrypt(token, team_id=team_id, purpose=purpose)
        try:
            ContentCipher(self._first).decrypt(token, team_id=team_id, purpose=purpose)
        except InvalidToken:
            return self.encrypt(plain, team_id=team_id, purpose=purpose)
        return None

    def _ciphers_for(self, team_id: str, purpose: str) -> list[AESGCM]:
        ciphers = self._ciphers.get((team_id, purpose))
        if ciphers is None:
            if len(self._ciphers) >= _MAX_CACHED_CIPHERS:
                self._ciphers.clear()
            # A separate key for each team and purpose: content copied to another team fails authentication.
            info = f"{purpose}:{team_id}".encode()
            ciphers = [AESGCM(HKDF(hashes.SHA256(), 32, salt=None, info=info).derive(key)) for key in self._keys]
            self._ciphers[(team_id, purpose)] = ciphers
        return ciphers


@lru_cache(maxsize=1)
def content_cipher() -> ContentCipher:
    """Return the cipher that uses ENCRYPTION_KEYS."""
    return ContentCipher(_keys())


def keyed_digest(secret: str) -> str:
    """Return the HMAC-SHA256 of a high-entropy secret under API_KEY_PEPPER, in hex.

    A password hasher would take 0.2 s per request and protects only low-entropy secrets; ours have 256 bits.
    """
    # The pepper is not in the database, so a leaked dump does not allow offline checks of candidate keys.
    return hmac.new(settings.API_KEY_PEPPER.encode(), secret.encode(), hashlib.sha256).hexdigest()


class EncryptedTextField(models.TextField[str, str]):
    """Text column that is encrypted in the database. Reading a value that is not encrypted raises `InvalidToken`."""

    @override
    def get_prep_value(self, value: Any) -> Any:
        return encrypt(value) if value else value

    def from_db_value(self, value: str | None, *_: object) -> str | None:
        return decrypt(value) if value else value


__all__ = [
    "ContentCipher",
    "EncryptedTextField",
    "InvalidToken",
    "content_cipher",
    "decrypt",
    "encrypt",
    "keyed_digest",
    "rotate",
]
