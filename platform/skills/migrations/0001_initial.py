import django.db.models.deletion
import core.clock
import skills.models
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
            name='Skill',
            fields=[
                ('id', tenants.models.teams.IdField(db_collation='C', default=skills.models.skill_id, editable=False, max_length=64, primary_key=True, serialize=False)),
                ('name', models.CharField(max_length=64)),
                ('description', models.CharField(max_length=1024)),
                ('default_version', models.PositiveIntegerField(default=1)),
                ('latest_version', models.PositiveIntegerField(default=1)),
                ('last_number', models.PositiveIntegerField(default=1)),
                ('created_at', models.DateTimeField(default=core.clock.now)),
                ('api_key', models.ForeignKey(db_index=False, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.apikey')),
                ('team', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team')),
            ],
        ),
        migrations.CreateModel(
            name='SkillVersion',
            fields=[
                ('id', tenants.models.teams.IdField(db_collation='C', default=skills.models.skill_version_id, editable=False, max_length=64, primary_key=True, serialize=False)),
                ('number', models.PositiveIntegerField()),
                ('name', models.CharField(max_length=64)),
                ('description', models.CharField(max_length=1024)),
                ('archive', models.BinaryField()),
                ('archive_size', models.PositiveIntegerField(help_text='In bytes, compressed.')),
                ('files', models.PositiveIntegerField(help_text='Number of files.')),
                ('sha256', models.CharField(help_text='Of the archive, in hex.', max_length=64)),
                ('created_at', models.DateTimeField(default=core.clock.now)),
                ('skill', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='versions', to='skills.skill')),
                ('team', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team')),
            ],
        ),
        migrations.AddIndex(
            model_name='skill',
            index=models.Index(fields=['team', 'created_at', 'id'], name='skill_by_team_and_time'),
        ),
        migrations.AddIndex(
            model_name='skill',
            index=models.Index(fields=['created_at', 'id'], name='skill_by_time'),
        ),
        migrations.AddConstraint(
            model_name='skillversion',
            constraint=models.UniqueConstraint(fields=('skill', 'number'), name='skill_version_number_once'),
        ),
        migrations.AddIndex(
            model_name='skillversion',
            index=models.Index(fields=['team'], name='skill_version_by_team'),
        ),
        enable_row_security('skills_skill'),
        enable_row_security('skills_skillversion'),
    ]
