"""The run loop in pure Python: no Django, no HTTP. Everything external is passed in as values and ports."""
