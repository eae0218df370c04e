"""Django app configuration of idempotency keys."""

from django.apps import AppConfig


class IdempotencyConfig(AppConfig):
    name = "idempotency"
    label = "idempotency"
    verbose_name = "Idempotency keys"
