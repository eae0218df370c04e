"""Conversion of the events of upstreams with a Responses API."""
