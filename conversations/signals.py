"""Signals for the apps that depend on this one."""

from django.dispatch import Signal

items_offered = Signal()
"""Sent before items are added to a conversation, with `items` and `team_id`. A receiver refuses items that a response
could not read by raising `BadRequest`."""
