"""What this app tells the apps above it."""

from django.dispatch import Signal

items_offered = Signal()
"""Items are about to enter a conversation: `items`, and `team_id`. A receiver that could not read them raises the
`BadRequest` for it."""
