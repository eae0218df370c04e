"""Messages between the pool and the server of computations."""

import struct

# Length of a request or of a result, sent before its bytes.
LENGTH = struct.Struct("<Q")
# The byte before a result, for its kind.
DONE = b"d"
FAILED = b"f"
TOO_LARGE = b"l"
# The outcomes of a process. The server writes one of them, as a line, when the process has ended.
EXITED = b"exited"
# It exceeded its limit of CPU or of time.
TOO_SLOW = b"slow"
# It crashed, which hostile input can cause.
CRASHED = b"crashed"
# Something else has killed it: an operator, or a system that ran out of memory.
KILLED = b"killed"
