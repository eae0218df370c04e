from typing import Any

from django.db import migrations, models


def keep_order(apps: Any, schema_editor: Any) -> None:
    # Of several rows with the same name, only the first was used: that of the default upstream, then the oldest. It
    # stays the first, and the others are tried if it fails.
    rows = apps.get_model("tenants", "Model").objects.using(schema_editor.connection.alias)
    places: dict[str, int] = {}
    for row in rows.order_by("name", "-upstream__is_default", "created_at").only("name", "priority"):
        place = places[row.name] = places.get(row.name, -1) + 1
        if place:
            rows.filter(pk=row.pk).update(priority=place)


class Migration(migrations.Migration):
    dependencies = [("tenants", "0006_model_provider_choices")]

    operations = [
        migrations.AlterField(
            model_name="upstream",
            name="is_default",
            field=models.BooleanField(
                default=False, help_text="Preferred if several upstreams serve a model with the same priority."
            ),
        ),
        migrations.AddField(
            model_name="model",
            name="priority",
            field=models.SmallIntegerField(
                db_default=0,
                default=0,
                help_text="If several upstreams serve the model, those with the lowest number are used first.",
            ),
        ),
        migrations.AddField(
            model_name="model",
            name="weight",
            field=models.PositiveSmallIntegerField(
                db_default=1,
                default=1,
                help_text="Share of the requests among upstreams of the same priority. With 0, it gets no new requests.",
            ),
        ),
        migrations.AddField(
            model_name="model",
            name="fallback_for",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="Name of the model that this model replaces while all its upstreams fail.",
                max_length=200,
            ),
        ),
        migrations.RunPython(keep_order, migrations.RunPython.noop),
    ]
