import django.db.models.deletion
from django.db import migrations, models

from kernel.row_security import enable_row_security


class Migration(migrations.Migration):

    dependencies = [
        ('responses', '0011_batches'),
        ('tenants', '0004_cache_write_tokens'),
    ]

    operations = [
        migrations.CreateModel(
            name='ConversationHold',
            fields=[
                ('conversation_id', models.CharField(db_collation='C', max_length=64, primary_key=True, serialize=False)),
                ('response_id', models.CharField(db_collation='C', max_length=64)),
                ('until', models.DateTimeField()),
                ('team', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team')),
            ],
        ),
        enable_row_security('responses_conversationhold'),
        migrations.AddField(
            model_name='response',
            name='history_end',
            field=models.PositiveIntegerField(null=True),
        ),
        migrations.AddField(
            model_name='response',
            name='history_id',
            field=models.CharField(blank=True, db_collation='C', max_length=64, null=True),
        ),
        migrations.AddIndex(
            model_name='response',
            index=models.Index(condition=models.Q(('conversation_id__isnull', False)), fields=['conversation_id', 'created_at'], name='response_by_conversation'),
        ),
    ]
