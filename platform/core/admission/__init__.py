"""Admission of requests: their bodies, how many are open, and what an overloaded process refuses."""
