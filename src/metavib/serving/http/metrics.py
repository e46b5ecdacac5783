"""The server's counters, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from metavib.core.errors import require_installed

PATHS = ("/", "/page.css", "/page.js", "/predict", "/model", "/health", "/ready", "/metrics", "/openapi.json")
_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)


class ServerMetrics:
    """Requests, images, batches, and how long things took. Each server has its own."""

    def __init__(
        self,
        waiting_images: Callable[[], int],
        waiting_bytes: Callable[[], int],
        clipped_images: Callable[[], int],
    ) -> None:
        require_installed("prometheus_client", "the server needs prometheus_client", extra="serve")
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)  # memory, time, open files
        self._requests = Counter(
            "metavib_requests", "Requests by path and status", ["path", "status"], registry=self._registry
        )
        self._counts: dict[tuple[str, int], Counter] = {}  # to look one up by its labels takes longer
        self._seconds = Histogram(
            "metavib_predict_seconds",
            "From the head of a request to the end of its answer",
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._images = Counter(
            "metavib_images", "Images by what became of them", ["outcome"], registry=self._registry
        )
        self._outcomes = {
            name: self._images.labels(name) for name in ("sure", "unsure", "unknown", "refused", "abandoned")
        }
        self.batch = Histogram(
            "metavib_batch_images",
            "Images that were classified together",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256),
            registry=self._registry,
        )
        for name, text, read in (
            ("metavib_waiting_images", "Images that wait for their answer", waiting_images),
            ("metavib_waiting_bytes", "Bytes of requests that are being read or answered", waiting_bytes),
            ("metavib_clipped_images", "Images so far with values beyond the model's range", clipped_images),
        ):
            Gauge(name, text, registry=self._registry).set_function(read)

    def request(self, path: str, status: int, seconds: float) -> None:
        """A request has ended."""
        known = path if path in PATHS else "other"  # clients must not be able to make up series
        count = self._counts.get((known, status))
        if count is None:
            count = self._counts[known, status] = self._requests.labels(known, str(status))
        count.inc()
        if path == "/predict":
            self._seconds.observe(seconds)

    def images(self, outcome: str, count: int = 1) -> None:
        """Count images by their outcome: sure, unsure, unknown (the model cannot tell), refused or abandoned."""
        self._outcomes[outcome].inc(count)

    def text(self) -> tuple[bytes, str]:
        """Everything in the format of Prometheus, and its content type."""
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        return generate_latest(self._registry), CONTENT_TYPE_LATEST
