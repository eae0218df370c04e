"""Webhooks: endpoints of teams, the outbox of events, and their delivery.

This package is below all modules about responses: the end of a run writes to the outbox in the same SQL statement.
"""
