"""A worker process whose model does what the user's message says, for what real models do only by accident.

It is a worker like any other, with backends.worker's own loop; only the model is not one. A message is one of

    count N         answers N tokens: " 1", " 2", ...
    hold            answers a token every 20 ms until it is cancelled, for a minute at most
    die after N     answers N tokens, then the process is killed
    refuse          cannot be honoured
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from threading import Event

from backends.base import BackendError, FinishReason, GenerateParams, Span, Usage
from backends.engine import Progress, Sink
from backends.spec import ModelInfo, ModelSpec
from backends.worker import main

BETWEEN_TOKENS_S = 0.02
MOST_TOKENS = 3000


class ScriptedBackend:
    """Plays what the prompt asks for. Keeps no state between runs."""

    def __init__(self, spec: ModelSpec) -> None:
        self.info = ModelInfo(
            runtime="scripted 1", context_length=spec.context_length, vocab_size=100, memory_mb=1
        )

    def count_tokens(self, prompt: Sequence[Span]) -> int:
        return sum(len(span.text.split()) for span in prompt)

    def generate(self, params: GenerateParams, sink: Sink, cancelled: Event) -> tuple[FinishReason, Usage]:
        words = next(span.text for span in reversed(params.prompt) if not span.control).split()
        if words[0] == "refuse":
            raise BackendError("invalid_request", "the message asks to be refused", "messages")
        holds = words[0] == "hold"
        sent = 0
        for number in range(1, 1 + (MOST_TOKENS if holds else int(words[-1]))):
            if cancelled.wait(BETWEEN_TOKENS_S) if holds else cancelled.is_set():
                break
            sink.delta(f" {number}", 1, None)
            sent = number
        if words[0] == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        prompt_tokens = self.count_tokens(params.prompt)
        usage = Usage(
            prompt_tokens=prompt_tokens, cached_tokens=0, completion_tokens=sent, prefill_ms=0, decode_ms=0
        )
        return "cancelled" if cancelled.is_set() else "stop", usage

    def close(self) -> None:
        pass


def load(spec: ModelSpec, progress: Progress) -> ScriptedBackend:
    """Load nothing; the model "broken" cannot be."""
    if spec.model_id == "broken":
        raise BackendError("model_corrupt", "a segment of broken is damaged; pull it again")
    return ScriptedBackend(spec)


if __name__ == "__main__":
    main(load=load)
