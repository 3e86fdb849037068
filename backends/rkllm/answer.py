"""An answer's tokens on their way out: where it ends, and what of its text a client sees.

Knows ids, bytes and stop strings; nothing of the library. Called from within its callbacks, so it must be
quick.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from backends.engine import Sink
from backends.repetition import RepetitionGuard
from backends.rkllm.run import Ended
from backends.rkllm.utf8 import Utf8Pieces
from backends.text import SILENT_TOKENS, StopFilter


class Answer:
    """Takes tokens, hands complete text to a sink. Not thread-safe; made anew for each answer.

    prompt_tokens: what is reported as prefilled when the first token comes. guard None: it may repeat itself
    without end. `made` counts the tokens up to the one that ended the answer, which is one of them.
    """

    def __init__(
        self,
        eos: Set[int],
        stops: Sequence[str],
        sink: Sink,
        prompt_tokens: int,
        guard: RepetitionGuard | None,
    ) -> None:
        self._eos = eos
        self._stops = StopFilter(stops)
        self._sink = sink
        self._prompt_tokens = prompt_tokens
        self._guard = guard
        self._utf8 = Utf8Pieces()
        self._waiting = 0  # tokens whose text has not gone out
        self.made = 0

    def push(self, token_id: int, data: bytes) -> Ended | None:
        """Take a token and its bytes; return why the answer ends with it, if it does."""
        if not self.made:
            self._sink.prefill(self._prompt_tokens, self._prompt_tokens)
        self.made += 1
        if token_id in self._eos:
            return Ended.EOS
        self._waiting += 1
        if self._waiting % SILENT_TOKENS == 0:
            self._sink.delta("", 0, None)
        if text := self._utf8.push(data):
            out, stopped = self._stops.push(text)
            self._send(out)
            if stopped:
                return Ended.STOP
        # The id alone would not do: a runtime that does not tell ids would seem to repeat one.
        if self._guard is not None and self._guard.push((token_id, data)):
            return Ended.REPEATS
        return None

    def finish(self) -> None:
        """Send all that is held back. Not after a stop string."""
        out, stopped = self._stops.push(self._utf8.flush())
        self._send(out if stopped else out + self._stops.flush())

    def _send(self, text: str) -> None:
        if text:
            tokens, self._waiting = self._waiting, 0
            self._sink.delta(text, tokens, None)
