from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("tenants", "0015_approval_notifications")]

    operations = [
        migrations.AddField(
            model_name="connector",
            name="honours_effect_ids",
            field=models.BooleanField(
                "honours effect ids",
                db_default=False,
                default=False,
                help_text="The tools of the server act only once for calls with the same effect id. "
                "Calls that were interrupted may then be repeated.",
            ),
        ),
    ]
