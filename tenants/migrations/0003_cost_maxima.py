from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("tenants", "0002_download_images")]

    operations = [
        migrations.AddField(
            model_name="model",
            name="max_output_tokens",
            field=models.PositiveIntegerField(
                blank=True,
                null=True,
                help_text="Maximum number of output tokens of one answer, or of one generated image. Hard budgets reserve "
                "it for calls that state no maximum. Empty means the context window.",
            ),
        ),
        migrations.AddField(
            model_name="model",
            name="max_image_tokens",
            field=models.PositiveIntegerField(
                blank=True,
                null=True,
                help_text="Maximum number of input tokens of one image. Hard budgets reserve it. Empty means the context "
                "window.",
            ),
        ),
        migrations.AddField(
            model_name="model",
            name="max_audio_seconds",
            field=models.PositiveIntegerField(
                blank=True,
                null=True,
                help_text="Maximum length of one audio file in seconds. Hard budgets reserve it for compressed audio. "
                "Empty means unknown.",
            ),
        ),
    ]
