from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('responses', '0005_clock_of_database'),
    ]

    operations = [
        migrations.AlterField(
            model_name='response',
            name='not_before',
            field=models.DateTimeField(help_text='A background run waits until then for a cheaper time or for capacity within its limits.', null=True),
        ),
    ]
