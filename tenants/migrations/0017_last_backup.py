from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("tenants", "0016_connector_effect_ids")]

    operations = [
        migrations.CreateModel(
            name="LastBackup",
            fields=[
                ("id", models.PositiveSmallIntegerField(default=1, primary_key=True, serialize=False)),
                ("state_of", models.DateTimeField()),
            ],
        ),
    ]
