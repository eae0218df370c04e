"""Live pages: running jobs, and the transcript of a response in progress."""

from responses.admin.live import pages

__all__ = ["pages"]
