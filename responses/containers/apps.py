"""Django's view of this app."""

from django.apps import AppConfig


class ContainersConfig(AppConfig):
    """Containers and their files."""

    name = "responses.containers"
    label = "containers"
    verbose_name = "Containers"
