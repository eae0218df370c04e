"""Secrets at rest: Fernet encryption with rotation, content that is sealed for a team, and the keyed digest under which
API keys are stored."""

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

# In front of everything sealed: which way of sealing, so that a later one can tell them apart.
_SEAL = "s1."
_NONCE = 12
_MAX_CIPHERS = 1000


@lru_cache(maxsize=1)
def _fernet() -> MultiFernet:
    return MultiFernet([Fernet(key) for key in _keys()])


def _keys() -> list[str]:
    keys: list[str] = settings.ENCRYPTION_KEYS
    if not keys:
        msg = "ENCRYPTION_KEYS is empty: secrets cannot be stored without a key."
        raise ImproperlyConfigured(msg)
    return keys


def encrypt(plain: str) -> str:
    """Encrypt with the first of ENCRYPTION_KEYS."""
    return _fernet().encrypt(plain.encode()).decode()


def decrypt(token: str) -> str:
    """Decrypt with any of ENCRYPTION_KEYS; raises `InvalidToken` rather than ever returning the ciphertext."""
    return _fernet().decrypt(token.encode()).decode()


class Seals:
    """Encrypts for whoever holds it without being able to read it: clients keep what only this server may open.

    What is sealed opens for the same team and purpose only, with any of the keys; the first of them seals.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = [base64.urlsafe_b64decode(key) for key in keys]
        self._ciphers: dict[tuple[str, str], list[AESGCM]] = {}

    def seal(self, plain: bytes, *, team_id: str, purpose: str) -> str:
        """Compress and encrypt."""
        nonce = os.urandom(_NONCE)
        cipher = self._of(team_id, purpose)[0]
        return _SEAL + base64.urlsafe_b64encode(nonce + cipher.encrypt(nonce, zlib.compress(plain), None)).decode()

    def unseal(self, token: str, *, team_id: str, purpose: str) -> bytes:
        """What was sealed; raises `InvalidToken` for anything that was not, or not for this team and purpose."""
        if not token.startswith(_SEAL):
            raise InvalidToken
        try:
            raw = base64.b64decode(token.removeprefix(_SEAL), altchars=b"-_", validate=True)
        except ValueError as error:
            raise InvalidToken from error
        for cipher in self._of(team_id, purpose) if len(raw) > _NONCE else ():
            try:
                return zlib.decompress(cipher.decrypt(raw[:_NONCE], raw[_NONCE:], None))
            except InvalidTag:
                continue
        raise InvalidToken

    def _of(self, team_id: str, purpose: str) -> list[AESGCM]:
        """A cipher for each key, with a key derived for this team and purpose alone."""
        known = self._ciphers.get((team_id, purpose))
        if known is None:
            if len(self._ciphers) >= _MAX_CIPHERS:
                self._ciphers.clear()
            info = f"{purpose}:{team_id}".encode()
            known = [AESGCM(HKDF(hashes.SHA256(), 32, salt=None, info=info).derive(key)) for key in self._keys]
            self._ciphers[(team_id, purpose)] = known
        return known


@lru_cache(maxsize=1)
def seals() -> Seals:
    """The platform's own, over ENCRYPTION_KEYS."""
    return Seals(_keys())


def keyed_digest(secret: str) -> str:
    """HMAC-SHA256 of a high-entropy secret under API_KEY_PEPPER, in hex.

    A password hasher would cost 0.2 s a check and protects only low-entropy secrets; ours have 256 bits.
    """
    return hmac.new(settings.API_KEY_PEPPER.encode(), secret.encode(), hashlib.sha256).hexdigest()


class EncryptedTextField(models.TextField[str, str]):
    """A text column that is encrypted in the database and plain in Python; an unreadable value raises."""

    @override
    def get_prep_value(self, value: Any) -> Any:
        return encrypt(value) if value else value

    def from_db_value(self, value: str | None, *_: object) -> str | None:
        return decrypt(value) if value else value


__all__ = ["EncryptedTextField", "InvalidToken", "Seals", "decrypt", "encrypt", "keyed_digest", "seals"]
