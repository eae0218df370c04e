"""Conversion of chat-completion chunks into items and events."""
