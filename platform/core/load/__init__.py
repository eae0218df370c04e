"""The load of a process: its limit, the turns of teams under it, and draining."""
