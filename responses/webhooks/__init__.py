"""Webhooks: endpoints of teams, the outbox of events, and their delivery.

This package must not import modules about responses. They import it, because the end of a run writes to the outbox in
the same transaction.
"""
