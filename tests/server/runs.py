"""What a run holds, for tests that look at it between two steps."""

from __future__ import annotations

from server.scheduling import Event, Run


def arrived(run: Run) -> list[tuple[int, Event]]:
    """Take all events that have arrived, without waiting."""
    taken = list(run._events)
    run._events.clear()
    return taken
