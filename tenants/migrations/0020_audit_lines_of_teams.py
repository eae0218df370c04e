import django.contrib.postgres.fields
from django.db import migrations, models

_VISIBLE = (
    "team_id = ANY ((SELECT string_to_array(current_setting('app.team_ids', true), ','))::text[]) "
    "OR team_ids::text[] && (SELECT string_to_array(current_setting('app.team_ids', true), ','))::text[] "
    "OR (SELECT current_setting('app.team_ids', true)) = '*'"
)
_BEFORE = (
    "team_id = ANY ((SELECT string_to_array(current_setting('app.team_ids', true), ','))::text[]) "
    "OR (SELECT current_setting('app.team_ids', true)) = '*'"
)


class Migration(migrations.Migration):
    dependencies = [("tenants", "0019_refused_requests")]

    operations = [
        migrations.AddField(
            model_name="auditevent",
            name="team_ids",
            field=django.contrib.postgres.fields.ArrayField(
                base_field=models.CharField(max_length=64), null=True, size=None
            ),
        ),
        # Each of its teams sees a line about several teams.
        migrations.RunSQL(
            sql=f'ALTER POLICY team ON "tenants_auditevent" USING ({_VISIBLE}) WITH CHECK ({_VISIBLE})',
            reverse_sql=f'ALTER POLICY team ON "tenants_auditevent" USING ({_BEFORE}) WITH CHECK ({_BEFORE})',
        ),
        # Only Django reads these: they change no table.
        migrations.AlterModelOptions(name="connectorvisibility", options={"base_manager_name": "objects"}),
        migrations.AlterModelOptions(name="modelvisibility", options={"base_manager_name": "objects"}),
        migrations.AlterModelOptions(name="searchenginevisibility", options={"base_manager_name": "objects"}),
    ]
