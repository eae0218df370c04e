"""The admin's pages of inference."""

from responses.admin import pages

__all__ = ["pages"]
