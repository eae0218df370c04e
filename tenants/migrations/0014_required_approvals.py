import django.contrib.postgres.fields
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("tenants", "0013_target_limits")]

    operations = [
        migrations.AddField(
            model_name="connector",
            name="require_approval",
            field=models.BooleanField(
                db_default=False,
                default=False,
                help_text="Require approval for each call of its tools, whatever the request says.",
            ),
        ),
        migrations.AddField(
            model_name="connector",
            name="wait_for_approval",
            field=models.BooleanField(
                db_default=False,
                default=False,
                help_text="Let background responses wait when one of its tools requires approval. Otherwise they "
                "complete with the approval request. Requests can choose.",
            ),
        ),
        migrations.AddField(
            model_name="team",
            name="require_approval",
            field=django.contrib.postgres.fields.ArrayField(
                base_field=models.CharField(max_length=200),
                blank=True,
                db_default=[],
                default=list,
                help_text="MCP tools whose calls always require approval, whatever the request says: names of tools, "
                "connectors, server labels or host names of servers, or * for all.",
                size=None,
            ),
        ),
        migrations.AddField(
            model_name="team",
            name="wait_for_approval",
            field=models.BooleanField(
                db_default=False,
                default=False,
                help_text="Let background responses wait when a tool requires approval, until somebody decides here or "
                "through the API. Otherwise they complete with the approval request. Requests can choose.",
            ),
        ),
    ]
