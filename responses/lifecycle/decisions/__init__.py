"""Decisions for which runs wait: make and expire them, and withdraw answers of requests that have failed."""
