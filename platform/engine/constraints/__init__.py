"""Constraints on output: JSON schemas, grammars, and the gate that holds output back until it is validated."""
