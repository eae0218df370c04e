"""The admin's pages of inference."""

from responses.admin import pages, prompts

__all__ = ["pages", "prompts"]
