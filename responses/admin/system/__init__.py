"""System page: processes, queues, databases, health of dependencies, configuration."""

from responses.admin.system import pages

__all__ = ["pages"]
