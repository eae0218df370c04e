"""Idempotency keys: a request that is repeated with the same key runs once, and each repetition gets the same answer.

`http` is the layer around the API that recognizes repeated requests. The first one is executed by `execution`, which
stores its answer as it is written. `store` has the rows, `recording` is an answer in the memory of a process.
"""
