"""Django configuration of the app."""

from django.apps import AppConfig
from typing_extensions import override


class TenantsConfig(AppConfig):
    """Teams, members, API keys, models and upstreams."""

    name = "tenants"
    verbose_name = "Teams and access"

    @override
    def ready(self) -> None:
        """Connect the receivers that write sign-ins to the audit log."""
        import tenants.sign_in  # noqa: F401
