"""Effects of hosted calls whose process is killed: `python -m benchmarks effects`."""
