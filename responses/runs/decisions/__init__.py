"""Decisions for which runs wait: their rows, their calls, and the announcement of open ones."""
