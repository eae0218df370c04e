"""The admin's pages of inference."""

from responses.admin import deliveries, go, live, pages, payloads, prompts, storage, webhooks

__all__ = ["deliveries", "go", "live", "pages", "payloads", "prompts", "storage", "webhooks"]
