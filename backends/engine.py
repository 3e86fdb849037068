"""What an engine and its worker are to each other: how it is asked, cancelled, and where it answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Event, Lock
from typing import Protocol, runtime_checkable

from backends.base import EmbedParams, FinishReason, GenerateParams, Span, TokenLogprob, Usage
from backends.spec import ModelInfo


class Cancellation(Event):
    """A run's cancel switch: an event that can also call someone. For any thread; once set it stays so."""

    def __init__(self) -> None:
        super().__init__()
        self._guard = Lock()
        self._listener: Callable[[], None] | None = None

    def set(self) -> None:
        """Cancel. Calls the listener, in this thread, the first time."""
        with self._guard:
            listener = None if self.is_set() else self._listener
            super().set()
        if listener is not None:
            listener()

    def listen(self, listener: Callable[[], None] | None) -> None:
        """Have `listener` called when this is set, at once if it is. It must not block. None: nobody."""
        with self._guard:
            self._listener = listener
            now = self.is_set()
        if now and listener is not None:
            listener()


class Sink(Protocol):
    """Where a backend puts what a run produces. Called from the engine's thread; never blocks for long."""

    def prefill(self, done: int, total: int) -> None:
        """Report that `done` of the `total` prompt tokens that must be computed have been."""

    def delta(self, text: str, tokens: int, logprobs: list[TokenLogprob] | None) -> None:
        """Hand over text that is complete: no split character, no part of a stop sequence.

        `tokens` is how many tokens it stands for; `logprobs` one entry a token where they were asked for.
        """

    def warn(self, message: str) -> None:
        """Tell the owner of the model what seems wrong with it. Says nothing of what a client wrote."""


class Progress(Protocol):
    """Where a backend reports how far loading has come."""

    def __call__(self, done: float, what: str) -> None:
        """`done` from 0 to 1; `what` a few words for a person."""


class Backend(Protocol):
    """A loaded model. `generate` is called from one thread, one run at a time; the others from any thread."""

    info: ModelInfo

    def count_tokens(self, prompt: Sequence[Span]) -> int:
        """Return the length of a prompt in tokens. Raises context_length_exceeded if it is hopeless."""

    def generate(
        self, params: GenerateParams, sink: Sink, cancelled: Cancellation
    ) -> tuple[FinishReason, Usage]:
        """Run one answer to its end. Ends early with "cancelled" at the next token once the event is set.

        Raises BackendError for what the client or the owner can mend, EngineLost where the process is of no
        more use; anything else is a bug or a crash.
        """

    def close(self) -> None:
        """Give back everything. Called once, when no run is under way."""


@runtime_checkable
class Embedder(Protocol):
    """A backend that makes embeddings too. Called from the same thread as `generate`."""

    def embed(
        self, params: EmbedParams, sink: Sink, cancelled: Cancellation
    ) -> tuple[FinishReason, Usage, list[bytes]]:
        """Return a vector for each input, as little-endian float32. Raises as `generate` does.

        All inputs are checked before the first is run. Reports progress to the sink's `prefill`. "cancelled"
        and no vectors once the event is set.
        """
