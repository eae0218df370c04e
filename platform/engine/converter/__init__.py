"""Conversion of upstream streams, chat-completion chunks or Responses events, into items and events."""
