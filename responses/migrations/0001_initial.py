import django.contrib.postgres.fields
import django.contrib.postgres.indexes
import django.db.models.deletion
import django.utils.timezone
import core.crypto
import core.db.json_text
import responses.models.batches
import responses.models.responses
import responses.models.vector_stores
import responses.webhooks.models
import tenants.prices
import tenants.models.teams
from django.db import migrations, models

from core.db.partitions import CreateMonthlyTable
from core.db.row_security import enable_row_security

# Full-text search of messages keeps words as they are written, in any language. That of passages drops English words
# without content; words of other languages are kept.
WORDS = 'ALTER TABLE "{}" ADD COLUMN words tsvector GENERATED ALWAYS AS (to_tsvector(\'{}\', text)) STORED'.format
SEARCH_WORDS = WORDS('responses_searchtext', 'simple')
SEARCH_INDEX = 'CREATE INDEX search_text_by_words ON "responses_searchtext" USING gin (words)'
GONE_WITH_ITEM = (
    'ALTER TABLE "responses_searchtext" ADD CONSTRAINT search_text_of_item '
    'FOREIGN KEY (item_id) REFERENCES "conversations_item" (key) ON DELETE CASCADE'
)
CHUNK_WORDS = WORDS('responses_vectorchunk', 'english')
CHUNK_INDEX = 'CREATE INDEX vector_chunk_by_words ON "responses_vectorchunk" USING gin (words)'

# A response is inserted once and updated at its end. An update on the same page is logged without the columns that stay
# the same.
ROOM_FOR_UPDATES = 'ALTER TABLE "responses_response" SET (fillfactor = 60)'

# A usage record that is inserted after its hour was summed is remembered, so that it is in exactly one place. The lock
# is that of the rollup (`responses.rollups.aggregate.LOCK`): without it, the rollup could miss the record, and the
# record the new mark. Younger records need none: an hour is summed five minutes after it ends.
REMEMBER_LATE_USAGE = (
    """
CREATE FUNCTION remember_late_usage() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(125822885983600);
    INSERT INTO responses_unrolledrow (team_id, source, row_id, hour)
    SELECT NEW.team_id, 'calls', NEW.id::text, date_trunc('hour', NEW.occurred_at, 'UTC')
    FROM responses_rollupmark WHERE until > NEW.occurred_at
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$
""",
    """
CREATE TRIGGER remember_late_usage AFTER INSERT ON tenants_usagerecord
FOR EACH ROW WHEN (NEW.occurred_at < clock_timestamp() - interval '3 minutes') EXECUTE FUNCTION remember_late_usage()
""",
)


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('conversations', '0001_initial'),
        ('tenants', '0001_initial'),
    ]

    operations = [
        migrations.CreateModel(
            name='Batch',
            fields=[
                ('id', tenants.models.teams.IdField(db_collation='C', default=responses.models.batches.batch_id, editable=False, max_length=64, primary_key=True, serialize=False)),
                ('team', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team')),
                ('api_key', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.apikey')),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('status', models.CharField(choices=[('validating', 'Validating'), ('failed', 'Failed'), ('in_progress', 'In progress'), ('finalizing', 'Finalizing'), ('completed', 'Completed'), ('expired', 'Expired'), ('cancelling', 'Cancelling'), ('cancelled', 'Cancelled')], default='validating', max_length=12)),
                ('ending', models.CharField(choices=[('validating', 'Validating'), ('failed', 'Failed'), ('in_progress', 'In progress'), ('finalizing', 'Finalizing'), ('completed', 'Completed'), ('expired', 'Expired'), ('cancelling', 'Cancelling'), ('cancelled', 'Cancelled')], default='completed', max_length=12)),
                ('endpoint', models.CharField(max_length=40)),
                ('completion_window', models.CharField(max_length=10)),
                ('model', models.CharField(blank=True, help_text='The model of all lines, if they use the same one.', max_length=200, null=True)),
                ('metadata', models.JSONField(null=True)),
                ('input_file_id', models.CharField(db_collation='C', max_length=64)),
                ('output_file_id', models.CharField(db_collation='C', max_length=64, null=True)),
                ('error_file_id', models.CharField(db_collation='C', max_length=64, null=True)),
                ('output_seconds', models.PositiveIntegerField(help_text='Retention of the output files, in seconds.', null=True)),
                ('errors', models.JSONField(help_text='Errors of the input file.', null=True)),
                ('total', models.PositiveIntegerField(default=0)),
                ('completed', models.PositiveIntegerField(default=0)),
                ('failed', models.PositiveIntegerField(default=0)),
                ('input_tokens', models.PositiveBigIntegerField(default=0)),
                ('cached_tokens', models.PositiveBigIntegerField(default=0)),
                ('output_tokens', models.PositiveBigIntegerField(default=0)),
                ('reasoning_tokens', models.PositiveBigIntegerField(default=0)),
                ('request_id', models.CharField(default='', max_length=64)),
                ('expires_at', models.DateTimeField()),
                ('in_progress_at', models.DateTimeField(null=True)),
                ('finalizing_at', models.DateTimeField(null=True)),
                ('cancelling_at', models.DateTimeField(null=True)),
                ('ended_at', models.DateTimeField(null=True)),
                ('lease_owner', models.CharField(max_length=120, null=True)),
                ('lease_token', models.PositiveIntegerField(default=0)),
                ('lease_until', models.DateTimeField(null=True)),
            ],
            options={
                'verbose_name_plural': 'batches',
                'indexes': [models.Index(fields=['team', 'created_at', 'id'], name='batch_by_team_and_time'), models.Index(fields=['created_at', 'id'], name='batch_by_time'), models.Index(condition=models.Q(('status__in', ('validating', 'in_progress', 'finalizing', 'cancelling'))), fields=['created_at'], name='batch_open_by_time')],
            },
        ),
        migrations.CreateModel(
            name='BatchLine',
            fields=[
                ('id', tenants.models.teams.IdField(db_collation='C', default=responses.models.batches.line_id, editable=False, max_length=64, primary_key=True, serialize=False)),
                ('team', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team')),
                ('batch', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='lines', to='responses.batch')),
                ('position', models.PositiveIntegerField()),
                ('custom_id', models.CharField(max_length=512)),
                ('state', models.CharField(choices=[('queued', 'Queued'), ('running', 'Running'), ('completed', 'Completed'), ('failed', 'Failed')], default='queued', max_length=10)),
                ('body', models.TextField(default='')),
                ('attempt', models.PositiveIntegerField(default=0)),
                ('not_before', models.DateTimeField(help_text='The earliest time of the next attempt.', null=True)),
                ('lease_owner', models.CharField(max_length=120, null=True)),
                ('lease_token', models.PositiveIntegerField(default=0)),
                ('lease_until', models.DateTimeField(null=True)),
                ('request_id', models.CharField(default='', max_length=64)),
                ('status_code', models.PositiveIntegerField(null=True)),
                ('answer', models.TextField(default='')),
                ('error_code', models.CharField(help_text='The reason why there is no answer.', max_length=60, null=True)),
                ('input_tokens', models.PositiveIntegerField(default=0)),
                ('cached_tokens', models.PositiveIntegerField(default=0)),
                ('output_tokens', models.PositiveIntegerField(default=0)),
                ('reasoning_tokens', models.PositiveIntegerField(default=0)),
            ],
            options={
                'verbose_name': 'line of a batch',
                'verbose_name_plural': 'lines of batches',
                'indexes': [models.Index(fields=['batch', 'state', 'position'], name='batch_line_by_state')],
                'constraints': [models.UniqueConstraint(fields=('batch', 'position'), name='batch_line_position_once')],
            },
        ),
        migrations.CreateModel(
            name='Response',
            fields=[
                ('id', tenants.models.teams.IdField(db_collation='C', default=responses.models.responses.response_id, editable=False, max_length=64, primary_key=True, serialize=False)),
                ('team', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team')),
                ('api_key', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.apikey')),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('mode', models.CharField(choices=[('json', 'JSON'), ('stream', 'Stream')], max_length=10)),
                ('endpoint', models.CharField(default='responses', help_text='The endpoint that created it.', max_length=40)),
                ('background', models.BooleanField(default=False, help_text='Executed by a worker, independently of the client.')),
                ('stored', models.BooleanField(default=True, help_text='If not set, the row has no content and the API answers 404.')),
                ('previous_response_id', models.CharField(blank=True, db_collation='C', max_length=64, null=True)),
                ('conversation_id', models.CharField(blank=True, db_collation='C', max_length=64, null=True)),
                ('history_id', models.CharField(blank=True, db_collation='C', max_length=64, null=True)),
                ('history_end', models.PositiveIntegerField(null=True)),
                ('model', models.CharField(max_length=200)),
                ('upstream_id', models.CharField(max_length=64)),
                ('upstream_model', models.CharField(max_length=200)),
                ('parameters', core.db.json_text.WireField(default=dict)),
                ('options', models.JSONField(default=dict, help_text='Settings of the request that the response object does not contain.')),
                ('metadata', models.JSONField(default=dict)),
                ('end_user', models.CharField(blank=True, max_length=128, null=True)),
                ('request_id', models.CharField(default='', max_length=64)),
                ('client_request_id', models.CharField(blank=True, default='', max_length=512)),
                ('input_preview', models.CharField(blank=True, default='', max_length=120)),
                ('lease_owner', models.CharField(blank=True, max_length=120, null=True)),
                ('lease_token', models.PositiveIntegerField(default=1)),
                ('lease_until', models.DateTimeField(help_text='Expiry of the lease. A background run without one is queued.', null=True)),
                ('attempt', models.PositiveIntegerField(default=0, help_text='Number of times that a worker started the run.')),
                ('not_before', models.DateTimeField(help_text='A background run waits until then for capacity within its limits.', null=True)),
                ('claims', models.JSONField(default=list, help_text='Time and worker of each claim.')),
                ('handed_over_at', models.DateTimeField(help_text='When a stopping web process has left the run to the workers, which execute it since then.', null=True)),
                ('followed_until', models.DateTimeField(help_text='Until then the run counts as followed by a client through its event log.', null=True)),
                ('status', models.CharField(choices=[('queued', 'Queued'), ('in_progress', 'In progress'), ('completed', 'Completed'), ('incomplete', 'Incomplete'), ('failed', 'Failed'), ('cancelled', 'Cancelled')], default='in_progress', max_length=12)),
                ('service_tier', models.CharField(blank=True, max_length=20, null=True)),
                ('secrets', models.TextField(blank=True, default='', help_text='Credentials that the run needs, encrypted. Erased when it ends.')),
                ('output_preview', models.CharField(blank=True, default='', max_length=120)),
                ('first_token_ms', models.PositiveIntegerField(null=True)),
                ('duration_ms', models.PositiveIntegerField(null=True)),
                ('completed_at', models.DateTimeField(help_text='Set if and only if the status is completed.', null=True)),
                ('ended_at', models.DateTimeField(null=True)),
                ('turns', models.PositiveIntegerField(default=0)),
                ('tool_calls', models.PositiveIntegerField(default=0)),
                ('input_tokens', models.PositiveIntegerField(default=0)),
                ('cached_tokens', models.PositiveIntegerField(default=0)),
                ('cache_write_tokens', models.PositiveIntegerField(default=0)),
                ('output_tokens', models.PositiveIntegerField(default=0)),
                ('reasoning_tokens', models.PositiveIntegerField(default=0)),
                ('has_open_call', models.BooleanField(default=False, help_text='Ended by another process during a call whose usage is not recorded yet.')),
                ('cost', tenants.prices.CostField(blank=True, decimal_places=10, help_text='In US dollars, as far as prices were known. Empty if none was.', max_digits=20, null=True)),
                ('spans', models.JSONField(default=list, help_text='What the run did outside of its turns, measured.')),
                ('error', core.db.json_text.WireField(null=True)),
                ('error_code', models.CharField(blank=True, max_length=60, null=True)),
                ('incomplete_reason', models.CharField(blank=True, max_length=40, null=True)),
                ('moderation', core.db.json_text.WireField(help_text='Moderation results for input and output.', null=True)),
            ],
            options={
                'indexes': [models.Index(fields=['team', 'created_at'], name='response_by_team_and_time'), models.Index(fields=['created_at'], name='response_by_time'), models.Index(condition=models.Q(('previous_response_id__isnull', False)), fields=['previous_response_id'], name='response_by_previous'), models.Index(condition=models.Q(('conversation_id__isnull', False)), fields=['conversation_id', 'created_at'], name='response_by_conversation'), models.Index(condition=models.Q(('status__in', ('queued', 'in_progress'))), fields=['lease_until'], name='response_running_lease'), models.Index(condition=models.Q(('background', True), ('status__in', ('queued', 'in_progress'))), fields=['team', 'created_at'], name='response_background_by_team'), models.Index(condition=models.Q(('handed_over_at__isnull', False), ('status__in', ('queued', 'in_progress'))), fields=['handed_over_at'], name='response_handed_over'), django.contrib.postgres.indexes.GinIndex(condition=models.Q(('metadata', {}), _negated=True), fields=['metadata'], name='response_by_metadata', opclasses=['jsonb_path_ops']), models.Index(fields=['api_key', 'created_at'], name='response_by_key_and_time'), models.Index(fields=['model', 'created_at'], name='response_by_model_and_time'), models.Index(condition=models.Q(('end_user__isnull', False)), fields=['end_user', 'created_at'], name='response_by_end_user'), models.Index(condition=models.Q(('error_code__isnull', False)), fields=['error_code', 'created_at'], name='response_by_error_code'), models.Index(condition=models.Q(('status__in', ('incomplete', 'failed', 'cancelled'))), fields=['created_at'], name='response_unwell_by_time')],
                'constraints': [models.CheckConstraint(condition=models.Q(models.Q(('completed_at__isnull', False), ('status', 'completed')), models.Q(('completed_at__isnull', True), models.Q(('status', 'completed'), _negated=True)), _connector='OR'), name='response_completed_at_iff_completed'), models.CheckConstraint(condition=models.Q(models.Q(('ended_at__isnull', False), ('status__in', ('completed', 'incomplete', 'failed', 'cancelled'))), models.Q(('ended_at__isnull', True), ('status__in', ('queued', 'in_progress'))), _connector='OR'), name='response_ended_iff_terminal')],
            },
        ),
        migrations.CreateModel(
            name='ConversationLock',
            fields=[
                ('conversation_id', tenants.models.teams.IdField(db_collation='C', editable=False, max_length=64, primary_key=True, serialize=False)),
                ('team', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team')),
                ('response_id', models.CharField(db_collation='C', max_length=64)),
                ('until', models.DateTimeField()),
            ],
            options={
                'db_table': 'responses_conversationhold',
            },
        ),
        CreateMonthlyTable(
            name='Turn',
            fields=[
                ('team', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team')),
                ('response', models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='turn_set', to='responses.response')),
                ('number', models.PositiveIntegerField()),
                ('pk', models.CompositePrimaryKey('response_id', 'number', blank=True, editable=False, primary_key=True, serialize=False)),
                ('state', models.CharField(max_length=20)),
                ('started_at', models.DateTimeField()),
                ('first_token_at', models.DateTimeField(null=True)),
                ('ended_at', models.DateTimeField()),
                ('discarded', models.JSONField(null=True)),
                ('finish_reason', models.CharField(max_length=40, null=True)),
                ('upstream_request_id', models.CharField(max_length=200, null=True)),
                ('input_tokens', models.PositiveIntegerField(default=0)),
                ('cached_tokens', models.PositiveIntegerField(default=0)),
                ('cache_write_tokens', models.PositiveIntegerField(default=0)),
                ('output_tokens', models.PositiveIntegerField(default=0)),
                ('reasoning_tokens', models.PositiveIntegerField(default=0)),
                ('spans', models.JSONField(default=list)),
            ],
            partition_by='response_id',
        ),
        migrations.CreateModel(
            name='ToolCall',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('team', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team')),
                ('response', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='tool_call_set', to='responses.response')),
                ('turn', models.PositiveIntegerField()),
                ('call_id', models.CharField(db_collation='C', max_length=64)),
                ('kind', models.CharField(max_length=40)),
                ('name', models.CharField(max_length=200)),
                ('arguments', models.TextField()),
                ('output', models.TextField(null=True)),
                ('status', models.CharField(max_length=12)),
                ('attempt', models.PositiveIntegerField(default=1)),
                ('error', models.TextField(null=True)),
                ('result', models.JSONField(null=True)),
                ('started_at', models.DateTimeField()),
                ('ended_at', models.DateTimeField(null=True)),
            ],
            options={
                'indexes': [models.Index(fields=['team', 'started_at'], name='tool_call_by_team_and_time'), models.Index(fields=['team', 'call_id'], name='tool_call_by_call_id'), models.Index(fields=['started_at', 'id'], name='tool_call_by_time'), models.Index(fields=['name', 'started_at'], name='tool_call_by_name'), models.Index(condition=models.Q(('kind', 'function'), _negated=True), fields=['kind', 'started_at'], name='tool_call_hosted_by_kind')],
                'constraints': [models.UniqueConstraint(fields=('response', 'turn', 'call_id'), name='tool_call_once')],
            },
        ),
        migrations.CreateModel(
            name='Approval',
            fields=[
                ('id', tenants.models.teams.IdField(db_collation='C', editable=False, max_length=64, primary_key=True, serialize=False)),
                ('team', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team')),
                ('response', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='responses.response')),
                ('call_id', models.CharField(db_collation='C', max_length=64)),
                ('request', models.CharField(max_length=64)),
                ('definition', models.CharField(max_length=64)),
                ('state', models.CharField(choices=[('asked', 'Asked'), ('granted', 'Granted'), ('denied', 'Denied')], default='asked', max_length=10)),
                ('asked_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('answered_at', models.DateTimeField(null=True)),
                ('answered_in', models.CharField(db_collation='C', help_text='The response whose request contained the answer.', max_length=64, null=True)),
            ],
            options={
                'indexes': [models.Index(fields=['team', 'asked_at'], name='approval_by_team_and_time'), models.Index(condition=models.Q(('answered_in__isnull', False)), fields=['answered_in'], name='approval_by_answer')],
            },
        ),
        CreateMonthlyTable(
            name='EventBatch',
            fields=[
                ('team', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team')),
                ('response', models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='event_batches', to='responses.response')),
                ('first_sequence', models.PositiveIntegerField()),
                ('pk', models.CompositePrimaryKey('response_id', 'first_sequence', blank=True, editable=False, primary_key=True, serialize=False)),
                ('last_sequence', models.PositiveIntegerField()),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('compressed', models.BinaryField()),
            ],
            options={
                'verbose_name_plural': 'event batches',
            },
            partition_by='response_id',
        ),
        migrations.CreateModel(
            name='CommitMark',
            fields=[
                ('writer', tenants.models.teams.IdField(db_collation='C', editable=False, max_length=64, primary_key=True, serialize=False)),
                ('batch', models.PositiveBigIntegerField()),
                ('held', django.contrib.postgres.fields.ArrayField(base_field=models.TextField(), default=list, size=None)),
                ('written_at', models.DateTimeField(default=django.utils.timezone.now)),
            ],
        ),
        migrations.CreateModel(
            name='ChatCompletion',
            fields=[
                ('id', tenants.models.teams.IdField(db_collation='C', editable=False, max_length=64, primary_key=True, serialize=False)),
                ('team', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team')),
                ('api_key', models.ForeignKey(db_index=False, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.apikey')),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('model', models.CharField(max_length=200)),
                ('metadata', models.JSONField(default=dict)),
                ('messages', core.db.json_text.WireField(default=list)),
                ('parameters', core.db.json_text.WireField(default=dict, help_text='The other parameters of the request.')),
                ('body', core.db.json_text.WireField(default=dict)),
                ('request_id', models.CharField(default='', max_length=64)),
            ],
            options={
                'verbose_name': 'chat completion',
                'indexes': [models.Index(fields=['team', 'created_at', 'id'], name='chat_by_team_and_time'), models.Index(fields=['created_at', 'id'], name='chat_by_time'), django.contrib.postgres.indexes.GinIndex(fields=['metadata'], name='chat_by_metadata', opclasses=['jsonb_path_ops'])],
            },
        ),
        migrations.CreateModel(
            name='PromptTemplate',
            fields=[
                ('id', tenants.models.teams.IdField(db_collation='C', default=responses.models.responses.prompt_id, editable=False, max_length=64, primary_key=True, serialize=False)),
                ('team', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team')),
                ('name', models.CharField(max_length=120)),
                ('current', models.PositiveIntegerField(default=1, help_text='The version for requests that do not name one.')),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
            ],
            options={
                'verbose_name': 'prompt',
                'constraints': [models.UniqueConstraint(fields=('team', 'name'), name='prompt_name_once_per_team')],
            },
        ),
        migrations.CreateModel(
            name='PromptVersion',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('team', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team')),
                ('prompt', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='versions', to='responses.prompttemplate')),
                ('number', models.PositiveIntegerField()),
                ('messages', models.JSONField(default=list)),
                ('model', models.CharField(blank=True, default='', help_text='The model for requests that do not name one.', max_length=200)),
                ('parameters', core.db.json_text.WireField(default=dict, help_text='Defaults for requests that do not set them.')),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('created_by', models.CharField(default='', max_length=150)),
            ],
            options={
                'verbose_name': 'prompt version',
                'constraints': [models.UniqueConstraint(fields=('prompt', 'number'), name='prompt_version_once')],
            },
        ),
        migrations.CreateModel(
            name='ResponseHour',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('hour', models.DateTimeField(help_text='The start of the hour.')),
                ('level', models.PositiveSmallIntegerField()),
                ('team', models.ForeignKey(db_index=False, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team')),
                ('input_tokens', models.PositiveBigIntegerField(default=0)),
                ('cached_tokens', models.PositiveBigIntegerField(default=0)),
                ('cache_write_tokens', models.PositiveBigIntegerField(default=0)),
                ('output_tokens', models.PositiveBigIntegerField(default=0)),
                ('reasoning_tokens', models.PositiveBigIntegerField(default=0)),
                ('cost', models.DecimalField(decimal_places=10, max_digits=24, null=True)),
                ('unpriced', models.PositiveBigIntegerField(default=0, help_text='Responses or calls whose cost is unknown.')),
                ('api_key_id', models.CharField(db_collation='C', default='', max_length=64)),
                ('model', models.CharField(default='', max_length=200)),
                ('upstream_id', models.CharField(db_collation='C', default='', max_length=64)),
                ('status', models.CharField(default='', max_length=12)),
                ('mode', models.CharField(default='', max_length=10)),
                ('responses', models.PositiveBigIntegerField(default=0)),
                ('failed', models.PositiveBigIntegerField(default=0)),
                ('tool_calls', models.PositiveBigIntegerField(default=0)),
                ('duration', django.contrib.postgres.fields.ArrayField(base_field=models.IntegerField(), default=list, size=None)),
                ('first_token', django.contrib.postgres.fields.ArrayField(base_field=models.IntegerField(), default=list, size=None)),
            ],
            options={
                'indexes': [models.Index(fields=['level', 'team', 'hour'], name='response_hour_of_team'), models.Index(fields=['level', 'hour'], name='response_hour_by_time')],
            },
        ),
        migrations.CreateModel(
            name='CallHour',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('hour', models.DateTimeField(help_text='The start of the hour.')),
                ('level', models.PositiveSmallIntegerField()),
                ('team', models.ForeignKey(db_index=False, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team')),
                ('input_tokens', models.PositiveBigIntegerField(default=0)),
                ('cached_tokens', models.PositiveBigIntegerField(default=0)),
                ('cache_write_tokens', models.PositiveBigIntegerField(default=0)),
                ('output_tokens', models.PositiveBigIntegerField(default=0)),
                ('reasoning_tokens', models.PositiveBigIntegerField(default=0)),
                ('cost', models.DecimalField(decimal_places=10, max_digits=24, null=True)),
                ('unpriced', models.PositiveBigIntegerField(default=0, help_text='Responses or calls whose cost is unknown.')),
                ('api_key_id', models.CharField(db_collation='C', default='', max_length=64)),
                ('model', models.CharField(default='', max_length=200)),
                ('upstream_id', models.CharField(db_collation='C', default='', max_length=64)),
                ('end_user', models.CharField(db_collation='C', default='', max_length=128)),
                ('endpoint', models.CharField(default='', max_length=40)),
                ('outcome', models.CharField(default='', max_length=20)),
                ('batch', models.CharField(default='', help_text='true or false', max_length=5)),
                ('service_tier', models.CharField(default='', max_length=40)),
                ('calls', models.PositiveBigIntegerField(default=0)),
                ('failed', models.PositiveBigIntegerField(default=0)),
                ('input_audio_tokens', models.PositiveBigIntegerField(default=0)),
                ('input_image_tokens', models.PositiveBigIntegerField(default=0)),
                ('output_audio_tokens', models.PositiveBigIntegerField(default=0)),
                ('output_image_tokens', models.PositiveBigIntegerField(default=0)),
                ('audio_seconds', models.FloatField(default=0)),
                ('characters', models.PositiveBigIntegerField(default=0)),
                ('images', models.PositiveBigIntegerField(default=0)),
                ('budget_cost', models.DecimalField(decimal_places=10, help_text='What hard budgets count.', max_digits=24, null=True)),
                ('duration', django.contrib.postgres.fields.ArrayField(base_field=models.IntegerField(), default=list, size=None)),
            ],
            options={
                'indexes': [models.Index(fields=['level', 'team', 'hour'], name='call_hour_of_team'), models.Index(fields=['level', 'hour'], name='call_hour_by_time')],
            },
        ),
        migrations.CreateModel(
            name='ToolHour',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('hour', models.DateTimeField(help_text='The start of the hour.')),
                ('level', models.PositiveSmallIntegerField()),
                ('team', models.ForeignKey(db_index=False, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team')),
                ('kind', models.CharField(default='', max_length=40)),
                ('name', models.CharField(default='', max_length=200)),
                ('status', models.CharField(default='', max_length=12)),
                ('calls', models.PositiveBigIntegerField(default=0)),
                ('failed', models.PositiveBigIntegerField(default=0)),
                ('duration', django.contrib.postgres.fields.ArrayField(base_field=models.IntegerField(), default=list, size=None)),
            ],
            options={
                'indexes': [models.Index(fields=['level', 'team', 'hour'], name='tool_hour_of_team'), models.Index(fields=['level', 'hour'], name='tool_hour_by_time')],
            },
        ),
        migrations.CreateModel(
            name='UnrolledRow',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('team', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team')),
                ('source', models.CharField(max_length=10)),
                ('row_id', models.CharField(db_collation='C', max_length=64)),
                ('hour', models.DateTimeField()),
            ],
            options={
                'indexes': [models.Index(fields=['hour'], name='unrolled_row_by_hour')],
                'constraints': [models.UniqueConstraint(fields=('source', 'row_id'), name='unrolled_row_once')],
            },
        ),
        migrations.CreateModel(
            name='RollupMark',
            fields=[
                ('id', models.PositiveSmallIntegerField(default=1, primary_key=True, serialize=False)),
                ('until', models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name='SearchText',
            fields=[
                ('item', models.OneToOneField(db_constraint=False, on_delete=django.db.models.deletion.DO_NOTHING, primary_key=True, related_name='+', serialize=False, to='conversations.item')),
                ('team', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team')),
                ('speaker', models.CharField(help_text='The role of a message, or the type of another item.', max_length=40)),
                ('created_at', models.DateTimeField()),
                ('text', models.TextField()),
            ],
            options={
                'verbose_name': 'search text',
                'indexes': [models.Index(fields=['team', 'created_at', 'item'], name='search_text_by_team_and_time'), models.Index(fields=['created_at', 'item'], name='search_text_by_time')],
            },
        ),
        migrations.CreateModel(
            name='SearchMark',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('through', models.BigIntegerField(default=0)),
                ('safe', models.BigIntegerField(default=0)),
                ('pending', models.BigIntegerField(null=True)),
                ('pending_xid', models.BigIntegerField(null=True)),
            ],
        ),
        migrations.CreateModel(
            name='VectorStore',
            fields=[
                ('id', tenants.models.teams.IdField(db_collation='C', default=responses.models.vector_stores.store_id, editable=False, max_length=64, primary_key=True, serialize=False)),
                ('team', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team')),
                ('api_key', models.ForeignKey(db_index=False, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.apikey')),
                ('name', models.CharField(blank=True, default='', max_length=512)),
                ('description', models.CharField(blank=True, default='', max_length=2048)),
                ('metadata', models.JSONField(default=dict)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('last_active_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('expires_after_days', models.PositiveIntegerField(null=True)),
                ('embedding_model', models.CharField(blank=True, default='', max_length=200)),
                ('dimensions', models.PositiveIntegerField(help_text='Dimensions of the vectors; empty while there are none.', null=True)),
            ],
            options={
                'verbose_name': 'vector store',
                'indexes': [models.Index(fields=['team', 'created_at', 'id'], name='vector_store_by_team_and_time'), models.Index(fields=['created_at', 'id'], name='vector_store_by_time'), models.Index(condition=models.Q(('expires_after_days__isnull', False)), fields=['last_active_at'], name='vector_store_by_activity')],
            },
        ),
        migrations.CreateModel(
            name='VectorStoreBatch',
            fields=[
                ('id', tenants.models.teams.IdField(db_collation='C', default=responses.models.vector_stores.batch_id, editable=False, max_length=64, primary_key=True, serialize=False)),
                ('team', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team')),
                ('store', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='batches', to='responses.vectorstore')),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('cancelled_at', models.DateTimeField(null=True)),
            ],
            options={
                'verbose_name': 'batch of a vector store',
            },
        ),
        migrations.CreateModel(
            name='VectorStoreFile',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('team', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team')),
                ('store', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='entries', to='responses.vectorstore')),
                ('file', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='conversations.file')),
                ('batch', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='entries', to='responses.vectorstorebatch')),
                ('api_key', models.ForeignKey(db_index=False, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.apikey')),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('status', models.CharField(choices=[('in_progress', 'In progress'), ('completed', 'Completed'), ('cancelled', 'Cancelled'), ('failed', 'Failed')], default='in_progress', max_length=12)),
                ('attributes', models.JSONField(default=dict)),
                ('chunk_tokens', models.PositiveIntegerField(default=800)),
                ('overlap_tokens', models.PositiveIntegerField(default=400)),
                ('usage_bytes', models.BigIntegerField(default=0)),
                ('chunks', models.PositiveIntegerField(default=0)),
                ('error_code', models.CharField(blank=True, default='', max_length=40)),
                ('error_message', models.TextField(blank=True, default='')),
                ('request_id', models.CharField(default='', max_length=64)),
                ('attempt', models.PositiveIntegerField(default=0)),
                ('lease_token', models.PositiveIntegerField(default=0)),
                ('lease_until', models.DateTimeField(help_text='No other worker starts with the file before.', null=True)),
            ],
            options={
                'verbose_name': 'file of a vector store',
                'indexes': [models.Index(fields=['store', 'created_at', 'file'], name='vector_file_by_store_and_time'), models.Index(condition=models.Q(('status', 'in_progress')), fields=['team', 'created_at'], name='vector_file_in_progress'), models.Index(condition=models.Q(('lease_until__isnull', False), ('status', 'in_progress')), fields=['lease_until'], name='vector_file_leased')],
                'constraints': [models.UniqueConstraint(fields=('store', 'file'), name='vector_store_file_once')],
            },
        ),
        migrations.CreateModel(
            name='VectorChunk',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('team', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team')),
                ('store', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='responses.vectorstore')),
                ('entry', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='passages', to='responses.vectorstorefile')),
                ('position', models.PositiveIntegerField()),
                ('text', models.TextField()),
            ],
            options={
                'verbose_name': 'passage of a vector store',
                'constraints': [models.UniqueConstraint(fields=('entry', 'position'), name='vector_chunk_position_once')],
            },
        ),
        migrations.CreateModel(
            name='VectorEmbedding',
            fields=[
                ('chunk', models.OneToOneField(db_constraint=False, on_delete=django.db.models.deletion.DO_NOTHING, primary_key=True, related_name='+', serialize=False, to='responses.vectorchunk')),
                ('store_id', models.CharField(db_collation='C', max_length=64)),
                ('entry_id', models.BigIntegerField()),
                ('dimensions', models.PositiveIntegerField()),
                ('embedding', responses.models.vector_stores.HalfVectorField()),
            ],
            options={
                'verbose_name': 'vector of a passage',
                'managed': False,
            },
        ),
        migrations.CreateModel(
            name='WebhookEndpoint',
            fields=[
                ('id', tenants.models.teams.IdField(db_collation='C', default=responses.webhooks.models.endpoint_id, editable=False, max_length=64, primary_key=True, serialize=False)),
                ('team', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team')),
                ('name', models.CharField(max_length=256)),
                ('url', models.CharField(max_length=2048)),
                ('event_types', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=40), default=list, size=None)),
                ('secret', core.crypto.EncryptedTextField()),
                ('previous_secret', core.crypto.EncryptedTextField(blank=True, default='')),
                ('previous_until', models.DateTimeField(blank=True, null=True)),
                ('enabled', models.BooleanField(default=True)),
                ('disabled_at', models.DateTimeField(blank=True, null=True)),
                ('disabled_reason', models.CharField(blank=True, choices=[('gone', 'Endpoint returned 410 Gone'), ('failing', 'No successful delivery for five days'), ('by_hand', 'Disabled manually')], default='', max_length=10)),
                ('failing_since', models.DateTimeField(blank=True, help_text='No delivery has succeeded since then.', null=True)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                ('updated_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
            ],
            options={
                'verbose_name': 'webhook endpoint',
                'indexes': [models.Index(fields=['team', 'created_at', 'id'], name='webhook_by_team_and_time')],
                'constraints': [models.CheckConstraint(condition=models.Q(models.Q(('disabled_at__isnull', True), ('enabled', True)), models.Q(('disabled_at__isnull', False), ('enabled', False)), _connector='OR'), name='webhook_disabled_at_iff_disabled')],
            },
        ),
        migrations.CreateModel(
            name='WebhookDelivery',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('event_id', models.CharField(db_collation='C', max_length=64)),
                ('team', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team')),
                ('endpoint', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='deliveries', to='responses.webhookendpoint')),
                ('event_type', models.CharField(max_length=40)),
                ('object_id', models.CharField(db_collation='C', max_length=64)),
                ('data', models.JSONField(default=dict, help_text='Data of the event besides the id of its object.')),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('state', models.CharField(choices=[('pending', 'Pending'), ('delivered', 'Delivered'), ('failed', 'Failed')], default='pending', max_length=10)),
                ('next_attempt_at', models.DateTimeField(default=django.utils.timezone.now, help_text='Set only while the delivery is pending.', null=True)),
                ('claimed_until', models.DateTimeField(null=True)),
                ('delivered_at', models.DateTimeField(null=True)),
                ('attempts', models.PositiveIntegerField(default=0)),
                ('last_status', models.PositiveIntegerField(help_text='Empty if there was no response.', null=True)),
                ('last_ms', models.PositiveIntegerField(null=True)),
                ('last_error', models.CharField(blank=True, default='', max_length=300)),
                ('last_body', models.CharField(blank=True, default='', help_text='Start of the response body.', max_length=500)),
                ('history', models.JSONField(default=list, help_text='Latest attempts, oldest first.')),
            ],
            options={
                'verbose_name': 'webhook delivery',
                'verbose_name_plural': 'webhook deliveries',
                'indexes': [models.Index(fields=['team', 'created_at', 'id'], name='webhook_delivery_by_team'), models.Index(fields=['created_at', 'id'], name='webhook_delivery_by_time'), models.Index(fields=['object_id'], name='webhook_delivery_by_object'), models.Index(condition=models.Q(('state', 'pending')), fields=['endpoint', 'next_attempt_at'], name='webhook_delivery_due'), models.Index(condition=models.Q(('claimed_until__isnull', False)), fields=['endpoint'], name='webhook_delivery_claimed')],
                'constraints': [models.UniqueConstraint(fields=('endpoint', 'event_id'), name='webhook_delivery_once'), models.CheckConstraint(condition=models.Q(models.Q(('next_attempt_at__isnull', False), ('state', 'pending')), models.Q(models.Q(('state', 'pending'), _negated=True), ('next_attempt_at__isnull', True)), _connector='OR'), name='webhook_delivery_due_iff_pending')],
            },
        ),
        migrations.RunSQL(ROOM_FOR_UPDATES, migrations.RunSQL.noop),
        migrations.RunSQL([SEARCH_WORDS, SEARCH_INDEX, GONE_WITH_ITEM, CHUNK_WORDS, CHUNK_INDEX], migrations.RunSQL.noop),
        migrations.RunSQL(REMEMBER_LATE_USAGE, migrations.RunSQL.noop),
        *map(enable_row_security, [
            'responses_response',
            'responses_turn',
            'responses_toolcall',
            'responses_eventbatch',
            'responses_prompttemplate',
            'responses_promptversion',
            'responses_approval',
            'responses_chatcompletion',
            'responses_conversationhold',
            'responses_batch',
            'responses_batchline',
            'responses_webhookendpoint',
            'responses_webhookdelivery',
            'responses_vectorstore',
            'responses_vectorstorebatch',
            'responses_vectorstorefile',
            'responses_vectorchunk',
            'responses_responsehour',
            'responses_callhour',
            'responses_toolhour',
            'responses_unrolledrow',
            'responses_searchtext',
        ]),
    ]
