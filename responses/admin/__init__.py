"""Console pages of responses, conversations, prompts and webhooks."""

from responses.admin import live, prompts, responses, webhooks
from responses.admin.approvals import pages as approvals
from responses.admin.compare import pages as compare
from responses.admin.conversations import pages as conversations
from responses.admin.transcript import payloads

__all__ = ["approvals", "compare", "conversations", "live", "payloads", "prompts", "responses", "webhooks"]
