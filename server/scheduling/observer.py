"""What happens in the queue and to workers, told to whoever counts it. Knows nobody who listens."""

from __future__ import annotations

from collections.abc import Callable

from server.workers.pending import RunEvent

OnEvent = Callable[[RunEvent], None]


class Observer:
    """Is told of everything, in the event loop's thread; this one does nothing with it.

    model: the id that was asked for, which is an adapter's own where it is one. Times are in seconds.
    """

    def waited(self, model: str, seconds: float) -> None:
        """A request's turn has come."""

    def answering(self, model: str, submitted: float, on_event: OnEvent) -> OnEvent:
        """An answer begins: return what its events are to be given to, which passes them on to `on_event`.

        submitted: when the request was put into the queue, of time.monotonic(). Called once an answer, and
        what it returns once a token.
        """
        return on_event

    def loaded(self, model: str, seconds: float) -> None:
        """A model was loaded."""

    def load_failed(self, model: str, code: str) -> None:
        """A model could not be loaded; `code` is that of the error a client gets."""

    def lost(self, model: str, code: str) -> None:
        """The worker of a loaded model has died (backend_crashed) or was ended as hung (backend_timeout)."""
