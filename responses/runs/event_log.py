"""The event log of a run: numbers the events, stores them in batches and sends the batches to followers.

Events are stored with the next step of the run, but at the latest after `EVENT_LOG_SECONDS` or 64 KiB. Followers
receive only stored events, so while the run is followed, events are stored within milliseconds.
"""

import asyncio
from collections.abc import Sequence
from functools import partial

from django.conf import settings

from core.clock import now
from core.db.group_commit import Commit
from core.json.large_work import LARGE_BYTES, pause
from core.records import record
from core.work.notifications import Notifier, loop_notifications
from engine.events.compression import compress, decompress
from engine.events.types import Event, frame
from responses.models import EventBatch
from responses.runs.identity import RunIdentity
from responses.runs.rows import Row, new_row
from responses.runs.store import Change, LeaseGuard, writer

# Followers receive events after their commit, so a short delay keeps the stream smooth. All events that the runs of a
# process emit within this time share one commit.
FOLLOWED_FLUSH_SECONDS = 0.03
# Used without Redis, because a run then does not know if it is followed, and for pages that list many runs with the
# ends of their logs.
_OBSERVED_FLUSH_SECONDS = 0.25
# Time for which a message from such a page is valid. Pages send one every two seconds.
_OBSERVED_SECONDS = 5.0
FLUSH_BYTES = 64 * 1024
# Unfollowed runs of the process also store their events at common times, but not all of them at the same time.
_TICKS = 40
_FRAME_END = b"\n\n"


@record
class LogMessage:
    """A stored batch of the log, as sent to followers. `ends_run` is true for the last batch.

    A message with an empty batch only announces the length of the log.
    """

    first_sequence: int
    ends_run: bool
    compressed: bytes

    @classmethod
    def of_length(cls, length: int) -> "LogMessage":
        """Return a message without events that announces the length of the log."""
        return cls(first_sequence=length, ends_run=False, compressed=compress(b""))

    def encode(self) -> bytes:
        """Return the message as bytes."""
        return b"%d %d %b" % (self.first_sequence, self.ends_run, self.compressed)

    @classmethod
    def decode(cls, data: bytes) -> "LogMessage":
        """Return the message from its bytes."""
        first, ends, compressed = data.split(b" ", 2)
        return cls(first_sequence=int(first), ends_run=ends == b"1", compressed=compressed)

    def frames(self) -> list[bytes]:
        """Return the events, each as a server-sent event."""
        return split_frames(decompress(self.compressed))


def split_frames(frames: bytes) -> list[bytes]:
    """Return the events of a batch, each as a server-sent event."""
    return [frame + _FRAME_END for frame in frames.split(_FRAME_END)[:-1]]


class EventLog:
    """The log of one run. `next_sequence` is the number of the next event."""

    __slots__ = (
        "_buffer",
        "_buffer_first",
        "_buffered_bytes",
        "_flushes",
        "_identity",
        "_is_held",
        "_message",
        "_notifier",
        "_observed_until",
        "_timer",
        "next_sequence",
    )

    def __init__(self, identity: RunIdentity, *, next_sequence: int = 0) -> None:
        self.next_sequence = next_sequence
        self._identity = identity
        self._buffer: list[bytes] = []
        self._buffered_bytes = 0
        self._buffer_first = next_sequence
        self._timer: asyncio.TimerHandle | None = None
        self._observed_until = 0.0
        self._flushes: list[Commit] = []
        self._is_held = False
        self._message: LogMessage | None = None
        # A run in a worker sends messages from the start, so that its followers learn that it has begun. Most
        # foreground runs are never followed, so they send messages only when a follower asks (`serve_followers`).
        self._notifier = Notifier(identity.channel, on_listener=self._flush) if identity.in_worker else None

    def append(self, events: Sequence[Event]) -> bytes:
        """Number events and return their bytes. Store them with `flush_soon`, or by a change with `take_batch`."""
        obfuscate = self._identity.obfuscate
        frames = []
        for event in events:
            frames.append(frame(event, self.next_sequence, obfuscate=obfuscate))
            self.next_sequence += 1
            if len(frames[-1]) > LARGE_BYTES:
                pause()
        data = b"".join(frames)
        if data and self._identity.stored:
            self._buffer.append(data)
            self._buffered_bytes += len(data)
        return data

    def flush_soon(self) -> None:
        """Schedule the storage of the appended events. The response itself must already be stored."""
        if self._buffered_bytes >= FLUSH_BYTES:
            self._flush()
        elif self._buffer and self._timer is None:
            loop = asyncio.get_running_loop()
            if self._notifier is not None and self._notifier.has_listeners:
                at = _flush_at(loop.time(), FOLLOWED_FLUSH_SECONDS, ticks=1)
            elif loop_notifications().is_connected and loop.time() >= self._observed_until:
                # 40 tokens at one per second take 5 rows with 1.2 KB of compressed events. With a row for each delta,
                # they took 34 rows and 18.5 KB on disk.
                at = _flush_at(loop.time(), settings.EVENT_LOG_SECONDS, ticks=_TICKS)
            else:
                at = _flush_at(loop.time(), _OBSERVED_FLUSH_SECONDS)
            self._timer = loop.call_at(at, self._flush)

    def _flush(self) -> None:
        if self._is_held:
            return
        # The run does not wait for this write. The store keeps the order of changes, and the next step raises an error.
        if batch := self.take_batch():
            identity = self._identity
            lease = LeaseGuard(response_id=identity.response_id, lease_token=identity.lease_token)
            change = Change(team_id=identity.team_id, insert=batch, lease=lease)
            self._flushes = [flush for flush in self._flushes if not flush.done() or flush.exception()]
            self._flushes.append(self.submit(change))

    def submit(self, change: Change) -> Commit:
        """Submit the change that contains the latest `take_batch`. Followers receive the batch after the commit."""
        commit = writer.submit(change)
        commit.add_done_callback(partial(self._after_commit, self._message))
        return commit

    def _after_commit(self, message: LogMessage | None, commit: "asyncio.Future[None]") -> None:
        # `exception()` marks the exception as retrieved: if the run has stopped by now, nothing else awaits the commit.
        if commit.cancelled() or commit.exception() is not None:
            return
        notifier = self._notifier
        if message is not None and notifier is not None and (self._identity.in_worker or notifier.has_listeners):
            notifier.notify(message.encode())

    def serve_followers(self) -> None:
        """From now on, store events within milliseconds and send them to followers, until there are no followers."""
        if self._notifier is None:
            self._notifier = Notifier(self._identity.channel, on_listener=self._flush)
        self._notifier.has_listeners = True
        self._flush()
        self.announce()

    def announce(self) -> None:
        """Announce to followers that this process has the run, and the length of its log. Finds out if there are any.

        While a run in a worker knows of no followers, its deltas are stored only every `EVENT_LOG_SECONDS`.
        """
        if self._notifier is not None:
            self._notifier.notify(LogMessage.of_length(self._buffer_first).encode())

    def serve_observers(self) -> None:
        """For the next five seconds, store events within a quarter of a second."""
        loop = asyncio.get_running_loop()
        if loop.time() >= self._observed_until:
            self._flush()
        self._observed_until = loop.time() + _OBSERVED_SECONDS

    def hold(self) -> None:
        """Pause the storage of events until `release`, because a step that is planned in a thread will store them."""
        self._stop_timer()
        self._is_held = True

    def release(self) -> None:
        """End the pause that `hold` has begun."""
        self._is_held = False

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def take_batch(self, *, ends_run: bool = False) -> list[Row]:
        """Return the log row of the events that are not stored yet, for the caller to insert; [] if there are none."""
        self._stop_timer()
        frames, self._buffer, self._buffered_bytes = b"".join(self._buffer), [], 0
        if len(frames) > LARGE_BYTES:
            pause()
        first, self._buffer_first = self._buffer_first, self.next_sequence
        self._message = None
        if not frames:
            return []
        compressed = compress(frames)
        self._message = LogMessage(first_sequence=first, ends_run=ends_run, compressed=compressed)
        return [
            new_row(
                EventBatch,
                team_id=self._identity.team_id,
                response_id=self._identity.response_id,
                first_sequence=first,
                last_sequence=self.next_sequence - 1,
                created_at=now(),
                compressed=compressed,
            )
        ]

    def raise_failed_flush(self) -> None:
        """Raise the error of events that could not be stored. Raises it only once."""
        for flush in self._flushes:
            if flush.done() and (error := flush.exception()) is not None:
                # The error is removed, because recording the end of the run afterwards must not fail with it again.
                self._flushes.remove(flush)
                raise error

    async def flushed(self) -> None:
        """Wait until all submitted events are stored. Raises the error if events could not be stored.

        A step must not be committed earlier, because the log could have a gap.
        """
        if self._flushes:
            await asyncio.wait(self._flushes)
            self.raise_failed_flush()
            self._flushes.clear()

    async def flush(self) -> None:
        """Store all events that the client has received, so that a worker that resumes the run continues after them."""
        self._flush()
        await self.flushed()


def _flush_at(at: float, longest: float, *, ticks: int = 2) -> float:
    # The runs of a process store their events at the same times, so that their batches share one commit.
    tick = longest / ticks
    return (at // tick + ticks) * tick
