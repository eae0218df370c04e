"""Computations on untrusted input, each in a process of its own with limits of time and memory.

The platform uses `pool`, which has the places, the queues of teams and the errors. `server` is the program that starts
the processes. Neither of them imports a framework, and computations must not import one either.
"""
