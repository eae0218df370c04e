"""Admin pages of responses, conversations, usage, webhooks, prompts and the system."""

from responses.admin import (
    budgets,
    live,
    playground,
    prompts,
    rejections,
    responses,
    routing,
    storage,
    system,
    team_tabs,
    tool_calls,
    webhooks,
)
from responses.admin.conversations import pages as conversations
from responses.admin.search import full_text, lookup
from responses.admin.transcript import payloads
from responses.admin.usage import pages as usage

__all__ = [
    "budgets",
    "conversations",
    "full_text",
    "live",
    "lookup",
    "payloads",
    "playground",
    "prompts",
    "rejections",
    "responses",
    "routing",
    "storage",
    "system",
    "team_tabs",
    "tool_calls",
    "usage",
    "webhooks",
]
