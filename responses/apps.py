"""Django app configuration of the responses app."""

from django.apps import AppConfig
from django.db.models.signals import post_migrate
from typing_extensions import override


class ResponsesConfig(AppConfig):
    """The app of responses with their turns, tool calls and events."""

    name = "responses"
    verbose_name = "Responses"

    @override
    def ready(self) -> None:
        """Connect the checks of conversation items, and the schema that migrations cannot create."""
        from responses.requests import conversation_items
        from responses.vectors import schema

        conversation_items.connect()
        post_migrate.connect(schema.prepare, sender=self)
