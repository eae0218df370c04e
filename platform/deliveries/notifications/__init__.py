"""Notifications of teams by mail: each event is reported once, to the members who want to know of it."""

from deliveries.notifications.expiring_keys import notify_of_expiring_keys
from deliveries.notifications.recipients import Choice, choices_of, set_choice
from deliveries.notifications.services import Message, notify, sweep

__all__ = ["Choice", "Message", "choices_of", "notify", "notify_of_expiring_keys", "set_choice", "sweep"]
