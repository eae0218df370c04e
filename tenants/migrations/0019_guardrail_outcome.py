from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('tenants', '0018_wording'),
    ]

    operations = [
        # The column keeps its name, so neither operation runs SQL: processes of the previous release can still write
        # rows while a new release is rolled out.
        migrations.AlterField(
            model_name='guardraildecision',
            name='verdict',
            field=models.CharField(choices=[('passed', 'Passed'), ('noted', 'Noted'), ('blocked', 'Blocked'), ('failed', 'Check failed')], db_column='verdict', max_length=10),
        ),
        migrations.RenameField(model_name='guardraildecision', old_name='verdict', new_name='outcome'),
    ]
