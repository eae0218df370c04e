"""Moderation and guardrails: checks of input and output, and runs whose output is checked."""
