"""Console pages of usage, budgets and rejected requests."""

from billing.admin import budgets, key_spending, rejections, usage_records
from billing.admin.usage import pages as usage

__all__ = ["budgets", "key_spending", "rejections", "usage", "usage_records"]
