from typing import Any

from django.db import migrations

from core.basic_auth import split_credentials


def encrypt_credentials(apps: Any, schema_editor: Any) -> None:
    """Move user and password from the URLs of upstreams to the column of the key, which is encrypted."""
    upstreams = apps.get_model("tenants", "Upstream").objects.using(schema_editor.connection.alias)
    for upstream in upstreams.filter(base_url__contains="@"):
        base_url, basic = split_credentials(upstream.base_url)
        if basic:
            upstream.base_url = base_url
            upstream.api_key = upstream.api_key or basic
            upstream.save(update_fields=["base_url", "api_key"])


class Migration(migrations.Migration):
    dependencies = [("tenants", "0004_clock_of_database")]

    operations = [migrations.RunPython(encrypt_credentials, migrations.RunPython.noop)]
