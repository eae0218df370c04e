"""Metrics of several web processes: `/metrics` of any of them returns those of all, with the label `process`.

The processes share memory that was allocated before they were forked. Each writes its metrics to its part of it.
"""

import mmap
import pickle
import threading
import time
from collections.abc import Iterable
from zlib import crc32

from prometheus_client import REGISTRY, CollectorRegistry, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

_PART_BYTES = 256 * 1024
_HEAD_BYTES = 8
_WRITE_SECONDS = 2.0


class ProcessMetrics(Collector):
    """Metrics of `count` processes; created before they are forked."""

    def __init__(self, count: int) -> None:
        self._parts = [mmap.mmap(-1, _PART_BYTES) for _ in range(count)]

    def start(self, number: int) -> None:
        """Write the metrics of this process, the one with this number, from now on."""
        _Shared.registry = CollectorRegistry()
        _Shared.registry.register(self)
        threading.Thread(target=self._write, args=(self._parts[number],), name="metrics", daemon=True).start()

    @override
    def collect(self) -> Iterable[Metric]:
        """Return the metrics of all processes that have written theirs."""
        merged: dict[str, Metric] = {}
        for number, part in enumerate(self._parts):
            for metric in _read(part):
                known = merged.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
                labels = {"process": str(number)}
                known.samples += [sample._replace(labels={**labels, **sample.labels}) for sample in metric.samples]
        return merged.values()

    def _write(self, part: mmap.mmap) -> None:
        while True:
            data = pickle.dumps(list(REGISTRY.collect()))
            if len(data) <= _PART_BYTES - _HEAD_BYTES:
                head = len(data).to_bytes(4, "big") + crc32(data).to_bytes(4, "big")
                part[: _HEAD_BYTES + len(data)] = head + data
            time.sleep(_WRITE_SECONDS)


def _read(part: mmap.mmap) -> list[Metric]:
    # The checksum differs while the process writes, which takes microseconds.
    for _ in range(3):
        length, checksum = (int.from_bytes(part[at : at + 4], "big") for at in (0, 4))
        data = part[_HEAD_BYTES : _HEAD_BYTES + length]
        if data and crc32(data) == checksum:
            metrics: list[Metric] = pickle.loads(data)  # noqa: S301 - written by this program
            return metrics
        time.sleep(0.001)
    return []


class _Shared:
    registry = REGISTRY


def registry() -> CollectorRegistry:
    """Return the metrics of this process, or of all if there are several."""
    return _Shared.registry
