import kernel.json_text
import tenants.prices
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('responses', '0020_conversation_lock'),
    ]

    operations = [
        migrations.AlterField(
            model_name='approval',
            name='answered_in',
            field=models.CharField(db_collation='C', help_text='The response whose request contained the answer.', max_length=64, null=True),
        ),
        migrations.AlterField(
            model_name='batch',
            name='errors',
            field=models.JSONField(help_text='Errors of the input file.', null=True),
        ),
        migrations.AlterField(
            model_name='batch',
            name='model',
            field=models.CharField(blank=True, help_text='The model of all lines, if they use the same one.', max_length=200, null=True),
        ),
        migrations.AlterField(
            model_name='batch',
            name='output_seconds',
            field=models.PositiveIntegerField(help_text='Retention of the output files, in seconds.', null=True),
        ),
        migrations.AlterField(
            model_name='batchline',
            name='error_code',
            field=models.CharField(help_text='The reason why there is no answer.', max_length=60, null=True),
        ),
        migrations.AlterField(
            model_name='batchline',
            name='not_before',
            field=models.DateTimeField(help_text='The earliest time of the next attempt.', null=True),
        ),
        migrations.AlterField(
            model_name='callhour',
            name='hour',
            field=models.DateTimeField(help_text='The start of the hour.'),
        ),
        migrations.AlterField(
            model_name='chatcompletion',
            name='parameters',
            field=models.JSONField(decoder=kernel.json_text.WireDecoder, default=dict, help_text='The other parameters of the request.'),
        ),
        migrations.AlterField(
            model_name='prompttemplate',
            name='current',
            field=models.PositiveIntegerField(default=1, help_text='The version for requests that do not name one.'),
        ),
        migrations.AlterField(
            model_name='promptversion',
            name='model',
            field=models.CharField(blank=True, default='', help_text='The model for requests that do not name one.', max_length=200),
        ),
        migrations.AlterField(
            model_name='promptversion',
            name='parameters',
            field=models.JSONField(decoder=kernel.json_text.WireDecoder, default=dict, help_text='Defaults for requests that do not set them.'),
        ),
        migrations.AlterField(
            model_name='response',
            name='attempt',
            field=models.PositiveIntegerField(default=0, help_text='Number of times that a worker started the run.'),
        ),
        migrations.AlterField(
            model_name='response',
            name='background',
            field=models.BooleanField(default=False, help_text='Executed by a worker, independently of the client.'),
        ),
        migrations.AlterField(
            model_name='response',
            name='claims',
            field=models.JSONField(default=list, help_text='Time and worker of each claim.'),
        ),
        migrations.AlterField(
            model_name='response',
            name='completed_at',
            field=models.DateTimeField(help_text='Set if and only if the status is completed.', null=True),
        ),
        migrations.AlterField(
            model_name='response',
            name='cost',
            field=tenants.prices.CostField(blank=True, decimal_places=10, help_text='In US dollars, as far as prices were known. Empty if none was.', max_digits=20, null=True),
        ),
        migrations.AlterField(
            model_name='response',
            name='followed_until',
            field=models.DateTimeField(help_text='Until then the run counts as followed by a client through its event log.', null=True),
        ),
        migrations.AlterField(
            model_name='response',
            name='lease_until',
            field=models.DateTimeField(help_text='Expiry of the lease. A background run without one is queued.', null=True),
        ),
        migrations.AlterField(
            model_name='response',
            name='moderation',
            field=models.JSONField(help_text='Moderation results for input and output.', null=True),
        ),
        migrations.AlterField(
            model_name='response',
            name='options',
            field=models.JSONField(default=dict, help_text='Settings of the request that the response object does not contain.'),
        ),
        migrations.AlterField(
            model_name='response',
            name='secrets',
            field=models.TextField(blank=True, default='', help_text='Credentials that the run needs, encrypted. Erased when it ends.'),
        ),
        migrations.AlterField(
            model_name='response',
            name='stored',
            field=models.BooleanField(default=True, help_text='If not set, the row has no content and the API answers 404.'),
        ),
        migrations.AlterField(
            model_name='responsehour',
            name='hour',
            field=models.DateTimeField(help_text='The start of the hour.'),
        ),
        migrations.AlterField(
            model_name='searchtext',
            name='speaker',
            field=models.CharField(help_text='The role of a message, or the type of another item.', max_length=40),
        ),
        migrations.AlterField(
            model_name='toolhour',
            name='hour',
            field=models.DateTimeField(help_text='The start of the hour.'),
        ),
        migrations.AlterField(
            model_name='vectorstore',
            name='dimensions',
            field=models.PositiveIntegerField(help_text='Dimensions of the vectors; empty while there are none.', null=True),
        ),
        migrations.AlterField(
            model_name='vectorstorefile',
            name='lease_until',
            field=models.DateTimeField(help_text='No other worker starts with the file before.', null=True),
        ),
    ]
