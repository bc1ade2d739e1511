"""Numbers of a server for Prometheus: requests, seconds, batches, tokens, what waits."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """The metrics of one server, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = ("endpoint", "run")
        self._requests = Counter(
            "etude_requests", "Requests by endpoint, run and status", (*labels, "status"), registry=self.registry
        )
        self._seconds = Histogram(
            "etude_request_seconds", "Seconds to the answer", labels, buckets=SECONDS, registry=self.registry
        )
        self._batches = Histogram(
            "etude_batch_requests",
            "Requests answered in one pass",
            buckets=(1, 2, 4, 8, 16, 32, 64),
            registry=self.registry,
        )
        self._waiting = Gauge("etude_pending_requests", "Requests that wait or are answered", registry=self.registry)
        self._tokens = Gauge("etude_generated_tokens", "Tokens generated since the start", registry=self.registry)
        self._refused = Counter(
            "etude_refused", "Requests refused before any endpoint", ("status",), registry=self.registry
        )

    def count_request(self, endpoint: str, run: str, status: int, seconds: float) -> None:
        """Count an answer."""
        self._requests.labels(endpoint, run, str(status)).inc()
        self._seconds.labels(endpoint, run).observe(seconds)

    def count_batch(self, requests: int) -> None:
        """Count a forward pass."""
        self._batches.observe(requests)

    def count_refusal(self, status: int) -> None:
        """Count a request that was refused at the door."""
        self._refused.labels(str(status)).inc()

    def watch(self, pending: Callable[[], float], tokens: Callable[[], float]) -> None:
        """Read gauges from these functions when they are asked for."""
        self._waiting.set_function(pending)
        self._tokens.set_function(tokens)

    def render(self) -> bytes:
        """The text format of Prometheus."""
        return generate_latest(self.registry)
