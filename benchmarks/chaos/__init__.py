"""Background responses while everything that runs them is killed: `python -m benchmarks chaos`."""
