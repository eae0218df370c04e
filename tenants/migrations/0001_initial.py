import django.contrib.postgres.fields
import django.core.validators
import django.db.models.deletion
import django.utils.timezone
import kernel.crypto
import tenants.limit_models
import tenants.models
import tenants.notification_models
import tenants.organization_models
import tenants.prices
import tenants.team_models
from django.conf import settings
from django.db import migrations, models

from kernel.partitions import CreateMonthlyTable, create_functions
from kernel.row_security import enable_row_security, grant_to_application, revoke_changes


def grant(apps, editor):
    """Grant the application access to its tables, also to those of later migrations, but only additions to the audit log."""
    grant_to_application(using=editor.connection.alias)
    revoke_changes('tenants_auditevent', 'tenants_auditseal', using=editor.connection.alias)


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('auth', '__first__'),
    ]

    operations = [
        migrations.CreateModel(
            name='Team',
            fields=[
                ('id', tenants.team_models.IdField(db_collation='C', default=tenants.team_models.team_id, editable=False, max_length=64, primary_key=True, serialize=False)),
                ('name', models.CharField(max_length=120, unique=True)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                ('disconnect_grace_seconds', models.PositiveIntegerField(blank=True, default=30, help_text='How long a stored run continues after the client has disconnected, in seconds. 0 stops it immediately; empty lets it finish.', null=True)),
                ('log_retention_hours', models.PositiveIntegerField(default=24, help_text='How long the events of a finished response can be replayed, in hours.')),
                ('embedding_model', models.CharField(blank=True, default='', help_text="Model for vector stores. Empty means the EMBEDDING_MODEL of the server's configuration.", max_length=200)),
                ('image_model', models.CharField(blank=True, default='', help_text="Model for image requests that name none. Empty means the IMAGE_MODEL of the server's configuration.", max_length=200)),
                ('summary_model', models.CharField(blank=True, default='', help_text="Model that summarizes raw reasoning for requests with reasoning.summary. Empty means the REASONING_SUMMARY_MODEL of the server's configuration; without either, the first sentences are the summary.", max_length=200, verbose_name='model for reasoning summaries')),
                ('tools', tenants.team_models.ToolKindsField(base_field=models.CharField(choices=[('*', 'All tools'), ('web_search', 'Web search'), ('file_search', 'File search'), ('code_interpreter', 'Code interpreter'), ('image_generation', 'Image generation'), ('mcp', 'MCP servers'), ('shell', 'Shell in a container')], max_length=40), blank=True, default=tenants.team_models._all_tools, help_text='Hosted tools that the team may use.', size=None)),
                ('reject_unavailable_tools', models.BooleanField(default=False, help_text='Reject requests with a hosted tool that this server cannot provide, such as web search without a search engine. Otherwise the tool is left out, unless the request forces it, and the answer has a warning.')),
                ('continue_without_mcp_servers', models.BooleanField(default=False, help_text='Continue a response without an MCP server whose tools cannot be listed. Otherwise the response fails, as at OpenAI.')),
                ('suspended_at', models.DateTimeField(blank=True, editable=False, null=True)),
                ('full_text_search', models.BooleanField(default=True, help_text='Make message content searchable. Turning this off deletes the search index; turning it on again indexes only new content.')),
                ('time_zone', models.CharField(default='UTC', help_text='Time zone in which the days, weeks and months of budgets and reports begin, such as Europe/Berlin.', max_length=60, validators=[tenants.team_models.validate_time_zone])),
                ('weight', models.PositiveSmallIntegerField(default=1, help_text='Share of the team when teams compete for workers: 2 gets twice as much as 1.', validators=[django.core.validators.MinValueValidator(1), django.core.validators.MaxValueValidator(1000)])),
                ('unknown_usage', models.CharField(choices=[('estimate', 'Bill the estimate'), ('free', 'Do not bill')], default='estimate', help_text='How calls are billed whose upstream reported no usage, such as streams that were cut.', max_length=8, verbose_name='unknown usage')),
            ],
        ),
        migrations.CreateModel(
            name='StaffMember',
            fields=[
                ('user', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='staff_member', serialize=False, to=settings.AUTH_USER_MODEL)),
                ('role', models.CharField(choices=[('operator', 'Operator'), ('platform_auditor', 'Platform auditor')], default='operator', max_length=20)),
                ('view_content', models.BooleanField(default=False, help_text='Read prompts, outputs, and the arguments and outputs of tools. Otherwise only after a reveal.')),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
            ],
        ),
        migrations.CreateModel(
            name='ListColumns',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('user', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('name', models.CharField(max_length=40)),
                ('columns', models.JSONField(default=list)),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('user', 'name'), name='list_columns_once')],
            },
        ),
        migrations.CreateModel(
            name='Membership',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('team', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='memberships', to='tenants.team')),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='memberships', to=settings.AUTH_USER_MODEL)),
                ('role', models.CharField(choices=[('team_lead', 'Team lead'), ('developer', 'Developer'), ('auditor', 'Auditor')], default='developer', max_length=20)),
                ('view_content', models.BooleanField(blank=True, help_text='Read prompts, outputs, and the arguments and outputs of tools. Unknown follows the role: auditors only after a reveal.', null=True)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
            ],
            options={
                'verbose_name_plural': 'members',
                'constraints': [models.UniqueConstraint(fields=('team', 'user'), name='membership_once')],
            },
        ),
        migrations.CreateModel(
            name='Reveal',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('team', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='tenants.team')),
                ('user', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='reveals', to=settings.AUTH_USER_MODEL)),
                ('reason', models.CharField(max_length=500)),
                ('revealed_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('until', models.DateTimeField()),
            ],
            options={
                'indexes': [models.Index(fields=['user', 'until'], name='reveal_by_user')],
            },
        ),
        migrations.CreateModel(
            name='AdminKey',
            fields=[
                ('id', tenants.team_models.IdField(db_collation='C', default=tenants.organization_models.admin_key_id, editable=False, max_length=64, primary_key=True, serialize=False)),
                ('name', models.CharField(max_length=120)),
                ('digest', models.CharField(editable=False, max_length=64)),
                ('prefix', models.CharField(editable=False, max_length=24)),
                ('last_four', models.CharField(editable=False, max_length=4)),
                ('scopes', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=40), size=None)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                ('created_by', models.ForeignKey(blank=True, editable=False, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('expires_at', models.DateTimeField(blank=True, null=True)),
                ('allowed_addresses', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=50), blank=True, help_text='Leave empty to allow any IP address.', null=True, size=None)),
                ('revoked_at', models.DateTimeField(blank=True, editable=False, null=True)),
                ('last_used_at', models.DateTimeField(blank=True, editable=False, null=True)),
                ('last_used_address', models.CharField(blank=True, default='', editable=False, max_length=50)),
                ('last_used_agent', models.CharField(blank=True, default='', editable=False, max_length=200)),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('digest',), name='admin_key_digest_once')],
            },
        ),
        migrations.CreateModel(
            name='ServiceAccount',
            fields=[
                ('id', tenants.team_models.IdField(db_collation='C', default=tenants.organization_models.service_account_id, editable=False, max_length=64, primary_key=True, serialize=False)),
                ('team', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='service_accounts', to='tenants.team')),
                ('name', models.CharField(max_length=120)),
                ('role', models.CharField(choices=[('member', 'Member'), ('none', 'None')], default='member', max_length=10)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                ('deleted_at', models.DateTimeField(blank=True, editable=False, null=True)),
            ],
            options={
                'indexes': [models.Index(fields=['team', 'created_at'], name='service_account_by_team')],
            },
        ),
        migrations.CreateModel(
            name='ApiKey',
            fields=[
                ('id', tenants.team_models.IdField(db_collation='C', default=tenants.models.key_id, editable=False, max_length=64, primary_key=True, serialize=False)),
                ('team', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='api_keys', to='tenants.team')),
                ('name', models.CharField(max_length=120)),
                ('purpose', models.CharField(blank=True, default='', help_text='Purpose of the key, and a contact.', max_length=500)),
                ('source', models.CharField(choices=[('person', 'Created by a person'), ('playground', 'Created for the playground')], default='person', editable=False, max_length=12)),
                ('digest', models.CharField(editable=False, max_length=64)),
                ('prefix', models.CharField(editable=False, max_length=24)),
                ('last_four', models.CharField(editable=False, max_length=4)),
                ('scopes', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=40), default=tenants.models._all_scopes, size=None)),
                ('allowed_models', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=200), blank=True, help_text='Leave empty to allow all models of the team.', null=True, size=None)),
                ('tools', tenants.team_models.ToolKindsField(base_field=models.CharField(choices=[('*', 'All tools'), ('web_search', 'Web search'), ('file_search', 'File search'), ('code_interpreter', 'Code interpreter'), ('image_generation', 'Image generation'), ('mcp', 'MCP servers'), ('shell', 'Shell in a container')], max_length=40), blank=True, default=tenants.team_models._all_tools, help_text='Hosted tools that the key may use, as far as the team may use them.', size=None)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                ('created_by', models.ForeignKey(blank=True, editable=False, null=True, on_delete=django.db.models.deletion.SET_NULL, to=settings.AUTH_USER_MODEL)),
                ('service_account', models.ForeignKey(blank=True, editable=False, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='api_keys', to='tenants.serviceaccount')),
                ('expires_at', models.DateTimeField(blank=True, null=True)),
                ('allowed_addresses', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=50), blank=True, help_text='Leave empty to allow any IP address.', null=True, size=None)),
                ('disabled_at', models.DateTimeField(blank=True, editable=False, null=True)),
                ('revoked_at', models.DateTimeField(blank=True, editable=False, null=True)),
                ('last_used_at', models.DateTimeField(blank=True, editable=False, null=True)),
                ('last_used_address', models.CharField(blank=True, default='', editable=False, max_length=50)),
                ('last_used_agent', models.CharField(blank=True, default='', editable=False, max_length=200)),
                ('rotated_at', models.DateTimeField(blank=True, editable=False, null=True)),
                ('old_digest', models.CharField(blank=True, editable=False, max_length=64, null=True)),
                ('old_name', models.CharField(blank=True, default='', editable=False, max_length=40)),
                ('old_until', models.DateTimeField(blank=True, editable=False, null=True)),
                ('old_used_at', models.DateTimeField(blank=True, editable=False, null=True)),
            ],
            options={
                'verbose_name': 'API key',
                'indexes': [models.Index(fields=['team', 'created_at'], name='api_key_by_team')],
                'constraints': [models.UniqueConstraint(fields=('digest',), name='api_key_digest_once'), models.UniqueConstraint(fields=('old_digest',), name='api_key_old_digest_once')],
            },
        ),
        migrations.CreateModel(
            name='Upstream',
            fields=[
                ('id', tenants.team_models.IdField(db_collation='C', default=tenants.models.upstream_id, editable=False, max_length=64, primary_key=True, serialize=False)),
                ('name', models.CharField(max_length=120, unique=True)),
                ('base_url', models.URLField(help_text='Up to and including /v1.')),
                ('wire_api', models.CharField(choices=[('chat_completions', 'Chat completions'), ('responses', 'Responses')], default='chat_completions', help_text='API that the upstream offers.', max_length=20)),
                ('api_key', kernel.crypto.EncryptedTextField(blank=True, default='', help_text='Encrypted at rest and never shown again.')),
                ('is_default', models.BooleanField(default=False, help_text='Preferred if several upstreams serve a model of the same name.')),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
            ],
        ),
        migrations.CreateModel(
            name='Model',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('vision', models.BooleanField(default=True, help_text='Accepts images. If off, requests with images are rejected.')),
                ('max_images', models.PositiveIntegerField(blank=True, help_text='Maximum number of images in one request. Empty means no limit.', null=True)),
                ('inline_images', models.BooleanField(default=False, help_text='The platform downloads images by URL and sends their content. If off, the URL is forwarded.')),
                ('files', models.BooleanField(default=False, help_text='Accepts files. If off, the platform extracts their text and sends that.')),
                ('developer_role', models.BooleanField(default=False, help_text='Accepts the developer role. If off, developer messages are sent as system messages.')),
                ('custom_tools', models.BooleanField(default=False, help_text='Accepts custom tools. If off, they are emulated with functions.')),
                ('forced_tool_choice', models.BooleanField(default=True, help_text='Accepts tool_choice values other than auto and none. If off, they are requested in the prompt and checked.')),
                ('structured_output', models.CharField(choices=[('checked', 'Accepted: output is validated before it is sent, and repaired once'), ('native', 'Enforced by the upstream: output is streamed immediately'), ('prompted', 'Not supported: requested in the prompt, validated, and repaired once')], default='checked', help_text='Handling of response_format.', max_length=20)),
                ('logprobs', models.BooleanField(default=True, help_text='Returns log probabilities. If off, requests for them are rejected.')),
                ('always_stream', models.BooleanField(default=False, help_text='Answers are always requested as a stream, also for JSON requests. Needed if the server only streams, or if a proxy in front of it closes connections on which nothing is sent for a while.')),
                ('extra_sampling', models.BooleanField(default=False, help_text="Accepts vLLM's top_k, min_p, seed, repetition_penalty and chat_template_kwargs.")),
                ('reasoning_efforts', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=20), blank=True, help_text='Supported values of reasoning.effort. Empty forwards any value.', null=True, size=None)),
                ('reasoning_summaries', models.BooleanField(default=False, help_text='The upstream supports reasoning summaries.')),
                ('raw_reasoning', models.BooleanField(default=True, help_text='Clients see raw reasoning. If off, they see only its encrypted form.')),
                ('reasoning_field', models.CharField(blank=True, default='', help_text='Field of assistant messages in which earlier reasoning is sent back, such as reasoning_content. Empty sends none.', max_length=40)),
                ('think_tags', models.BooleanField(default=False, help_text='The model writes its reasoning between <think> tags at the start of its text.')),
                ('context_window', models.PositiveIntegerField(blank=True, help_text='Maximum number of input and output tokens. Empty means unknown.', null=True)),
                ('token_counting', models.CharField(blank=True, choices=[('', 'Estimate: four characters per token'), ('tokenize', "The upstream's /tokenize (vLLM)"), ('responses', "The upstream's /responses/input_tokens")], default='', help_text='Method of counting input tokens.', max_length=20)),
                ('input_price', models.DecimalField(blank=True, decimal_places=4, help_text='US dollars per million tokens. If empty, costs are not calculated.', max_digits=10, null=True, validators=[django.core.validators.MinValueValidator(0)], verbose_name='input')),
                ('cached_input_price', models.DecimalField(blank=True, decimal_places=4, help_text='Tokens read from the cache. If empty, the input price applies.', max_digits=10, null=True, validators=[django.core.validators.MinValueValidator(0)], verbose_name='cached input')),
                ('cache_write_price', models.DecimalField(blank=True, decimal_places=4, help_text='Tokens written to the cache. If empty, the input price applies.', max_digits=10, null=True, validators=[django.core.validators.MinValueValidator(0)], verbose_name='cache writes')),
                ('output_price', models.DecimalField(blank=True, decimal_places=4, help_text='Includes reasoning tokens.', max_digits=10, null=True, validators=[django.core.validators.MinValueValidator(0)], verbose_name='output')),
                ('name', models.CharField(help_text='Name that clients use, or * for every other name.', max_length=200)),
                ('upstream', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='models', to='tenants.upstream')),
                ('upstream_model', models.CharField(blank=True, default='', help_text='Name of the model at the upstream, if it differs.', max_length=200)),
                ('enabled', models.BooleanField(default=True)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('name', 'upstream'), name='model_once_per_upstream')],
            },
        ),
        migrations.CreateModel(
            name='ModelVisibility',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('model', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to='tenants.model')),
                ('team', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to='tenants.team')),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('model', 'team'), name='model_visibility_once')],
            },
        ),
        migrations.CreateModel(
            name='Connector',
            fields=[
                ('id', tenants.team_models.IdField(db_collation='C', default=tenants.models.connector_id, editable=False, max_length=64, primary_key=True, serialize=False)),
                ('name', models.CharField(help_text='Value of connector_id in requests.', max_length=64, unique=True)),
                ('title', models.CharField(max_length=120)),
                ('url', models.CharField(max_length=2000)),
                ('authorization', kernel.crypto.EncryptedTextField(blank=True, default='', help_text='Bearer token for requests that send none. Encrypted at rest and never shown again.')),
                ('enabled', models.BooleanField(default=True)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
            ],
        ),
        migrations.CreateModel(
            name='ConnectorVisibility',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('connector', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to='tenants.connector')),
                ('team', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to='tenants.team')),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('connector', 'team'), name='connector_visibility_once')],
            },
        ),
        migrations.CreateModel(
            name='SearchEngine',
            fields=[
                ('id', tenants.team_models.IdField(db_collation='C', default=tenants.models.search_engine_id, editable=False, max_length=64, primary_key=True, serialize=False)),
                ('name', models.CharField(max_length=64, unique=True)),
                ('kind', models.CharField(choices=[('searxng', 'SearXNG'), ('tavily', 'Tavily'), ('brave', 'Brave')], default='searxng', max_length=20)),
                ('base_url', models.CharField(blank=True, default='', help_text='Address of the engine. Empty means the public service.', max_length=2000)),
                ('api_key', kernel.crypto.EncryptedTextField(blank=True, default='', help_text='Encrypted at rest and never shown again.')),
                ('enabled', models.BooleanField(default=True)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
            ],
            options={
                'verbose_name': 'search engine',
                'constraints': [models.CheckConstraint(condition=models.Q(('base_url', ''), ('kind', 'searxng'), _negated=True), name='search_engine_searxng_has_address')],
            },
        ),
        migrations.CreateModel(
            name='SearchEngineVisibility',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('engine', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to='tenants.searchengine')),
                ('team', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to='tenants.team')),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('engine', 'team'), name='search_engine_visibility_once')],
            },
        ),
        migrations.CreateModel(
            name='Guardrail',
            fields=[
                ('team', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='guardrail', serialize=False, to='tenants.team')),
                ('input_checker', models.CharField(blank=True, choices=[('', 'None'), ('model', 'Moderation model'), ('hook', 'HTTP hook')], default='', max_length=10)),
                ('input_action', models.CharField(choices=[('block', 'Block'), ('score', 'Log only')], default='block', max_length=10)),
                ('output_checker', models.CharField(blank=True, choices=[('', 'None'), ('model', 'Moderation model'), ('hook', 'HTTP hook')], default='', max_length=10)),
                ('output_action', models.CharField(choices=[('block', 'Block'), ('score', 'Log only')], default='block', max_length=10)),
                ('model', models.CharField(blank=True, default='', help_text='Model that checks the content.', max_length=200)),
                ('hook_url', models.CharField(blank=True, default='', help_text='URL that receives the content to check.', max_length=2000)),
                ('hook_secret', kernel.crypto.EncryptedTextField(blank=True, default='', help_text='Sent as a bearer token. Encrypted at rest and never shown again.')),
                ('fails_open', models.BooleanField(default=False, help_text='Allow content if a check fails with an error. If off, it is blocked where the action is to block.')),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
            ],
        ),
        migrations.CreateModel(
            name='GuardrailDecision',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('team', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team')),
                ('occurred_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('response_id', models.CharField(db_collation='C', max_length=64)),
                ('stage', models.CharField(choices=[('input', 'Input'), ('output', 'Output')], max_length=10)),
                ('checker', models.CharField(choices=[('', 'None'), ('model', 'Moderation model'), ('hook', 'HTTP hook')], max_length=10)),
                ('outcome', models.CharField(choices=[('passed', 'Passed'), ('noted', 'Noted'), ('blocked', 'Blocked'), ('failed', 'Check failed')], db_column='verdict', max_length=10)),
                ('blocked', models.BooleanField(default=False)),
                ('categories', models.JSONField(default=list)),
                ('reason', models.CharField(blank=True, default='', max_length=500)),
                ('request_id', models.CharField(default='', max_length=64)),
            ],
            options={
                'verbose_name': 'guardrail decision',
                'indexes': [models.Index(fields=['team', 'occurred_at'], name='guardrail_decision_by_time')],
            },
        ),
        CreateMonthlyTable(
            name='UsageRecord',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('team', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team')),
                ('api_key', models.ForeignKey(db_index=False, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.apikey')),
                ('occurred_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('endpoint', models.CharField(max_length=40)),
                ('object_id', models.CharField(db_collation='C', help_text='Id of the response or chat completion.', max_length=64)),
                ('turn', models.PositiveIntegerField(default=0)),
                ('model', models.CharField(max_length=200)),
                ('upstream_id', models.CharField(max_length=64)),
                ('upstream_model', models.CharField(max_length=200)),
                ('outcome', models.CharField(max_length=20)),
                ('input_tokens', models.PositiveIntegerField(default=0)),
                ('cached_tokens', models.PositiveIntegerField(default=0)),
                ('cache_write_tokens', models.PositiveIntegerField(default=0)),
                ('output_tokens', models.PositiveIntegerField(default=0)),
                ('reasoning_tokens', models.PositiveIntegerField(default=0)),
                ('audio_seconds', models.FloatField(default=0, help_text='Audio that was transcribed or translated.')),
                ('characters', models.PositiveIntegerField(default=0, help_text='Text that was spoken.')),
                ('end_user', models.CharField(db_collation='C', default='', max_length=128)),
                ('estimated', models.BooleanField(default=False, help_text='The upstream reported no usage; estimated.')),
                ('cost', tenants.prices.CostField(blank=True, decimal_places=10, help_text='US dollars; empty if no price was known.', max_digits=20, null=True)),
                ('prices', models.JSONField(help_text='Prices on which the cost is based.', null=True)),
                ('duration_ms', models.PositiveIntegerField(default=0)),
                ('request_id', models.CharField(default='', max_length=64)),
            ],
            options={
                'verbose_name_plural': 'usage records',
                'indexes': [models.Index(fields=['team', 'occurred_at'], name='usage_by_team_and_time'), models.Index(fields=['occurred_at'], name='usage_by_time'), models.Index(fields=['object_id'], name='usage_by_object'), models.Index(condition=models.Q(('end_user', ''), _negated=True), fields=['team', 'end_user', 'occurred_at'], name='usage_by_end_user')],
            },
            partition_by='occurred_at',
            primary_key=('id', 'occurred_at'),
        ),
        migrations.CreateModel(
            name='LimitSet',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('team', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team')),
                ('api_key', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='tenants.apikey')),
                ('end_user', models.CharField(blank=True, db_collation='C', default='', max_length=128)),
                ('requests_per_minute', models.BigIntegerField(blank=True, null=True, validators=[django.core.validators.MinValueValidator(1), django.core.validators.MaxValueValidator(100000000)], verbose_name='requests per minute')),
                ('tokens_per_minute', models.BigIntegerField(blank=True, help_text='Input and output together.', null=True, validators=[django.core.validators.MinValueValidator(1), django.core.validators.MaxValueValidator(100000000)], verbose_name='tokens per minute')),
                ('requests_per_day', models.BigIntegerField(blank=True, null=True, validators=[django.core.validators.MinValueValidator(1), django.core.validators.MaxValueValidator(100000000)], verbose_name='requests per day')),
                ('concurrent_runs', models.BigIntegerField(blank=True, help_text='Responses and other calls that are in progress.', null=True, validators=[django.core.validators.MinValueValidator(1), django.core.validators.MaxValueValidator(100000000)], verbose_name='concurrent runs')),
                ('queued_runs', models.BigIntegerField(blank=True, help_text='Background responses that have not started.', null=True, validators=[django.core.validators.MinValueValidator(1), django.core.validators.MaxValueValidator(100000000)], verbose_name='queued runs')),
                ('open_streams', models.BigIntegerField(blank=True, help_text='Streamed responses and WebSocket connections.', null=True, validators=[django.core.validators.MinValueValidator(1), django.core.validators.MaxValueValidator(100000000)], verbose_name='open streams')),
                ('max_output_tokens', models.BigIntegerField(blank=True, help_text='Of one response.', null=True, validators=[django.core.validators.MinValueValidator(16), django.core.validators.MaxValueValidator(100000000)], verbose_name='output tokens')),
                ('max_tool_calls', models.BigIntegerField(blank=True, help_text='Of one response.', null=True, validators=[django.core.validators.MinValueValidator(1), django.core.validators.MaxValueValidator(100000000)], verbose_name='tool calls')),
                ('stored_bytes', models.BigIntegerField(blank=True, help_text='Size of all files.', null=True, validators=[django.core.validators.MinValueValidator(1)], verbose_name='stored bytes')),
                ('files', models.BigIntegerField(blank=True, null=True, validators=[django.core.validators.MinValueValidator(1), django.core.validators.MaxValueValidator(100000000)], verbose_name='files')),
                ('open_batches', models.BigIntegerField(blank=True, null=True, validators=[django.core.validators.MinValueValidator(1), django.core.validators.MaxValueValidator(100000000)], verbose_name='open batches')),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('team', 'api_key', 'end_user'), name='limit_set_once', nulls_distinct=False), models.CheckConstraint(condition=models.Q(('api_key', None), ('end_user', ''), _connector='OR'), name='limit_set_has_one_subject')],
            },
        ),
        migrations.CreateModel(
            name='Budget',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('team', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team')),
                ('limit_set', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='budgets', to='tenants.limitset')),
                ('period', models.CharField(choices=[('day', 'Day'), ('week', 'Week'), ('month', 'Month')], default='month', max_length=5)),
                ('amount', models.DecimalField(decimal_places=10, help_text='US dollars per period.', max_digits=16, validators=[django.core.validators.MinValueValidator(0), django.core.validators.MaxValueValidator(900000)])),
                ('is_hard', models.BooleanField(default=True, help_text='Refuse calls that could exceed the budget.', verbose_name='hard')),
                ('allow_unknown_prices', models.BooleanField(default=False, help_text='Allow calls of models without a price, which a hard budget otherwise refuses.')),
                ('alert_percents', django.contrib.postgres.fields.ArrayField(base_field=models.PositiveSmallIntegerField(), blank=True, default=tenants.limit_models._alert_percents, help_text='Percentages that alert.', size=None)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('limit_set', 'period', 'is_hard'), name='budget_once')],
            },
        ),
        migrations.CreateModel(
            name='Reservation',
            fields=[
                ('id', models.CharField(db_collation='C', max_length=100, primary_key=True, serialize=False)),
                ('team', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team')),
                ('api_key_id', models.CharField(db_collation='C', max_length=64)),
                ('end_user', models.CharField(blank=True, db_collation='C', default='', max_length=128)),
                ('kind', models.CharField(choices=[('run', 'Run'), ('call', 'Call')], max_length=4)),
                ('epoch', models.BigIntegerField()),
                ('amount', tenants.prices.CostField(blank=True, decimal_places=10, default=0, help_text='US dollars, the most that the call can cost.', max_digits=20)),
                ('tokens', models.BigIntegerField(default=0)),
                ('is_run', models.BooleanField(default=False, help_text='Counts as a concurrent run.')),
                ('is_queued', models.BooleanField(default=False, help_text='Counts as a queued run.')),
                ('is_stream', models.BooleanField(default=False, help_text='Counts as an open stream.')),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('response_id', models.CharField(db_collation='C', default='', max_length=64)),
                ('lease_owner', models.CharField(default='', max_length=120)),
                ('lease_until', models.DateTimeField(null=True)),
                ('details', models.JSONField(null=True)),
            ],
            options={
                'indexes': [models.Index(fields=['team'], name='reservation_by_team'), models.Index(fields=['created_at'], name='reservation_by_time'), models.Index(fields=['response_id'], name='reservation_by_response')],
            },
        ),
        migrations.CreateModel(
            name='LimitEpoch',
            fields=[
                ('team', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='+', serialize=False, to='tenants.team')),
                ('epoch', models.BigIntegerField(default=0)),
            ],
        ),
        migrations.CreateModel(
            name='RejectedRequest',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('team', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team')),
                ('hour', models.DateTimeField()),
                ('api_key_id', models.CharField(db_collation='C', default='', max_length=64)),
                ('end_user', models.CharField(db_collation='C', default='', max_length=128)),
                ('limit', models.CharField(help_text='For example requests_per_minute, or budget_month.', max_length=40)),
                ('subject', models.CharField(help_text='team, key or end_user', max_length=10)),
                ('endpoint', models.CharField(default='', max_length=40)),
                ('count', models.BigIntegerField(default=0)),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('team', 'hour', 'api_key_id', 'end_user', 'limit', 'subject', 'endpoint'), name='rejected_request_once')],
            },
        ),
        migrations.CreateModel(
            name='AuditEvent',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('team', models.ForeignKey(db_index=False, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team')),
                ('occurred_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('actor', models.CharField(help_text='user:…, key:… or system', max_length=120)),
                ('action', models.CharField(max_length=60)),
                ('target', models.CharField(max_length=120)),
                ('before', models.JSONField(default=dict)),
                ('after', models.JSONField(default=dict)),
                ('request_id', models.CharField(default='', max_length=64)),
                ('address', models.GenericIPAddressField(null=True)),
                ('agent', models.CharField(default='', help_text='User-Agent header of the request.', max_length=200)),
            ],
            options={
                'verbose_name_plural': 'audit log',
                'indexes': [models.Index(fields=['team', 'occurred_at'], name='audit_by_team_and_time'), models.Index(fields=['occurred_at'], name='audit_by_time'), models.Index(fields=['target'], name='audit_by_target')],
            },
        ),
        migrations.CreateModel(
            name='AuditSeal',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('sealed_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('first_id', models.BigIntegerField()),
                ('last_id', models.BigIntegerField(unique=True)),
                ('lines', models.PositiveIntegerField()),
                ('digest', models.CharField(max_length=64)),
            ],
        ),
        migrations.CreateModel(
            name='Notification',
            fields=[
                ('id', tenants.team_models.IdField(db_collation='C', default=tenants.notification_models.notification_id, editable=False, max_length=64, primary_key=True, serialize=False)),
                ('kind', models.CharField(choices=[('budget.alert', 'Budget alerts'), ('api_key.expiring', 'API keys that expire soon'), ('webhook_endpoint.disabled', 'Webhook endpoints disabled by failures')], max_length=40)),
                ('key', models.CharField(db_collation='C', max_length=300)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('details', models.JSONField(default=dict)),
                ('team', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team')),
            ],
            options={
                'indexes': [models.Index(fields=['created_at'], name='notification_by_time')],
                'constraints': [models.UniqueConstraint(fields=('team', 'kind', 'key'), name='notification_once')],
            },
        ),
        migrations.CreateModel(
            name='MailDelivery',
            fields=[
                ('id', tenants.team_models.IdField(db_collation='C', default=tenants.notification_models.mail_id, editable=False, max_length=64, primary_key=True, serialize=False)),
                ('team', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team')),
                ('notification', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='mails', to='tenants.notification')),
                ('user', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('address', models.CharField(max_length=254)),
                ('subject', models.CharField(max_length=300)),
                ('text', models.TextField()),
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
                'verbose_name': 'mail',
                'indexes': [models.Index(fields=['team', 'created_at', 'id'], name='mail_by_team'), models.Index(fields=['created_at', 'id'], name='mail_by_time'), models.Index(condition=models.Q(('state', 'pending')), fields=['next_attempt_at'], name='mail_due')],
                'constraints': [models.UniqueConstraint(fields=('user', 'notification'), name='mail_once'), models.CheckConstraint(condition=models.Q(models.Q(('next_attempt_at__isnull', False), ('state', 'pending')), models.Q(models.Q(('state', 'pending'), _negated=True), ('next_attempt_at__isnull', True)), _connector='OR'), name='mail_due_iff_pending')],
            },
        ),
        migrations.CreateModel(
            name='NotificationPreference',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('kind', models.CharField(choices=[('budget.alert', 'Budget alerts'), ('api_key.expiring', 'API keys that expire soon'), ('webhook_endpoint.disabled', 'Webhook endpoints disabled by failures')], max_length=40)),
                ('by_mail', models.BooleanField()),
                ('team', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='tenants.team')),
                ('user', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('user', 'team', 'kind'), name='notification_preference_once')],
            },
        ),
        migrations.AddField(
            model_name='connector',
            name='teams',
            field=models.ManyToManyField(blank=True, help_text='Teams that may use the connector. Empty means every team.', through='tenants.ConnectorVisibility', to='tenants.team'),
        ),
        migrations.AddField(
            model_name='model',
            name='teams',
            field=models.ManyToManyField(blank=True, help_text='Teams that may use the model. Empty means every team.', through='tenants.ModelVisibility', to='tenants.team'),
        ),
        migrations.AddField(
            model_name='searchengine',
            name='teams',
            field=models.ManyToManyField(blank=True, help_text='Teams that may use the search engine. Empty means every team.', through='tenants.SearchEngineVisibility', to='tenants.team'),
        ),
        migrations.RunPython(grant, migrations.RunPython.noop),
        *create_functions(),
        enable_row_security('tenants_team', column='id'),
        *map(enable_row_security, [
            'tenants_membership',
            'tenants_apikey',
            'tenants_serviceaccount',
            'tenants_modelvisibility',
            'tenants_connectorvisibility',
            'tenants_searchenginevisibility',
            'tenants_guardrail',
            'tenants_guardraildecision',
            'tenants_usagerecord',
            'tenants_auditevent',
            'tenants_reveal',
            'tenants_limitset',
            'tenants_budget',
            'tenants_reservation',
            'tenants_limitepoch',
            'tenants_rejectedrequest',
            'tenants_notification',
            'tenants_notificationpreference',
            'tenants_maildelivery',
        ]),
    ]
