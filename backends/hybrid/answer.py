"""An answer's tokens on their way out: text, stop strings, and log probabilities that travel with their text.

Knows tokens and text; nothing of models and caches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from backends.base import TokenLogprob
from backends.engine import Sink
from backends.hybrid.detokenize import TextDecoder
from backends.text import SILENT_TOKENS, StopFilter
from backends.vocabulary import Vocabulary


class Answer:
    """Takes tokens, hands complete text to a sink. Not thread-safe; made anew for each answer.

    A token goes out with the beginning of its text; one without text, with the text after it. Tokens whose
    text lies wholly in or behind a stop string are dropped, as is their log probability.
    """

    def __init__(self, vocabulary: Vocabulary, stops: Sequence[str], sink: Sink, *, logprobs: bool) -> None:
        self._decoder = TextDecoder(vocabulary)
        self._stops = StopFilter(stops)
        self._sink = sink
        self._logprobs = logprobs
        # The character at which each waiting token begins, and its entry.
        self._waiting: deque[tuple[int, TokenLogprob | None]] = deque()
        self._made = 0  # characters the tokens so far have made
        self._sent = 0
        self._silent = 0  # tokens since something was sent

    def push(self, token_id: int, logprob: TokenLogprob | None) -> bool:
        """Take a token; return whether a stop string is now complete, after which no more may be pushed."""
        self._waiting.append((self._made, logprob))
        self._silent += 1
        if self._silent >= SILENT_TOKENS:
            self._silent = 0
            self._sink.delta("", 0, None)
        text = self._decoder.push(token_id)
        self._made += len(text)
        if not text:
            return False
        out, stopped = self._stops.push(text)
        if out:
            end = self._sent + len(out)
            self._send(out, sum(start < end for start, _ in self._waiting))
        return stopped

    def finish(self) -> None:
        """Send all that is held back: the answer ends here and no stop string completes it."""
        out, _ = self._stops.push(self._decoder.flush())
        self._send(out + self._stops.flush(), len(self._waiting))

    def _send(self, text: str, tokens: int) -> None:
        """Send text with the first waiting tokens, unless there is nothing a client could see."""
        entries = [self._waiting.popleft()[1] for _ in range(tokens)]
        self._sent += len(text)
        logprobs = [entry for entry in entries if entry is not None] if self._logprobs else None
        if text or logprobs:
            self._silent = 0
            self._sink.delta(text, tokens, logprobs)
