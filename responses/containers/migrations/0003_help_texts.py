from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('containers', '0002_container_by_time'),
    ]

    operations = [
        migrations.AlterField(
            model_name='container',
            name='idle_minutes',
            field=models.PositiveIntegerField(default=20, help_text='The container expires after this many minutes without activity.'),
        ),
        migrations.AlterField(
            model_name='container',
            name='lost',
            field=models.BooleanField(default=False, help_text='The container ended before its expiration time.'),
        ),
        migrations.AlterField(
            model_name='containerfile',
            name='size',
            field=models.BigIntegerField(help_text='Size in bytes.'),
        ),
    ]
