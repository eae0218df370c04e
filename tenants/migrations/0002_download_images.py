from typing import Any

from django.db import migrations, models


def download_images(apps: Any, schema_editor: Any) -> None:
    # Off was the default, and no decision of the operator: upstreams got the URLs of clients unchecked.
    apps.get_model("tenants", "Model").objects.using(schema_editor.connection.alias).update(inline_images=True)


class Migration(migrations.Migration):
    dependencies = [("tenants", "0001_initial")]

    operations = [
        migrations.AlterField(
            model_name="model",
            name="inline_images",
            field=models.BooleanField(
                default=True,
                help_text="The platform downloads images by URL and sends their content. If off, the upstream gets the "
                "URL: turn this off only for an upstream that cannot reach your private networks.",
            ),
        ),
        migrations.RunPython(download_images, migrations.RunPython.noop),
    ]
