"""The loop, in pure Python: no Django, no HTTP. What it needs from outside comes in as values and ports."""
