"""Turns what happens into numbers: the queue's and the workers' observer, and the counter of requests."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from backends.base import Usage
from server.metrics.instruments import Instruments
from server.metrics.meter import AnswerMeter
from server.scheduling.observer import Observer, OnEvent

LOST_CODES = ("backend_crashed", "backend_timeout")


class Metrics(Observer):
    """One server's numbers. models: ids that are shown from the start, with zeros, so that rates are right.

    Every label's value is one of few: ids of entries, paths of routes, codes of errors.
    """

    def __init__(self, models: Iterable[str] = ()) -> None:
        self.instruments = made = Instruments()
        for model in models:
            made.loads.labels(model, "ok")
            for code in LOST_CODES:
                made.lost_workers.labels(model, code)

    # requests

    def request_begins(self) -> None:
        """A request's headers have come."""
        self.instruments.in_progress.inc()

    def request_ends(self, path: str, model: str, code: str, seconds: float) -> None:
        """A request was answered, or its client has left. model: "" where none was asked."""
        made = self.instruments
        made.in_progress.dec()
        made.requests.labels(path, model, code).inc()
        made.request_seconds.labels(path, model).observe(seconds)

    # the queue's and the workers' observer

    def waited(self, model: str, seconds: float) -> None:
        """See Observer."""
        self.instruments.wait_seconds.labels(model).observe(seconds)

    def answering(self, model: str, submitted: float, on_event: OnEvent) -> OnEvent:
        """See Observer."""
        made = self.instruments
        return AnswerMeter(
            on_event,
            submitted,
            first=made.first_token_seconds.labels(model).observe,
            between=made.between_tokens_seconds.labels(model).observe,
            ended=partial(self._answered, model),
        )

    def loaded(self, model: str, seconds: float) -> None:
        """See Observer."""
        self.instruments.loads.labels(model, "ok").inc()
        self.instruments.load_seconds.labels(model).observe(seconds)

    def load_failed(self, model: str, code: str) -> None:
        """See Observer."""
        self.instruments.loads.labels(model, code).inc()

    def lost(self, model: str, code: str) -> None:
        """See Observer."""
        self.instruments.lost_workers.labels(model, code).inc()

    def _answered(self, model: str, reason: str, usage: Usage) -> None:
        made = self.instruments
        # A counter refuses to go back, whatever a worker's engine reports.
        prefilled = max(0, usage.prompt_tokens - usage.cached_tokens)
        prefill_s, decode_s = max(0.0, usage.prefill_ms / 1000), max(0.0, usage.decode_ms / 1000)
        made.answers.labels(model, reason).inc()
        made.prompt_tokens.labels(model).inc(usage.prompt_tokens)
        made.cached_tokens.labels(model).inc(usage.cached_tokens)
        made.prefill_tokens.labels(model).inc(prefilled)
        made.decode_tokens.labels(model).inc(usage.completion_tokens)
        made.prefill_seconds.labels(model).inc(prefill_s)
        made.decode_seconds.labels(model).inc(decode_s)
        if prefilled and prefill_s > 0:
            made.prefill_rate.labels(model).set(prefilled / prefill_s)
        if usage.completion_tokens > 1 and decode_s > 0:
            # The first token comes out of prefill.
            made.decode_rate.labels(model).set((usage.completion_tokens - 1) / decode_s)
