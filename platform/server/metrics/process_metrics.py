"""Metrics of several web processes: `/metrics` of any process returns the metrics of all, with the label `process`.

The processes share memory that was allocated before they were forked, with one part for each process. To serve
`/metrics`, a process asks the others, and each process writes its metrics to its own part. Nothing is written without a
request.
"""

import logging
import mmap
import pickle
import struct
import threading
import time
from collections.abc import Iterable
from zlib import crc32

from prometheus_client import REGISTRY, CollectorRegistry, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

logger = logging.getLogger(__name__)
# Size of the part of each process. Memory that is never written takes no space.
_PART_BYTES = 8 * 1024 * 1024
# Length, checksum, and the time for which it was written.
_HEAD = struct.Struct("<IIQ")
_TIME = struct.Struct("<Q")
_POLL_SECONDS = 0.1
# Time to wait for the other processes. A process with a busy event loop writes late, and a dead process never writes.
_WAIT_SECONDS = 1.0


class ProcessMetrics(Collector):
    """Metrics of `count` processes; created before they are forked."""

    def __init__(self, count: int) -> None:
        # Time of the last request for the metrics, by the system's monotonic clock, which all processes share.
        self._asked = mmap.mmap(-1, _TIME.size)
        self._parts = [mmap.mmap(-1, _PART_BYTES) for _ in range(count)]

    def start(self, number: int) -> None:
        """Start a thread that writes the metrics of this process, with this number, whenever they are requested."""
        _Shared.collector = self
        threading.Thread(target=self._write, args=(self._parts[number],), name="metrics", daemon=True).start()

    @override
    def collect(self) -> Iterable[Metric]:
        """Return the metrics of all processes. For a process that does not answer, return its last known metrics."""
        asked = time.monotonic_ns()
        _TIME.pack_into(self._asked, 0, asked)
        gives_up = time.monotonic() + _WAIT_SECONDS
        while time.monotonic() < gives_up and any(_HEAD.unpack_from(part)[2] < asked for part in self._parts):
            time.sleep(_POLL_SECONDS / 10)
        merged: dict[str, Metric] = {}
        for number, part in enumerate(self._parts):
            for metric in _read(part):
                known = merged.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
                labels = {"process": str(number)}
                known.samples += [sample._replace(labels={**labels, **sample.labels}) for sample in metric.samples]
        return merged.values()

    def _write(self, part: mmap.mmap) -> None:
        written = 0
        while True:
            (asked,) = _TIME.unpack_from(self._asked)
            if asked > written:
                written = time.monotonic_ns()
                data = pickle.dumps(list(REGISTRY.collect()))
                if len(data) > _PART_BYTES - _HEAD.size:
                    logger.error("the metrics of this process are too large: %d bytes", len(data))
                    data = b""
                part[_HEAD.size : _HEAD.size + len(data)] = data
                _HEAD.pack_into(part, 0, len(data), crc32(data), written)
            time.sleep(_POLL_SECONDS)


def _read(part: mmap.mmap) -> list[Metric]:
    # The checksum differs while the process writes, which takes microseconds.
    for _ in range(3):
        length, checksum, _ = _HEAD.unpack_from(part)
        data = part[_HEAD.size : _HEAD.size + length]
        if data and crc32(data) == checksum:
            metrics: list[Metric] = pickle.loads(data)  # noqa: S301 - written by this program
            return metrics
        time.sleep(0.001)
    return []


class _OwnMetrics(Collector):
    """The metrics of this process."""

    @override
    def collect(self) -> Iterable[Metric]:
        return REGISTRY.collect()


class _Shared:
    collector: Collector = _OwnMetrics()


def registry(*others: Collector) -> CollectorRegistry:
    """Return a registry of the given collectors and of the metrics of this process, or of all processes if several."""
    found = CollectorRegistry(auto_describe=False)
    for collector in (_Shared.collector, *others):
        found.register(collector)
    return found
