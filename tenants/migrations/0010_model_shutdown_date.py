from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("tenants", "0009_allow_fallback_models")]

    operations = [
        migrations.AddField(
            model_name="model",
            name="shutdown_date",
            field=models.DateField(
                blank=True,
                help_text="Announced end of the model, which clients see in the list of models. Empty means none. It "
                "has no other effect.",
                null=True,
            ),
        ),
    ]
