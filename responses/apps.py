"""Django's view of this app."""

from django.apps import AppConfig
from django.db.models.signals import post_migrate
from typing_extensions import override


class ResponsesConfig(AppConfig):
    """Responses, turns, tool calls, events."""

    name = "responses"
    verbose_name = "Responses"

    @override
    def ready(self) -> None:
        """Say what items of conversations must be like for a response to read them, and what migrations cannot make."""
        from responses.requests import conversation_items
        from responses.vectors import schema

        conversation_items.connect()
        post_migrate.connect(schema.prepare, sender=self)
