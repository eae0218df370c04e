"""Usage records against an upstream that keeps its own books: `python -m benchmarks books`."""
