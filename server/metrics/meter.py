"""Measures one answer as its events pass. Called once a token, so it does little and makes nothing."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from backends.base import Usage
from backends.protocol import Delta, Finished
from server.scheduling.observer import OnEvent
from server.workers.pending import RunEvent

Take = Callable[[float], None]


class AnswerMeter:
    """Passes events on, then tells what it has seen: seconds to the first token, seconds to each next one,
    and how the answer ended.
    """

    __slots__ = ("_between", "_ended", "_first", "_last", "_on_event", "_submitted")

    def __init__(
        self,
        on_event: OnEvent,
        submitted: float,
        *,
        first: Take,
        between: Take,
        ended: Callable[[str, Usage], None],
    ) -> None:
        self._on_event = on_event
        self._submitted = submitted
        self._first = first
        self._between = between
        self._ended = ended
        self._last = 0.0

    def __call__(self, event: RunEvent) -> None:
        """Take an event."""
        self._on_event(event)
        if type(event) is Delta:
            now = monotonic()
            if self._last:
                self._between(now - self._last)
            else:
                self._first(now - self._submitted)
            self._last = now
        elif isinstance(event, Finished):
            self._ended(event.reason, event.usage)
