"""Console pages of usage, budgets and rejected requests."""

from billing.admin import budgets, rejections, usage_records
from billing.admin.usage import pages as usage

__all__ = ["budgets", "rejections", "usage", "usage_records"]
