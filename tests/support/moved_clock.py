"""A monotonic clock for parts that take their clock as an argument."""


class MovedClock:
    """A clock that stands still until the test adds to `seconds`."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.seconds
