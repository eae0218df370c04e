"""Hourly sums of responses, calls and tool calls: definitions, aggregation and queries."""
