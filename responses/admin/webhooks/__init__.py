"""Webhook endpoints and what was delivered to them."""
