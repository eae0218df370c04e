import django.db.models.deletion
import core.clock
import containers.models
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
            name='Container',
            fields=[
                ('id', tenants.models.teams.IdField(db_collation='C', default=containers.models.container_id, editable=False, max_length=64, primary_key=True, serialize=False)),
                ('team', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team')),
                ('api_key', models.ForeignKey(db_index=False, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.apikey')),
                ('name', models.CharField(max_length=255)),
                ('memory_limit', models.CharField(default='1g', max_length=3)),
                ('idle_minutes', models.PositiveIntegerField(default=20, help_text='The container expires after this many minutes without activity.')),
                ('created_at', models.DateTimeField(default=core.clock.now)),
                ('last_active_at', models.DateTimeField(default=core.clock.now)),
                ('skills', models.JSONField(default=list)),
                ('allowed_domains', models.JSONField(default=list, help_text='Domains that its programs can reach; none by default.')),
                ('lost', models.BooleanField(default=False, help_text='The container ended before its expiration time.')),
            ],
            options={
                'indexes': [models.Index(fields=['team', 'created_at', 'id'], name='container_by_team_and_time'), models.Index(fields=['created_at', 'id'], name='container_by_time'), models.Index(fields=['last_active_at'], name='container_by_use')],
            },
        ),
        migrations.CreateModel(
            name='ContainerFile',
            fields=[
                ('id', tenants.models.teams.IdField(db_collation='C', default=containers.models.container_file_id, editable=False, max_length=64, primary_key=True, serialize=False)),
                ('team', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team')),
                ('container', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='files', to='containers.container')),
                ('path', models.CharField(max_length=1024)),
                ('size', models.BigIntegerField(help_text='Size in bytes.')),
                ('changed', models.BigIntegerField()),
                ('source', models.CharField(choices=[('user', 'User'), ('assistant', 'Assistant')], max_length=10)),
                ('created_at', models.DateTimeField(default=core.clock.now)),
            ],
            options={
                'indexes': [models.Index(fields=['container', 'created_at', 'id'], name='container_file_by_time')],
                'constraints': [models.UniqueConstraint(fields=('container', 'path'), name='container_file_by_path')],
            },
        ),
        enable_row_security('containers_container'),
        enable_row_security('containers_containerfile'),
    ]
