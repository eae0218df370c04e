"""Hourly sums of responses, upstream calls and tool calls: definitions, aggregation and queries."""
