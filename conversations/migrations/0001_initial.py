import conversations.models
import django.contrib.postgres.indexes
import django.db.models.deletion
import django.utils.timezone
import core.ids
import core.db.json_text
import tenants.models.teams
from django.db import migrations, models

from core.db.row_security import enable_row_security


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('tenants', '0001_initial'),
    ]

    operations = [
        migrations.CreateModel(
            name='Item',
            fields=[
                ('key', models.UUIDField(default=core.ids.new_key, editable=False, primary_key=True, serialize=False)),
                ('team', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team')),
                ('id', models.CharField(db_collation='C', max_length=255)),
                ('type', models.CharField(max_length=40)),
                ('body', core.db.json_text.WireField()),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
            ],
            options={
                'indexes': [models.Index(fields=['team', 'id'], name='item_by_wire_id')],
            },
        ),
        migrations.CreateModel(
            name='Placement',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('team', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team')),
                ('owner', models.CharField(db_collation='C', max_length=64)),
                ('section', models.CharField(choices=[('input', 'Input of a response'), ('output', 'Output of a response'), ('items', 'Items of a conversation')], max_length=10)),
                ('position', models.PositiveIntegerField()),
                ('item', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='placements', to='conversations.item')),
                ('in_context', models.BooleanField(default=True, help_text='False for fragments of an interrupted turn: shown, but never sent to a model again.')),
                ('opens_context', models.BooleanField(default=False, help_text='True for compaction items: a model reads no item before the latest one.')),
            ],
            options={
                'indexes': [models.Index(condition=models.Q(('opens_context', True)), fields=['owner', 'section', 'position'], name='placement_opening_context')],
                'constraints': [models.UniqueConstraint(fields=('owner', 'section', 'position'), name='placement_position_once')],
            },
        ),
        migrations.CreateModel(
            name='Conversation',
            fields=[
                ('id', tenants.models.teams.IdField(db_collation='C', default=conversations.models.conversation_id, editable=False, max_length=64, primary_key=True, serialize=False)),
                ('team', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team')),
                ('api_key', models.ForeignKey(db_index=False, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.apikey')),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('metadata', models.JSONField(default=dict)),
                ('next_position', models.PositiveIntegerField(default=0)),
            ],
            options={
                'indexes': [models.Index(fields=['team', 'created_at', 'id'], name='conversation_by_team_and_time'), models.Index(fields=['created_at', 'id'], name='conversation_by_time'), django.contrib.postgres.indexes.GinIndex(fields=['metadata'], name='conversation_by_metadata', opclasses=['jsonb_path_ops'])],
            },
        ),
        migrations.CreateModel(
            name='RemovedItem',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('team', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team')),
                ('conversation', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='removed', to='conversations.conversation')),
                ('item_id', models.CharField(db_collation='C', max_length=255)),
                ('position', models.PositiveIntegerField()),
            ],
            options={
                'indexes': [models.Index(fields=['conversation', 'item_id', 'position'], name='removed_item_by_wire_id')],
            },
        ),
        migrations.CreateModel(
            name='File',
            fields=[
                ('id', tenants.models.teams.IdField(db_collation='C', default=conversations.models.file_id, editable=False, max_length=64, primary_key=True, serialize=False)),
                ('team', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team')),
                ('api_key', models.ForeignKey(db_index=False, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.apikey')),
                ('filename', models.CharField(max_length=255)),
                ('purpose', models.CharField(choices=[('assistants', 'Assistants'), ('batch', 'Batch'), ('batch_output', 'Output of a batch'), ('fine-tune', 'Fine-tuning'), ('vision', 'Vision'), ('user_data', 'User data'), ('evals', 'Evals')], max_length=20)),
                ('content_type', models.CharField(max_length=255)),
                ('size', models.BigIntegerField(help_text='In bytes.')),
                ('sha256', models.CharField(default='', help_text='Of the content, in hex; empty until it is stored.', max_length=64)),
                ('state', models.CharField(choices=[('pending', 'Being stored'), ('ready', 'Ready'), ('gone', 'Being removed')], default='pending', max_length=10)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('expires_at', models.DateTimeField(null=True)),
                ('sweep_at', models.DateTimeField(null=True)),
            ],
            options={
                'indexes': [models.Index(fields=['team', 'created_at', 'id'], name='file_by_team_and_time'), models.Index(fields=['created_at', 'id'], name='file_by_time'), models.Index(condition=models.Q(('sweep_at__isnull', False)), fields=['sweep_at'], name='file_by_sweep')],
                'constraints': [models.CheckConstraint(condition=models.Q(('state', 'ready'), ('sweep_at__isnull', False), _connector='OR'), name='file_sweep_unless_ready'), models.CheckConstraint(condition=models.Q(models.Q(('state', 'ready'), _negated=True), models.Q(('sha256', ''), _negated=True), _connector='OR'), name='file_digest_when_ready')],
            },
        ),
        migrations.CreateModel(
            name='Upload',
            fields=[
                ('id', tenants.models.teams.IdField(db_collation='C', default=conversations.models.upload_id, editable=False, max_length=64, primary_key=True, serialize=False)),
                ('team', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team')),
                ('api_key', models.ForeignKey(db_index=False, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.apikey')),
                ('filename', models.CharField(max_length=255)),
                ('purpose', models.CharField(choices=[('assistants', 'Assistants'), ('batch', 'Batch'), ('batch_output', 'Output of a batch'), ('fine-tune', 'Fine-tuning'), ('vision', 'Vision'), ('user_data', 'User data'), ('evals', 'Evals')], max_length=20)),
                ('content_type', models.CharField(max_length=255)),
                ('size', models.BigIntegerField(help_text='Declared size in bytes.')),
                ('lifetime_seconds', models.PositiveIntegerField(help_text='Lifetime of the file, from completion on.', null=True)),
                ('state', models.CharField(choices=[('pending', 'Pending'), ('completing', 'Being assembled'), ('completed', 'Completed'), ('cancelled', 'Cancelled')], default='pending', max_length=10)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('expires_at', models.DateTimeField()),
                ('file', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='conversations.file')),
            ],
        ),
        migrations.CreateModel(
            name='UploadPart',
            fields=[
                ('id', tenants.models.teams.IdField(db_collation='C', default=conversations.models.part_id, editable=False, max_length=64, primary_key=True, serialize=False)),
                ('team', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team')),
                ('upload', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='parts', to='conversations.upload')),
                ('content', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, related_name='part', to='conversations.file')),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
            ],
        ),
        *map(enable_row_security, [
            'conversations_item',
            'conversations_placement',
            'conversations_conversation',
            'conversations_removeditem',
            'conversations_file',
            'conversations_upload',
            'conversations_uploadpart',
        ]),
    ]
