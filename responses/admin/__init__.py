"""Console pages of responses, conversations, prompts and webhooks."""

from responses.admin import live, prompts, responses, webhooks
from responses.admin.conversations import pages as conversations
from responses.admin.transcript import payloads

__all__ = ["conversations", "live", "payloads", "prompts", "responses", "webhooks"]
