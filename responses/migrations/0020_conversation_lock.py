from django.db import migrations


class Migration(migrations.Migration):

    dependencies = [
        ('responses', '0019_list_filters'),
    ]

    operations = [
        # The table keeps its name, so neither operation runs SQL on it: processes of the previous release can still
        # work on it while a new release is rolled out.
        migrations.AlterModelTable(name='conversationhold', table='responses_conversationhold'),
        migrations.RenameModel(old_name='ConversationHold', new_name='ConversationLock'),
    ]
