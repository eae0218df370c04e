from django.db import migrations, models

_KINDS = [
    ("budget.alert", "Budget alerts"),
    ("api_key.expiring", "API keys that expire soon"),
    ("approval.requested", "Approvals that responses wait for"),
    ("webhook_endpoint.disabled", "Webhook endpoints disabled by failures"),
]


class Migration(migrations.Migration):
    dependencies = [("tenants", "0014_required_approvals")]

    operations = [
        migrations.AlterField("notification", "kind", models.CharField(choices=_KINDS, max_length=40)),
        migrations.AlterField("notificationpreference", "kind", models.CharField(choices=_KINDS, max_length=40)),
    ]
