"""Conversion of the events of upstreams that speak the Responses API."""
