"""The admin's pages of inference."""

from responses.admin import deliveries, go, live, pages, palette, payloads, prompts, storage, system, texts, webhooks

__all__ = [
    "deliveries",
    "go",
    "live",
    "pages",
    "palette",
    "payloads",
    "prompts",
    "storage",
    "system",
    "texts",
    "webhooks",
]
