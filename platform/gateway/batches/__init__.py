"""`/v1/batches`.

For requests: validation (`requests`), writes (`services`) and reads (`selectors`). For workers: `runner` drives the
batches of a process; it claims batches and lines (`queue`), reads input files (`input_file`), executes lines
(`execution`) and writes output files (`output_files`).
"""
