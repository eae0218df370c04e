"""Limits and budgets: amounts are checked and reserved before work starts, and settled with its actual usage.

One Lua script in Redis (`script.lua`) makes all decisions. Its state can be rebuilt from rows in PostgreSQL.
docs/concepts/limits.md explains how the limits stay exact.
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
from limits.values import LEAST_OUTPUT, BudgetUse, Cost, Demand, Grant, LimitUse, UnknownPrice, end_user_of

__all__ = [
    "LEAST_OUTPUT",
    "BudgetUse",
    "Cost",
    "Demand",
    "Grant",
    "LimitUse",
    "UnknownPrice",
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
