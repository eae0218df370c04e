"""The admin's pages of inference."""

from responses.admin import (
    conversations,
    deliveries,
    go,
    live,
    pages,
    palette,
    payloads,
    playground,
    prompts,
    storage,
    system,
    texts,
    webhooks,
)

__all__ = [
    "conversations",
    "deliveries",
    "go",
    "live",
    "pages",
    "palette",
    "payloads",
    "playground",
    "prompts",
    "storage",
    "system",
    "texts",
    "webhooks",
]
