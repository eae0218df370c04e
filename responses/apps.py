"""Django app configuration of the responses app."""

from django.apps import AppConfig


class ResponsesConfig(AppConfig):
    """The app of responses with their turns, tool calls and events."""

    name = "responses"
    verbose_name = "Responses"
