"""Deliveries: the outbox of messages with its attempts, and the mails to members of teams."""
