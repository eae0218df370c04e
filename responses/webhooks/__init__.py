"""Webhooks: endpoints of teams, the outbox of what they are told, and how it reaches them.

Stands below everything about responses: a run's end writes into the outbox, in the same statement.
"""
