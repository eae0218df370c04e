"""Comparison of two responses: request, items, timeline, tokens, cost and time side by side."""
