"""Admission of requests: limits of their bodies, of open requests per API key, and of new work during an overload."""
