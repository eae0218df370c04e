"""Conversations and chains: found, read like a chat, forked, saved, deleted."""
