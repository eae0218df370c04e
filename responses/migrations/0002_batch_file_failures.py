from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("responses", "0001_initial"),
    ]

    operations = [
        migrations.AddField("batch", "file_error", models.CharField(db_default="", default="", max_length=200)),
        migrations.AddField("batch", "file_failures", models.PositiveIntegerField(db_default=0, default=0)),
        migrations.AddField("batch", "files_retry_at", models.DateTimeField(null=True)),
    ]
