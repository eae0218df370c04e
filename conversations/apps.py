"""Django's view of this app."""

from django.apps import AppConfig


class ConversationsConfig(AppConfig):
    """Items and where they stand."""

    name = "conversations"
    verbose_name = "Conversations"
