from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("responses", "0007_waiting_runs")]

    operations = [
        migrations.AlterField(model_name="toolcall", name="status", field=models.CharField(max_length=20)),
        migrations.AddField(model_name="toolcall", name="if_ended", field=models.JSONField(null=True)),
    ]
