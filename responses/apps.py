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
        """Connect the schema that migrations cannot create, and vector stores to the removal of files."""
        from responses.vectors import removal, schema

        post_migrate.connect(schema.prepare, sender=self)
        removal.connect()
