"""Django app configuration of containers."""

from django.apps import AppConfig


class ContainersConfig(AppConfig):
    name = "containers"
    label = "containers"
    verbose_name = "Containers"
