"""The counters, gauges and histograms of one server, and their names. docs/metrics.md says what each means.

They live in a registry of their own: two servers in one process share nothing.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

# Seconds. A board makes 7 to 80 tokens a second, takes up to minutes to load a model or to prefill.
_BETWEEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 5.0, 30.0)
_FIRST = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0)
_WAIT = (0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_LOAD = (0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0)
_REQUEST = (0.05, 0.25, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class Instruments:
    """All that is counted as it happens. What is only looked at is collected at the scrape: see readings."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=registry)
        self.requests = Counter(
            "rkserve_requests_total",
            "Requests that have ended.",
            ("path", "model", "code"),
            registry=registry,
        )
        self.request_seconds = Histogram(
            "rkserve_request_duration_seconds",
            "From a request's headers to the end of its answer.",
            ("path", "model"),
            registry=registry,
            buckets=_REQUEST,
        )
        self.in_progress = Gauge("rkserve_requests_in_progress", "Requests under way.", registry=registry)
        self.wait_seconds = Histogram(
            "rkserve_queue_wait_seconds",
            "How long requests waited for their turn.",
            ("model",),
            registry=registry,
            buckets=_WAIT,
        )
        self.first_token_seconds = Histogram(
            "rkserve_time_to_first_token_seconds",
            "From the queue's beginning, wait and load included, to the first token.",
            ("model",),
            registry=registry,
            buckets=_FIRST,
        )
        self.between_tokens_seconds = Histogram(
            "rkserve_time_between_tokens_seconds",
            "From one token of an answer to the next.",
            ("model",),
            registry=registry,
            buckets=_BETWEEN,
        )
        self.answers = Counter(
            "rkserve_answers_total",
            "Answers that have ended as they should.",
            ("model", "reason"),
            registry=registry,
        )
        self.prompt_tokens = _of_model(registry, "rkserve_prompt_tokens_total", "Tokens of prompts.")
        self.cached_tokens = _of_model(
            registry, "rkserve_cached_tokens_total", "Tokens of prompts that were in a cache."
        )
        self.prefill_tokens = _of_model(
            registry, "rkserve_prefill_tokens_total", "Tokens of prompts that were computed."
        )
        self.decode_tokens = _of_model(registry, "rkserve_decode_tokens_total", "Tokens of answers.")
        self.prefill_seconds = _of_model(registry, "rkserve_prefill_seconds_total", "Time in prefill.")
        self.decode_seconds = _of_model(registry, "rkserve_decode_seconds_total", "Time in decode.")
        self.prefill_rate = Gauge(
            "rkserve_prefill_tokens_per_second", "Of the latest answer.", ("model",), registry=registry
        )
        self.decode_rate = Gauge(
            "rkserve_decode_tokens_per_second", "Of the latest answer.", ("model",), registry=registry
        )
        self.loads = Counter(
            "rkserve_model_loads_total", "Loads of models.", ("model", "code"), registry=registry
        )
        self.load_seconds = Histogram(
            "rkserve_model_load_seconds",
            "How long loads that succeeded took.",
            ("model",),
            registry=registry,
            buckets=_LOAD,
        )
        self.lost_workers = Counter(
            "rkserve_workers_lost_total",
            "Workers of loaded models that died or hung.",
            ("model", "code"),
            registry=registry,
        )


def _of_model(registry: CollectorRegistry, name: str, documentation: str) -> Counter:
    return Counter(name, documentation, ("model",), registry=registry)
