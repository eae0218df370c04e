"""`/v1/batches`.

For requests: validation (`requests`), writes (`services`) and reads (`selectors`). For workers: `runner` drives the
batches of a process; it claims batches and lines (`queue`), executes lines (`execution`), and reads and writes the
files (`files`).
"""
