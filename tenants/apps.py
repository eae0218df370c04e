"""Django's view of this app."""

from django.apps import AppConfig


class TenantsConfig(AppConfig):
    """Teams, keys, models and upstreams."""

    name = "tenants"
    verbose_name = "Teams and access"
