"""The admin's pages of inference."""

from responses.admin import deliveries, pages, prompts, webhooks

__all__ = ["deliveries", "pages", "prompts", "webhooks"]
