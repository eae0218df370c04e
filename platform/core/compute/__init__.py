"""Computations on untrusted input, each in a process of its own with limits of time and memory.

`pool` is the side of the platform: places, queues of teams, and errors. `server` is the program that starts the
processes. Neither of them imports a framework, and computations must not import one either.
"""
