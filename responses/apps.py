"""Django's view of this app."""

from django.apps import AppConfig
from typing_extensions import override


class ResponsesConfig(AppConfig):
    """Responses, turns, tool calls, events."""

    name = "responses"
    verbose_name = "Responses"

    @override
    def ready(self) -> None:
        """Say what items of conversations must be like for a response to read them."""
        from responses import entrance

        entrance.connect()
