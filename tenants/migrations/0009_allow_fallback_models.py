from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("tenants", "0008_model_assistant_prefix")]

    operations = [
        migrations.AddField(
            model_name="team",
            name="allow_fallback_models",
            field=models.BooleanField(
                db_default=True,
                default=True,
                help_text="Let a fallback model answer while all upstreams of the requested model fail. Otherwise the "
                "request fails.",
            ),
        ),
    ]
