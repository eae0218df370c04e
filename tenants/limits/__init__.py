"""Limits and budgets: checked and reserved before work starts, settled with what it used.

One Lua script in Redis decides (`script.lua`); PostgreSQL has the rows from which its state is rebuilt.
"""

from tenants.limits.values import BudgetUse, Demand, Grant, LimitStatus, LimitUse

__all__ = ["BudgetUse", "Demand", "Grant", "LimitStatus", "LimitUse"]
