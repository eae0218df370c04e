"""The page of one response: its header, and a module for each tab. Everything here is read-only."""
