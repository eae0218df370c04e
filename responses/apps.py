"""Django's view of this app."""

from django.apps import AppConfig


class ResponsesConfig(AppConfig):
    """Responses, turns, tool calls, events."""

    name = "responses"
    verbose_name = "Responses"
