"""Moderation and guardrails: checks of the input and the output of responses."""
