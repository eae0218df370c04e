from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('responses', '0005_approvals'),
    ]

    operations = [
        migrations.AddField(
            model_name='turn',
            name='discarded',
            field=models.JSONField(null=True),
        ),
    ]
