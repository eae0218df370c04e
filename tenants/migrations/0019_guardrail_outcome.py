from django.db import migrations


class Migration(migrations.Migration):

    dependencies = [
        ('tenants', '0018_wording'),
    ]

    operations = [
        migrations.RenameField(model_name='guardraildecision', old_name='verdict', new_name='outcome'),
    ]
