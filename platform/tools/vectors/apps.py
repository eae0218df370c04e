"""Django configuration of vector stores, whose tables belong to the app `responses`."""

from django.apps import AppConfig, apps
from django.db.models.signals import post_migrate
from typing_extensions import override


class VectorsConfig(AppConfig):
    """Connects the receivers that create the tables for pgvector and that remove files from vector stores."""

    name = "tools.vectors"
    verbose_name = "Vector stores"

    @override
    def ready(self) -> None:
        """Connect the receivers of signals."""
        from tools.vectors import removal, schema

        # Sent for apps with models only.
        post_migrate.connect(schema.prepare, sender=apps.get_app_config("responses"))
        removal.connect()
