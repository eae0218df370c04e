"""Reading metrics in Prometheus' text format."""

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from tests.support.waiting import PATIENCE

Sample = tuple[str, dict[str, str], float]


def read_metrics(url: str, *, token: str = "") -> list[Sample]:
    """Return all samples: name, labels and value."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    answer = httpx2.get(url, headers=headers, timeout=PATIENCE)
    assert answer.status_code == 200, answer.text
    families = text_string_to_metric_families(answer.text)
    return [(one.name, one.labels, one.value) for family in families for one in family.samples]


class Samples:
    """Metrics of a process, compared with those at the creation of this object."""

    def __init__(self, url: str, *, token: str = "") -> None:
        self._url, self._token = url, token
        self._before = read_metrics(url, token=token)

    def now(self, name: str, **labels: str) -> float:
        """Return the sum of the samples with this name and these labels."""
        return _sum(read_metrics(self._url, token=self._token), name, labels)

    def added(self, name: str, **labels: str) -> float:
        """Return by how much that sum has grown."""
        return self.now(name, **labels) - _sum(self._before, name, labels)


def _sum(samples: list[Sample], name: str, labels: dict[str, str]) -> float:
    return sum(value for found, own, value in samples if found == name and labels.items() <= own.items())
