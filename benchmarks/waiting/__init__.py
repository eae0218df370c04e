"""Background runs that wait for approvals for a day: `python -m benchmarks waiting-runs`."""
