"""The platform itself: which processes live, what waits, how large the stores are, and how it is configured."""

from responses.admin.system import pages

__all__ = ["pages"]
