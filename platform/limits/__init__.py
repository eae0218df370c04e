"""Limits and budgets: checked and reserved before work starts, settled with its actual usage.

One Lua script in Redis decides (`script.lua`); PostgreSQL has the rows from which its state is rebuilt. How it stays
exact is described in docs/concepts/limits.md.
"""

from limits.guard import (
    applying,
    applying_sync,
    release,
    release_soon,
    renew,
    reserve,
    reserve_sync,
    settle,
    settle_soon,
    settle_sync,
    status,
    status_sync,
)
from limits.values import LEAST_OUTPUT, BudgetUse, Demand, Grant, LimitUse, end_user_of

__all__ = [
    "LEAST_OUTPUT",
    "BudgetUse",
    "Demand",
    "Grant",
    "LimitUse",
    "applying",
    "applying_sync",
    "end_user_of",
    "release",
    "release_soon",
    "renew",
    "reserve",
    "reserve_sync",
    "settle",
    "settle_soon",
    "settle_sync",
    "status",
    "status_sync",
]
