
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('tenants', '0013_full_text_search'),
    ]

    operations = [
        migrations.AddIndex(
            model_name='usagerecord',
            index=models.Index(fields=['object_id'], name='usage_by_object'),
        ),
    ]
