"""Django's view of this app."""

from django.apps import AppConfig
from typing_extensions import override


class TenantsConfig(AppConfig):
    """Teams, keys, models and upstreams."""

    name = "tenants"
    verbose_name = "Teams and access"

    @override
    def ready(self) -> None:
        """Listen to what happens at the door."""
        import tenants.sign_in  # noqa: F401
