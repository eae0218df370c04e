"""Django configuration of the app."""

from django.apps import AppConfig


class ConversationsConfig(AppConfig):
    """Items, conversations and files."""

    name = "conversations"
    verbose_name = "Conversations"
