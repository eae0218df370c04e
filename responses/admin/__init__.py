"""Console pages of responses, conversations, prompts and webhooks."""

from responses.admin import approvals, live, prompts, responses, webhooks
from responses.admin.conversations import pages as conversations
from responses.admin.transcript import payloads

__all__ = ["approvals", "conversations", "live", "payloads", "prompts", "responses", "webhooks"]
