"""Hourly sums of responses, calls and tool calls: what is summed, how hours are rolled up, and queries."""
