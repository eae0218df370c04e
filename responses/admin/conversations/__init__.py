"""Conversations: the list, the page of one, its actions, and chains of responses."""
