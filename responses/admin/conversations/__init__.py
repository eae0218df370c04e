"""Conversations: the list, the page of a conversation, its actions, and chains of responses."""
