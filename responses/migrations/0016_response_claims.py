
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('responses', '0015_storage_by_time'),
    ]

    operations = [
        migrations.AddField(
            model_name='response',
            name='claims',
            field=models.JSONField(default=list, help_text='When a worker took it, and which: one entry for each claim.'),
        ),
    ]
