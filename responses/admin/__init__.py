"""The admin's pages of inference."""

from responses.admin import deliveries, go, pages, prompts, storage, webhooks

__all__ = ["deliveries", "go", "pages", "prompts", "storage", "webhooks"]
