"""What runs, as it runs: the page of running jobs, and the transcript of a response that is not over yet."""

from responses.admin.live import pages

__all__ = ["pages"]
