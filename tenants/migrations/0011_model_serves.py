from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("tenants", "0010_model_shutdown_date")]

    operations = [
        migrations.AddField(
            model_name="model",
            name="serves",
            field=models.CharField(
                choices=[("all", "All requests"), ("default", "All but flex requests"), ("flex", "Flex requests")],
                db_default="all",
                default="all",
                help_text="Flex requests are lines of batches and requests with the service tier flex. They are sent "
                "to upstreams for flex requests first.",
                max_length=7,
            ),
        ),
    ]
