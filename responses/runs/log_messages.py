"""Messages to the followers of a run: the batches of its event log, sent when they are committed."""

from dataclasses import dataclass

from engine.events.compression import compress, decompress

_FRAME_END = b"\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogMessage:
    """A batch of the log as it is stored. `ends_run` is true for the last one.

    An empty batch only tells how long the log is.
    """

    first_sequence: int
    ends_run: bool
    compressed: bytes

    @classmethod
    def of_length(cls, length: int) -> "LogMessage":
        """Return a message without events about a log of this length."""
        return cls(first_sequence=length, ends_run=False, compressed=compress(b""))

    def encode(self) -> bytes:
        """Return the message as it is sent."""
        return b"%d %d %b" % (self.first_sequence, self.ends_run, self.compressed)

    @classmethod
    def decode(cls, data: bytes) -> "LogMessage":
        """Return a message that was received."""
        first, ends, compressed = data.split(b" ", 2)
        return cls(first_sequence=int(first), ends_run=ends == b"1", compressed=compressed)

    def frames(self) -> list[bytes]:
        """Return the events, each as a server-sent event."""
        return split_frames(decompress(self.compressed))


def split_frames(frames: bytes) -> list[bytes]:
    """Return the events of a batch, each as a server-sent event."""
    return [frame + _FRAME_END for frame in frames.split(_FRAME_END)[:-1]]
