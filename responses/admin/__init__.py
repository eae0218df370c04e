"""The admin's pages of inference."""

from responses.admin import (
    conversations,
    deliveries,
    go,
    health,
    live,
    pages,
    palette,
    payloads,
    playground,
    prompts,
    storage,
    system,
    team_tabs,
    texts,
    toolcalls,
    trials,
    webhooks,
)
from responses.admin.usage import pages as usage

__all__ = [
    "conversations",
    "deliveries",
    "go",
    "health",
    "live",
    "pages",
    "palette",
    "payloads",
    "playground",
    "prompts",
    "storage",
    "system",
    "team_tabs",
    "texts",
    "toolcalls",
    "trials",
    "usage",
    "webhooks",
]
