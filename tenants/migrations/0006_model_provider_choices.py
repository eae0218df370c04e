from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("tenants", "0005_upstream_credentials"),
    ]

    operations = [
        migrations.AddField(
            model_name="model",
            name="output_limit",
            field=models.CharField(
                blank=True,
                choices=[
                    ("", "As the provider's documentation says"),
                    ("max_tokens", "max_tokens"),
                    ("max_completion_tokens", "max_completion_tokens"),
                ],
                db_default="",
                default="",
                help_text="Parameter that limits the output of a chat completion. Unknown servers get max_tokens.",
                max_length=30,
            ),
        ),
        migrations.AddField(
            model_name="model",
            name="reasoning_history",
            field=models.CharField(
                blank=True,
                choices=[
                    ("", "As the provider's documentation says"),
                    ("none", "None"),
                    ("current_turn", "That since the last message of the user"),
                    ("all_turns", "All"),
                ],
                db_default="",
                default="",
                help_text="Earlier reasoning that the model gets back, if the request does not choose with "
                "reasoning.context.",
                max_length=20,
            ),
        ),
        migrations.AlterField(
            model_name="model",
            name="reasoning_field",
            field=models.CharField(
                blank=True,
                default="",
                help_text="Field of assistant messages in which earlier reasoning is sent back, such as "
                "reasoning_content. Empty: as the provider's documentation says, and none to unknown servers.",
                max_length=40,
            ),
        ),
    ]
