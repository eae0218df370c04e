"""The page of one response: its head, and a module for each of its tabs. Everything here is read-only."""
