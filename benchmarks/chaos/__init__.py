"""Background responses while the processes that run them are killed: `python -m benchmarks chaos`."""
