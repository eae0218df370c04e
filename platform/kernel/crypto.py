"""Secrets at rest: Fernet encryption with rotation, and the keyed digest under which API keys are stored."""

import hashlib
import hmac
from functools import lru_cache
from typing import Any

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import models
from typing_extensions import override


@lru_cache(maxsize=1)
def _fernet() -> MultiFernet:
    keys = settings.ENCRYPTION_KEYS
    if not keys:
        msg = "ENCRYPTION_KEYS is empty: secrets cannot be stored without a key."
        raise ImproperlyConfigured(msg)
    return MultiFernet([Fernet(key) for key in keys])


def encrypt(plain: str) -> str:
    """Encrypt with the first of ENCRYPTION_KEYS."""
    return _fernet().encrypt(plain.encode()).decode()


def decrypt(token: str) -> str:
    """Decrypt with any of ENCRYPTION_KEYS; raises `InvalidToken` rather than ever returning the ciphertext."""
    return _fernet().decrypt(token.encode()).decode()


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


__all__ = ["EncryptedTextField", "InvalidToken", "decrypt", "encrypt", "keyed_digest"]
