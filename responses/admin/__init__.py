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
    toolcalls,
    webhooks,
)
from responses.admin.usage import pages as usage

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
    "toolcalls",
    "usage",
    "webhooks",
]
