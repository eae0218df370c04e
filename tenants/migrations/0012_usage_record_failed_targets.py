from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("tenants", "0011_model_serves")]

    operations = [
        migrations.AddField(
            model_name="usagerecord",
            name="failed_targets",
            field=models.JSONField(
                help_text="Targets that failed in the same call, for calls that have no timeline.", null=True
            ),
        ),
    ]
